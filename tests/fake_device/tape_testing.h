// What the tests of byte budgets on the fake device share: a small network with dropout, views,
// changes in place and skip connections, and its steps.
#pragma once

#include <gtest/gtest.h>
#include <reprise/budget.h>
#include <reprise/memory.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/fake_device/fake_device.h"
#include "tests/fake_device/fake_memory.h"
#include "tests/fake_device/fake_operators.h"
#include "tests/fake_device/fake_streams.h"
#include "tests/region/testing.h"

namespace reprise::testing_support {

using testing::same_bits;
using testing::Tensors;

inline BudgetOptions on_fake(int index = 0) {
  return {.device = fake(index), .min_bytes = Bytes(1)};
}
inline BudgetOptions paranoid_on_fake(int index = 0) {
  return {.device = fake(index), .min_bytes = Bytes(1), .paranoid = true};
}

// As real devices hand memory out, and nothing of it left to chance.
class OnFakeDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    FakeMemory::set_piece(512);
    FakeMemory::hazards();
    FakeMemory::forget_named();
  }
  void TearDown() override {
    EXPECT_EQ(FakeMemory::hazards(), std::vector<std::string>{});
    FakeMemory::set_piece(1);
    FakeMemory::set_capacity(FakeMemory::kNoEnd);
    set_fake_workspace(0);
    c10::getDeviceAllocator(c10::kPrivateUse1)->emptyCache();
  }
};

class Network {
 public:
  explicit Network(c10::Device device, int layers = 6, std::int64_t batch = 256) : device_(device) {
    torch::manual_seed(3);
    const auto leaf = [&](at::IntArrayRef size) {
      leaves_.push_back((at::randn(size) * 0.2).to(device).requires_grad_(true));
    };
    for (int i = 0; i < layers; ++i) {
      leaf({kWidth, kWidth});
      leaf({kWidth});
    }
    batch_ = at::randn({batch, kWidth}).to(device);
  }

  at::Tensor loss() const {
    at::Tensor h = batch_;
    for (std::size_t i = 0; i < leaves_.size(); i += 2) {
      at::Tensor branch = at::addmm(leaves_[i + 1], h, leaves_[i]);
      branch = at::gelu(branch) * 0.5;
      branch.add_(1e-3).relu_();
      branch = at::dropout(branch, 0.1, /*train=*/true);
      h = h + branch.view({-1, 4, kWidth / 4}).transpose(1, 2).reshape({-1, kWidth});
    }
    return h.pow(2).mean();
  }

  // Draws, and gives the gradients, as in every other step.
  Tensors gradients() {
    if (device_.is_privateuseone()) {
      fake_generator(device_.index()).drawn = 11;
    } else {
      torch::manual_seed(11);
    }
    loss().backward();
    return testing::take_gradients(leaves_);
  }
  Tensors gradients_under(MemoryBudget& budget) {
    auto step = budget.step();
    Tensors mine = gradients();
    step.finish();
    return mine;
  }
  // With that share of what a plain step takes above what is live now.
  Bytes limit_at(double share) {
    gradients();
    const PeakScope scope(device_);
    gradients();
    return live_bytes(device_) + Bytes(static_cast<std::int64_t>(
                                     share * static_cast<double>(scope.peak_above_start().count)));
  }

  const Tensors& leaves() const { return leaves_; }

 private:
  static constexpr std::int64_t kWidth = 32;
  c10::Device device_;
  Tensors leaves_;
  at::Tensor batch_;
};

}  // namespace reprise::testing_support
