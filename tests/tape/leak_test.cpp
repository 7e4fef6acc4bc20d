// What a step leaves behind: nothing, however many there were.

#include <ATen/CPUGeneratorImpl.h>
#include <malloc.h>
#include <torch/torch.h>

#include "tape/value.h"
#include "tests/tape/testing.h"

namespace reprise {
namespace {

using at::Tensor;
using testing::leaf;
using testing::paranoid;
using testing::Tensors;

struct Footprint {
  std::int64_t live = live_bytes().count;
  std::int64_t records = tape::living_records();
};

// In place, views, draws, lists, a buffer, several results; some of it outlives the step.
struct Model {
  Tensor x = leaf({4, 8}), w = leaf({8, 8}), mean = at::zeros({8}), variance = at::ones({8});
  Tensor outlives;

  void step(MemoryBudget& budget, int number) {
    auto step = budget.step();
    Tensor h = at::dropout(x.mm(w).tanh(), 0.3, /*train=*/true);
    h = at::batch_norm(h, {}, {}, mean, variance, /*training=*/true, 0.1, 1e-5, false);
    const Tensors parts = (h * 2).add_(1).chunk(2, 1);
    outlives = at::cat({parts[1], parts[0].exp()}, 1);
    outlives.sum().backward();
    w.data().sub_(w.grad(), 1e-3);
    testing::take_gradients({x, w});
    outlives = outlives.detach();
    if (number % 3 != 0) step.finish();
  }
};

TEST(TapeLeaks, TenThousandStepsLeaveWhatTenLeave) {
  Model model;
  MemoryBudget budget(GiB(64), paranoid());
  for (int i = 0; i < 10; ++i) model.step(budget, i);
  const Footprint after_ten;
  EXPECT_EQ(after_ten.records, 0);
  for (int i = 10; i < 1'000; ++i) model.step(budget, i);
  const auto allocated = static_cast<std::int64_t>(mallinfo2().uordblks);
  for (int i = 1'000; i < 10'000; ++i) model.step(budget, i);
  const Footprint after_all;
  EXPECT_EQ(after_all.records, 0);
  // Some bytes more or less are malloc's, which may hand out a block that is a little too large. A
  // tensor that every thousandth step left behind would be more than that.
  EXPECT_NEAR(static_cast<double>(after_all.live), static_cast<double>(after_ten.live), 256);
  // Nor anything of malloc's that no allocator counts.
  EXPECT_LT(static_cast<std::int64_t>(mallinfo2().uordblks) - allocated, 64 << 10);
  EXPECT_GT(budget.report().replayed, 0);
}

// Data sets may draw each item from a generator of its own.
TEST(TapeLeaks, AGeneratorThatACallDrewFromIsNotKept) {
  MemoryBudget budget(GiB(64), paranoid());
  const at::Generator generator = at::detail::createCPUGenerator(7);
  const Tensor x = leaf({64});
  {
    auto step = budget.step();
    const Tensor noise = at::rand({64}, generator);
    (x * noise.sin()).sum().backward();
  }
  EXPECT_EQ(generator.getIntrusivePtr().use_count(), 1);
  const Tensor noise = at::rand({64}, at::detail::createCPUGenerator(7));
  EXPECT_TRUE(testing::same_bits(x.grad(), noise.sin()));
}

TEST(TapeLeaks, ALongStepKeepsNoRecordOfWhatNobodyCanAskFor) {
  Tensor x = leaf({8, 8}), w = leaf({8, 8});
  MemoryBudget budget(live_bytes() + KiB(64), {.min_bytes = Bytes(1)});
  {
    auto step = budget.step();
    const auto iterate = [&] {
      at::dropout(x.mm(w).sin().mul(2).add_(1), 0.5, true).exp().sum().backward();
      w.data().sub_(w.grad(), 1e-3);
      testing::take_gradients({x, w});
    };
    for (int i = 0; i < 10; ++i) iterate();
    const Footprint after_ten;
    for (int i = 10; i < 2'000; ++i) iterate();
    const Footprint after_all;
    EXPECT_EQ(after_all.records, after_ten.records);
    // Some bytes more or less are malloc's, which may hand out a block that is a little too large.
    // A tensor that every thousandth step left behind would be more than that.
    EXPECT_NEAR(static_cast<double>(after_all.live), static_cast<double>(after_ten.live), 256);
    step.finish();
  }
  EXPECT_EQ(Footprint().records, 0);
}

TEST(TapeLeaks, WhatOutlivesAStepIsNoRecord) {
  const Bytes before = live_bytes();
  {
    MemoryBudget budget(GiB(64), paranoid());
    const Tensor x = leaf({8, 8});
    Tensor y;
    std::optional<Pin> pin;
    {
      auto step = budget.step();
      y = x.exp().sin();
      pin.emplace(y);
      EXPECT_GT(tape::living_records(), 0);
      step.finish();
    }
    EXPECT_EQ(tape::living_records(), 0);
    y.sum().backward();
  }
  EXPECT_EQ(live_bytes(), before);
}

}  // namespace
}  // namespace reprise
