// The update is measured rather than run: it would change the weights. It goes from weight to
// weight, so that the largest one decides what it needs beside what stays.
#include "apps/cli/training/training_need.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <reprise/memory.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <vector>

namespace reprise::app {

namespace {

// The loss, and the norm of each gradient, by which they are clipped: what an allocation of a
// number comes to.
constexpr Bytes kNumber(64);
constexpr std::int64_t kNumbers = 4;

Bytes bytes_of(const at::Tensor& tensor) {
  return Bytes(static_cast<std::int64_t>(tensor.nbytes()));
}

Bytes weight_bytes(const torch::nn::Module& model) {
  Bytes bytes;
  for (const at::Tensor& parameter : model.parameters()) bytes += bytes_of(parameter);
  return bytes;
}

// What AdamW has alive while it updates one weight, besides what it keeps.
Bytes update_bytes(const at::Tensor& weight) {
  at::Tensor alike = at::zeros(weight.sizes(), weight.options()).requires_grad_();
  alike.mutable_grad() = at::zeros(weight.sizes(), weight.options());
  torch::optim::AdamW optimizer(std::vector<at::Tensor>{alike}, torch::optim::AdamWOptions());
  const PeakScope scope(weight.device());
  optimizer.step();
  return scope.peak_above_start() - bytes_of(alike) * 2;
}

}  // namespace

Bytes moment_bytes(const torch::nn::Module& model) { return weight_bytes(model) * 2; }

TrainingNeed need_of_training(const torch::nn::Module& model, Bytes live, Bytes backward) {
  const std::vector<at::Tensor> weights = model.parameters();
  const auto largest = std::ranges::max_element(
      weights, {}, [](const at::Tensor& weight) { return weight.nbytes(); });
  const Bytes numbers = kNumber * (kNumbers + static_cast<std::int64_t>(weights.size()));
  const Bytes update = live + weight_bytes(model) + update_bytes(largest->detach()) + numbers;
  return {.live = live, .peak = std::max(backward, update)};
}

}  // namespace reprise::app
