// A step under a byte budget on an accelerator: its numbers, its peak, and what it does when the
// device is full.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tape/value.h"
#include "tests/fake_device/tape_testing.h"

namespace reprise {
namespace {

using namespace testing_support;
using ::testing::HasSubstr;

class DeviceBudget : public OnFakeDevice {};

TEST_F(DeviceBudget, AStepFitsInHalfOfItsPeakWithTheSameGradients) {
  Network network(fake(0));
  const Tensors plain = network.gradients();
  MemoryBudget budget(network.limit_at(0.5), on_fake());
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(same_bits(network.gradients_under(budget), plain)) << "step " << i;
    EXPECT_GT(budget.report().dropped, 0);
    EXPECT_GT(budget.report().replayed, 0);
    if (i > 0) {
      EXPECT_LE(budget.report().peak, budget.limit()) << "step " << i;
    }
  }
}

TEST_F(DeviceBudget, WorkspacesAreLearntInTheFirstStep) {
  Network network(fake(0));
  const Tensors plain = network.gradients();
  set_fake_workspace(100'000);
  MemoryBudget budget(network.limit_at(0.6), on_fake());
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(same_bits(network.gradients_under(budget), plain)) << "step " << i;
    if (i > 0) {
      EXPECT_LE(budget.report().peak, budget.limit()) << "step " << i;
    }
  }
}

TEST_F(DeviceBudget, EveryReadMayBeAReplay) {
  Network network(fake(0), 3, 64);
  const Tensors plain = network.gradients();
  const auto drawn = fake_generator(0).drawn;
  BudgetOptions options = paranoid_on_fake();
  options.verify = true;
  MemoryBudget budget(GiB(1), options);
  EXPECT_TRUE(same_bits(network.gradients_under(budget), plain));
  EXPECT_GT(budget.report().replayed, 20);
  EXPECT_EQ(fake_generator(0).drawn, drawn) << "draws that follow are the plain step's";
}

TEST_F(DeviceBudget, WithoutPressureNothingIsDroppedAndThePeakIsThePlainOnes) {
  Network network(fake(0));
  const Bytes limit = network.limit_at(1.0);
  MemoryBudget budget(GiB(1), on_fake());
  for (int i = 0; i < 3; ++i) network.gradients_under(budget);
  EXPECT_EQ(budget.report().dropped, 0);
  EXPECT_EQ(budget.report().peak, limit);
}

TEST_F(DeviceBudget, WaitsForTheDeviceOnlyToVerify) {
  Network network(fake(0), 3, 64);
  MemoryBudget budget(network.limit_at(0.6), on_fake());
  const auto before = FakeStreams::of(0).synchronizations();
  network.gradients_under(budget);
  EXPECT_GT(budget.report().dropped, 0);
  EXPECT_EQ(FakeStreams::of(0).synchronizations(), before);
  BudgetOptions options = on_fake();
  options.verify = true;
  MemoryBudget verified(network.limit_at(0.6), options);
  network.gradients_under(verified);
  EXPECT_GT(FakeStreams::of(0).synchronizations(), before);
}

TEST_F(DeviceBudget, AFullDeviceHasValuesDroppedAndTheOperatorRunAgain) {
  Network network(fake(0));
  const Tensors plain = network.gradients();
  const Bytes enough = network.limit_at(0.7);
  c10::getDeviceAllocator(c10::kPrivateUse1)->emptyCache();
  FakeMemory::set_capacity(enough.count);
  const auto failed = FakeMemory::times_out_of_memory();
  const auto emptied = FakeMemory::times_emptied();
  EXPECT_THROW(network.gradients(), c10::OutOfMemoryError) << "what it takes without a budget";
  c10::getDeviceAllocator(c10::kPrivateUse1)->emptyCache();
  for (const at::Tensor& leaf : network.leaves()) leaf.mutable_grad() = at::Tensor();
  MemoryBudget budget(GiB(1), on_fake());
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(same_bits(network.gradients_under(budget), plain)) << "step " << i;
    EXPECT_GT(budget.report().dropped, 0);
  }
  EXPECT_GT(FakeMemory::times_out_of_memory(), failed + 1);
  EXPECT_GT(FakeMemory::times_emptied(), emptied + 1);
}

