// What a convolution on the CPU has beside its arguments and results while it runs. oneDNN's
// kernels for f32 read and write blocks of channels: tensors that lie otherwise are copied there
// and back. LibTorch's own kernels, for little work, make a matrix of patches.
#pragma once

#include <cstdint>

#include "estimate/operator_cost.h"

namespace reprise::estimate {

// Of aten::convolution and aten::convolution_backward.
std::int64_t convolution_workspace(Values arguments, Values results);
std::int64_t convolution_backward_workspace(Values arguments, Values results);

}  // namespace reprise::estimate
