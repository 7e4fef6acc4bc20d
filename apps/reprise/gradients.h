// The gradients of a model as a whole: made, cleared, copied and compared bit by bit.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

namespace reprise::app {

// Gives every parameter a gradient of zeros, so that a measured step accumulates into what is
// there.
void allocate_gradients(const torch::nn::Module& model);
void clear_gradients(const torch::nn::Module& model);

// The bytes of every gradient. Not tensors: what is measured should not contain its own yardstick.
using GradientBits = std::vector<std::string>;
GradientBits gradient_bits(const torch::nn::Module& model);

// The name of the first parameter whose gradient differs from the expected one in any bit (so 0 and
// -0 differ, and NaNs of the same bits do not); empty if all are equal.
std::string first_difference(const torch::nn::Module& model, const GradientBits& expected);

}  // namespace reprise::app
