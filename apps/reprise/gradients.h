// The gradients of a model as a whole: made, cleared, copied and compared bit by bit.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <string>
#include <vector>

namespace reprise::app {

// Gives every parameter a gradient of zeros, so that a measured step accumulates into what is there.
void allocate_gradients(const torch::nn::Module& model);
void clear_gradients(const torch::nn::Module& model);
std::vector<at::Tensor> copy_gradients(const torch::nn::Module& model);

// The name of the first parameter whose gradient differs from the expected one in any bit (so 0 and -0
// differ, and NaNs of the same bits do not); empty if all are equal.
std::string first_difference(const torch::nn::Module& model,
                             const std::vector<at::Tensor>& expected);

}  // namespace reprise::app
