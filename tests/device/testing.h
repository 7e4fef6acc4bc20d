// Shared by the tests on a CUDA device: a fixture that skips where there is none, and a small
// network. Its activations fill some hundred megabytes.
#pragma once

#include <ATen/DeviceAccelerator.h>
#include <gtest/gtest.h>
#include <reprise/budget.h>
#include <reprise/memory.h>
#include <torch/torch.h>

#include <cstdlib>

#include "tests/region/testing.h"

namespace reprise::testing_support {

using testing::same_bits;
using testing::Tensors;

class OnCudaDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (at::accelerator::getAccelerator() != c10::kCUDA || at::accelerator::deviceCount() == 0) {
      GTEST_SKIP() << "there is no CUDA device";
    }
    // Atomic additions round differently from run to run, and bits are compared here. A warning
    // alone would leave fused attention as it is. cuBLAS must be given its workspaces' size.
    setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
    at::accelerator::emptyCache();
  }
  void TearDown() override { at::globalContext().setDeterministicAlgorithms(false, false); }

  c10::Device device_ = c10::Device(c10::kCUDA, 0);
};

inline BudgetOptions on_cuda() { return {.device = c10::Device(c10::kCUDA, 0)}; }

// Residual layers with dropout, views and changes in place.
class Network {
 public:
  explicit Network(c10::Device device, int layers = 8, std::int64_t batch = 8192)
      : device_(device) {
    torch::manual_seed(3);
    for (int i = 0; i < layers; ++i) {
      leaves_.push_back((at::randn({kWidth, kWidth}) * 0.05).to(device).requires_grad_(true));
      leaves_.push_back(at::zeros({kWidth}).to(device).requires_grad_(true));
    }
    batch_ = at::randn({batch, kWidth}).to(device);
  }

  // Draws the same numbers in every step.
  Tensors gradients() {
    torch::manual_seed(11);
    loss().backward();
    return testing::take_gradients(leaves_);
  }
  Tensors gradients_under(MemoryBudget& budget) {
    auto step = budget.step();
    Tensors mine = gradients();
    step.finish();
    return mine;
  }
  // The bytes that a plain step adds to those live before it. The first step makes workspaces.
  Bytes activations() {
    gradients();
    const PeakScope scope(device_);
    gradients();
    return scope.peak_above_start();
  }
  Bytes limit_at(double share) {
    const auto above = static_cast<double>(activations().count);
    return live_bytes(device_) + Bytes(static_cast<std::int64_t>(share * above));
  }
  void forget_gradients() { testing::take_gradients(leaves_); }

 private:
  at::Tensor loss() const {
    at::Tensor h = batch_;
    for (std::size_t i = 0; i < leaves_.size(); i += 2) {
      at::Tensor branch = at::gelu(at::addmm(leaves_[i + 1], h, leaves_[i])) * 0.5;
      branch.add_(1e-3).relu_();
      branch = at::dropout(branch, 0.1, /*train=*/true);
      h = h + branch.view({-1, 4, kWidth / 4}).transpose(1, 2).reshape({-1, kWidth});
    }
    return h.pow(2).mean();
  }

  static constexpr std::int64_t kWidth = 512;
  c10::Device device_;
  Tensors leaves_;
  at::Tensor batch_;
};

}  // namespace reprise::testing_support
