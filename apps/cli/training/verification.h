// The plain step as the yardstick of a step under a strategy: both start from the same parameters,
// batches, random state and buffers, and must come to the same gradients, bit for bit.
//
//   Verification verification(model, device, [&] { /* the plain step's forward and backward */ });
//   ... the step itself, up to its gradients ...
//   verification.compare(model);
//   if (verification.report().difference) verification.put_back();
//
// It costs one plain step, with the memory of a plain step, before the other one begins; a copy of
// all gradients on the host until they are compared; and two copies of the buffers.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <reprise/bytes.h>
#include <reprise/random_state.h>
#include <torch/nn/module.h>

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "apps/cli/training/gradients.h"

namespace reprise::app {

// The state that a step starts from besides its parameters and data: the default generators of the
// CPU and of the device, and the module's buffers, such as BatchNorm's running statistics.
class StartingPoint {
 public:
  StartingPoint(const torch::nn::Module& model, c10::Device device);
  // Puts them back, the buffers in place.
  void restore() const;

 private:
  RandomState random_;
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;  // and a copy of each
};

// The result of verifying one step.
struct VerificationReport {
  std::optional<GradientDifference> difference;  // nullopt: all gradients are equal
  double milliseconds = 0;                       // of the plain step and the comparison
  Bytes peak;                                    // most bytes alive during the plain step
};

class Verification {
 public:
  // Runs the plain step from no gradients at all, keeps those it makes, and leaves everything else
  // as it was before. If the step throws, likewise.
  Verification(torch::nn::Module& model, c10::Device device,
               const std::function<void()>& plain_step);

  // Compares the model's gradients with the plain step's, which are then dropped; the report says
  // what came of it. Returns the milliseconds that it took.
  double compare(const torch::nn::Module& model);
  // Random state and buffers as they were before the step.
  void put_back() const { start_.restore(); }

  const VerificationReport& report() const { return report_; }

 private:
  StartingPoint start_;
  c10::Device device_;
  GradientBits expected_;
  VerificationReport report_;
};

}  // namespace reprise::app
