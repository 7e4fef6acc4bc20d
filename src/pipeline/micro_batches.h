// Cutting a mini-batch into micro-batches, and putting their results together again.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace reprise::pipeline {

using Tensors = std::vector<at::Tensor>;

// The number of samples: the size of the first dimension of each tensor. Throws UsageError, naming
// the tensor by `what` ("input 1"), for one that is undefined or has no dimension, and where two
// differ; with `samples`, also where they differ from that number.
std::int64_t samples_of(const Tensors& batch, const char* what, std::int64_t samples = -1);

// How many samples each micro-batch has: as tensor.chunk() cuts.
std::vector<std::int64_t> sizes_of(std::int64_t samples, std::int64_t chunks);

// Views of the batch, one list of tensors for each micro-batch.
std::vector<Tensors> scatter(const Tensors& batch, const std::vector<std::int64_t>& sizes);

// Undoes scatter(). Undefined tensors of one place make an undefined one if all of that place are
// undefined; else they count as zeros.
Tensors gather(const std::vector<Tensors>& batches, const std::vector<std::int64_t>& sizes);

}  // namespace reprise::pipeline