TEST_F(DeviceBudget, WhereNothingCanGoTheDevicesOwnErrorGoesOn) {
  const at::Tensor x = at::randn({1000}).to(fake(0));
  FakeMemory::set_capacity(1 << 20);
  MemoryBudget budget(GiB(1), on_fake());
  auto step = budget.step();
  const at::Tensor y = x.sin();
  const auto drawn = fake_generator(0).drawn;
  EXPECT_THROW(at::rand({1 << 20}, at::TensorOptions(fake(0))), c10::OutOfMemoryError);
  EXPECT_THROW(x.repeat({1000}), c10::OutOfMemoryError);
  EXPECT_EQ(fake_generator(0).drawn, drawn);
  EXPECT_TRUE(same_bits(y.cos(), x.cpu().sin().cos())) << "the step goes on";
  step.finish();
}

TEST_F(DeviceBudget, AnOperatorThatHasDrawnBeforeItFailedDrawsTheSame) {
  const at::Tensor x = at::ones({20'000}).to(fake(0));
  fake_generator(0).drawn = 5;
  const auto [plain, plain_mask] = at::native_dropout(x, 0.5, true);
  const auto drawn = fake_generator(0).drawn;
  MemoryBudget budget(GiB(1), on_fake());
  auto step = budget.step();
  const at::Tensor spare = x * 2;
  c10::getDeviceAllocator(c10::kPrivateUse1)->emptyCache();
  const auto stats = at::accelerator::getDeviceStats(0);
  FakeMemory::set_capacity(stats.reserved_bytes[0].current + 60'000);
  const auto failed = FakeMemory::times_out_of_memory();
  fake_generator(0).drawn = 5;
  const auto [mine, mask] = at::native_dropout(x, 0.5, true);
  EXPECT_GT(FakeMemory::times_out_of_memory(), failed);
  EXPECT_EQ(fake_generator(0).drawn, drawn);
  EXPECT_TRUE(same_bits(mine, plain));
  EXPECT_TRUE(same_bits(mask, plain_mask));
  FakeMemory::set_capacity(FakeMemory::kNoEnd);
  step.finish();
}

TEST_F(DeviceBudget, AnOperatorThatChangesItsArgumentIsNotRunAgain) {
  const at::Tensor a = at::eye(64).to(fake(0));
  at::Tensor sum = at::zeros({64, 64}, a.options());
  MemoryBudget budget(GiB(1), on_fake());
  auto step = budget.step();
  // It could run once this is dropped.
  const at::Tensor spare = at::mm(a, a);
  c10::getDeviceAllocator(c10::kPrivateUse1)->emptyCache();
  FakeMemory::set_capacity(at::accelerator::getDeviceStats(0).reserved_bytes[0].current + 8192);
  set_fake_workspace(16'384);
  EXPECT_THROW(sum.addmm_(a, a), c10::OutOfMemoryError);
  EXPECT_TRUE(same_bits(sum, at::zeros({64, 64})));
  step.finish();
}

TEST_F(DeviceBudget, TellsWhatDoesNotFitOnceItIsKnown) {
  Network network(fake(0), 3, 64);
  const Tensors plain = network.gradients();
  const Bytes before = live_bytes(fake(0));
  MemoryBudget budget(live_bytes(fake(0)) + KiB(4), on_fake());
  const auto text = [&] {
    return testing::error_of<BudgetError>([&] {
      for (int i = 0; i < 3; ++i) network.gradients_under(budget);
    });
  }();
  EXPECT_THAT(text, HasSubstr("aten::"));
  EXPECT_THAT(text, HasSubstr("With "));
  for (const at::Tensor& leaf : network.leaves()) leaf.mutable_grad() = at::Tensor();
  EXPECT_EQ(live_bytes(fake(0)), before) << "nothing is left behind";
  EXPECT_EQ(tape::living_records(), 0);
  MemoryBudget enough(network.limit_at(0.6), on_fake());
  EXPECT_TRUE(same_bits(network.gradients_under(enough), plain));
}

TEST_F(DeviceBudget, AnErrorInsideAStepLeavesNothingBehind) {
  const at::Tensor x = at::randn({100, 100}).to(fake(0));
  const Bytes before = live_bytes(fake(0));
  MemoryBudget budget(GiB(1), paranoid_on_fake());
  {
    auto step = budget.step();
    const at::Tensor y = x.sin();
    EXPECT_THROW(at::mm(y, y.narrow(0, 0, 3)), c10::Error);
    EXPECT_TRUE(same_bits(y, x.cpu().sin()));
  }
  EXPECT_EQ(live_bytes(fake(0)), before);
  EXPECT_EQ(tape::living_records(), 0);
}

TEST_F(DeviceBudget, BesideTheCpusEachKeepsItsOwn) {
  Network on_device(fake(0), 4, 64);
  Network on_host(c10::kCPU, 4, 2048);
  const Tensors plain_device = on_device.gradients();
  const Tensors plain_host = on_host.gradients();
  // The fake device's kernels take the host's memory for their results: little, beside the host's
  // own. What goes first goes by the time as well: the room is such that any order does, also where
  // a gradient has gone before it is accumulated.
  MemoryBudget host(on_host.limit_at(0.8), {.min_bytes = Bytes(1)});
  MemoryBudget device(on_device.limit_at(0.75), on_fake());
  for (int i = 0; i < 4; ++i) {
    auto outer = i % 2 == 0 ? host.step() : device.step();
    auto inner = i % 2 == 0 ? device.step() : host.step();
    EXPECT_TRUE(same_bits(on_device.gradients(), plain_device)) << "step " << i;
    EXPECT_TRUE(same_bits(on_host.gradients(), plain_host)) << "step " << i;
    inner.finish();
    outer.finish();
    EXPECT_GT(host.report().dropped, 0);
    EXPECT_GT(device.report().dropped, 0);
    EXPECT_LE(host.report().peak, host.limit());
    if (i > 0) {
      EXPECT_LE(device.report().peak, device.limit());
    }
  }
}

TEST_F(DeviceBudget, OfSeveralDevicesEachKeepsItsOwn) {
  Network first(fake(0), 4, 64);
  Network second(fake(1), 4, 128);
  const Tensors plain_first = first.gradients();
  const Tensors plain_second = second.gradients();
  MemoryBudget budget_of_first(first.limit_at(0.6), on_fake(0));
  MemoryBudget budget_of_second(second.limit_at(0.6), on_fake(1));
  for (int i = 0; i < 3; ++i) {
    auto outer = budget_of_first.step();
    auto inner = budget_of_second.step();
    EXPECT_TRUE(same_bits(first.gradients(), plain_first)) << "step " << i;
    EXPECT_TRUE(same_bits(second.gradients(), plain_second)) << "step " << i;
    inner.finish();
    outer.finish();
    EXPECT_GT(budget_of_first.report().dropped, 0);
    EXPECT_GT(budget_of_second.report().dropped, 0);
    if (i == 0) continue;
    EXPECT_LE(budget_of_first.report().peak, budget_of_first.limit());
    EXPECT_LE(budget_of_second.report().peak, budget_of_second.limit());
  }
}

TEST_F(DeviceBudget, OfTwoOnOneDeviceTheSmallerBinds) {
  Network network(fake(0), 4, 64);
  const Tensors plain = network.gradients();
  MemoryBudget small(network.limit_at(0.9), on_fake());
  MemoryBudget large(GiB(1), on_fake());
  for (int i = 0; i < 3; ++i) {
    auto outer = small.step();
    EXPECT_TRUE(same_bits(network.gradients_under(large), plain)) << "step " << i;
    outer.finish();
  }
  EXPECT_LE(large.report().peak, small.limit());
}

TEST_F(DeviceBudget, IsAPartOfWhatTheDeviceHas) {
  FakeMemory::set_capacity(1000, 3);
  EXPECT_EQ(MemoryBudget::fraction_of_device(0.5, on_fake(3)).limit(), Bytes(500));
  FakeMemory::set_capacity(FakeMemory::kNoEnd, 3);
}

TEST_F(DeviceBudget, NamesADeviceThatIsNotThere) {
  const auto text = testing::error_of<UsageError>(
      [] { MemoryBudget budget(GiB(1), {.device = c10::Device("cuda:0")}); });
  EXPECT_THAT(text, HasSubstr("no device cuda:0 here, but cpu and fake:0 to :7"));
}

TEST_F(DeviceBudget, WarnsOnceWhereTheStepsWorkElsewhere) {
  const testing::WarningLog warnings;
  const auto step_on = [](MemoryBudget& budget, c10::Device device) {
    auto step = budget.step();
    const at::Tensor x = at::ones({8}, at::device(device));
    x.exp().mul(x);
    step.finish();
  };
  MemoryBudget used(GiB(1), on_fake()), idle(GiB(1), on_fake());
  step_on(used, fake(0));
  { idle.step().finish(); }
  EXPECT_THAT(warnings.texts, ::testing::IsEmpty());
  step_on(idle, c10::kCPU);
  step_on(idle, c10::kCPU);
  ASSERT_EQ(warnings.texts.size(), 1U);
  EXPECT_THAT(
      warnings.texts[0],
      AllOf(HasSubstr("memory budget of 1.1 GB: no bytes of " + fake(0).str() +
                      " were live in a step of"),
            HasSubstr("so that the budget binds nothing. Give it the device of the tensors")));
}

}  // namespace
}  // namespace reprise
