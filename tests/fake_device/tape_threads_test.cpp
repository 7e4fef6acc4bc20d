// Steps of several threads on one accelerator: each exact, whoever has to make room for whom.
#include <gtest/gtest.h>

#include <functional>

#include "tests/fake_device/tape_testing.h"

namespace reprise {
namespace {

using namespace testing_support;

class DeviceBudgetThreads : public OnFakeDevice {
 protected:
  static constexpr int kThreads = 3;
  static constexpr int kSteps = 6;

  void SetUp() override {
    OnFakeDevice::SetUp();
    torch::manual_seed(5);
    for (int i = 0; i < kThreads; ++i) {
      leaves_.push_back(at::randn({64, 64}).to(fake(0)).requires_grad_(true));
      plain_.push_back(gradients(i));
    }
  }

  // Nothing is drawn: a generator's numbers go to whoever asks first.
  Tensors gradients(int thread) const {
    const at::Tensor& leaf = leaves_[static_cast<std::size_t>(thread)];
    at::Tensor x = leaf;
    for (int i = 0; i < 8; ++i) {
      at::Tensor branch = at::gelu(at::mm(x, leaf) * 0.1);
      branch.mul_(0.5).relu_();
      x = x + branch.view({32, 128}).tanh().view({64, 64});
    }
    x.pow(2).mean().backward();
    return testing::take_gradients({leaf});
  }

  // Of all threads at once, above what is live now.
  Bytes limit_at(double share) const {
    const PeakScope scope(fake(0));
    gradients(0);
    return live_bytes(fake(0)) +
           Bytes(static_cast<std::int64_t>(share * kThreads *
                                           static_cast<double>(scope.peak_above_start().count)));
  }

  void on_all(const std::function<MemoryBudget&(int)>& budget_of) {
    testing::on_threads(kThreads, [&](int thread) {
      MemoryBudget& budget = budget_of(thread);
      for (int i = 0; i < kSteps; ++i) {
        auto step = budget.step();
        const Tensors mine = gradients(thread);
        step.finish();
        EXPECT_TRUE(same_bits(mine, plain_[static_cast<std::size_t>(thread)]))
            << "thread " << thread << ", step " << i;
      }
    });
  }

  std::vector<at::Tensor> leaves_;
  std::vector<Tensors> plain_;
};

TEST_F(DeviceBudgetThreads, OneBudgetOfAllIsExact) {
  MemoryBudget budget(limit_at(0.6), on_fake());
  const Bytes before = live_bytes(fake(0));
  on_all([&](int) -> MemoryBudget& { return budget; });
  EXPECT_EQ(live_bytes(fake(0)), before);
}

TEST_F(DeviceBudgetThreads, ABudgetEachIsExact) {
  std::vector<std::unique_ptr<MemoryBudget>> budgets;
  for (int i = 0; i < kThreads; ++i) {
    budgets.push_back(std::make_unique<MemoryBudget>(limit_at(0.5 + 0.1 * i), on_fake()));
  }
  on_all([&](int thread) -> MemoryBudget& { return *budgets[static_cast<std::size_t>(thread)]; });
}

TEST_F(DeviceBudgetThreads, ParanoidStepsAreExact) {
  MemoryBudget budget(GiB(1), paranoid_on_fake());
  on_all([&](int) -> MemoryBudget& { return budget; });
}

}  // namespace
}  // namespace reprise
