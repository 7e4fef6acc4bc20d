// The gradients of a model as a whole: made, cleared, copied and compared bit by bit.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace reprise::app {

// Gives every parameter a gradient of zeros, into which measured steps accumulate.
void allocate_gradients(const torch::nn::Module& model);
void clear_gradients(const torch::nn::Module& model);

// The bytes of every gradient, on the host; none for a parameter without a gradient. They are no
// tensors, so that measured memory does not contain them.
using GradientBits = std::vector<std::optional<std::string>>;
GradientBits gradient_bits(const torch::nn::Module& model);

// The first difference between two sets of gradients: the first parameter, and its first element.
struct GradientDifference {
  std::string parameter;
  std::int64_t index = 0;       // of the element, counted through the flattened gradient
  std::string expected, found;  // its two values, so written that they differ
  std::int64_t differing = 0;   // elements of this parameter that differ
  std::int64_t elements = 0;    // that it has
  std::int64_t differing_parameters = 0;
  std::int64_t parameters = 0;  // that the model has

  // "the gradient of NAME differs from the plain step's: ...".
  std::string text() const;
  nlohmann::json json() const;
};

// Compares with as many expected gradients. Any bit counts: 0 and -0 differ, and NaNs of the same
// bits do not. So does a gradient that is missing or has another size. Returns nullopt if all are
// equal.
std::optional<GradientDifference> first_difference(const torch::nn::Module& model,
                                                   const GradientBits& expected);

}  // namespace reprise::app
