// The streams of random numbers of a pipeline's layers: one for each micro-batch and layer.
#pragma once

#include <cstdint>

namespace reprise::pipeline {

// Distinct for distinct micro-batches and layers of one step, and unrelated to each other.
std::uint64_t seed_of_layer(std::uint64_t seed, std::int64_t micro_batch, std::int64_t layer);

}  // namespace reprise::pipeline
