// Batches cut out of the text. Seed and number of a batch determine its sequences, so that a
// resumed run needs to know only how many batches it has drawn.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace reprise::app {

// tokens and targets: int64 [batch, context]; targets are the tokens one place further on.
struct Batch {
  at::Tensor tokens;
  at::Tensor targets;
};

// The starts of the sequences of batch number `index`: uniform over the text, by splitmix64.
std::vector<std::size_t> random_starts(std::int64_t seed, std::int64_t index, std::int64_t batch,
                                       std::size_t text_size, std::int64_t context);

// At most `count` places from the beginning to the end of the text, evenly apart.
std::vector<std::size_t> even_starts(std::int64_t count, std::size_t text_size,
                                     std::int64_t context);

Batch cut(std::string_view text, const std::vector<std::size_t>& starts, std::int64_t context,
          c10::Device device);

}  // namespace reprise::app
