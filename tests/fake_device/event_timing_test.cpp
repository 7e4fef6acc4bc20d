// What a budget on an accelerator measures, and what it never does for that: wait. The fake device
// has a clock of its own, by which every kernel takes as long as its arguments have bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <string>

#include "tape/accelerator.h"
#include "tests/fake_device/tape_testing.h"

namespace reprise {
namespace {

using namespace testing_support;
using tape::Accelerator;

constexpr std::int64_t kBytes = 51'200;

// An operator of fake_operators.cpp makes its result, and its kernel reads or writes that many
// tensors.
constexpr double seconds_of(int tensors) { return 2e-6 + tensors * kBytes * 1e-9; }

class DeviceTimes : public OnFakeDevice {
 protected:
  void TearDown() override {
    FakeStreams::slowness = 1;
    OnFakeDevice::TearDown();
  }

  // Drops the result of one operator, and replays it when the step ends.
  static StepReport step_with_one_replay(MemoryBudget& budget, const at::Tensor& x) {
    auto step = budget.step();
    const at::Tensor y = x.sin();
    step.finish();
    EXPECT_EQ(budget.report().replayed, 1);
    return budget.report();
  }
  // The device counts these.
  static std::int64_t waits() { return FakeStreams::of(0).waits(); }

  const at::Tensor x = at::ones({kBytes / 4}).to(fake(0));
  static constexpr double kSine = seconds_of(2);
};

TEST_F(DeviceTimes, AreThoseOfTheDevicesClockFromTheSecondStepOn) {
  MemoryBudget budget(GiB(1), paranoid_on_fake());
  const double guess = step_with_one_replay(budget, x).replay_time.count();
  EXPECT_GT(std::abs(guess - kSine), 0.1 * kSine) << "nothing is known before the first call";
  for (int i = 1; i < 4; ++i) {
    EXPECT_NEAR(step_with_one_replay(budget, x).replay_time.count(), kSine, 1e-9) << "step " << i;
  }
}

TEST_F(DeviceTimes, OfWorkThatIsLateArriveWhenItIsDone) {
  MemoryBudget budget(GiB(1), paranoid_on_fake());
  const auto before = waits();
  const WorkIsLate late;
  const double guess = step_with_one_replay(budget, x).replay_time.count();
  EXPECT_EQ(step_with_one_replay(budget, x).replay_time.count(), guess);
  FakeStreams::of(0).get_there();
  EXPECT_NEAR(step_with_one_replay(budget, x).replay_time.count(), kSine, 1e-9);
  EXPECT_EQ(waits(), before);
  FakeStreams::of(0).get_there();
}

TEST_F(DeviceTimes, AreTakenInTheFirstStepsAndThenInEveryHundredth) {
  MemoryBudget budget(GiB(1), paranoid_on_fake());
  const auto before = waits();
  for (std::int64_t step = 0; step <= 2 * Accelerator::kTimedEvery; ++step) {
    const auto recorded = FakeEvents::recorded.load(), asked = FakeEvents::queried.load();
    const double seconds = step_with_one_replay(budget, x).replay_time.count();
    const bool is_timed =
        step < Accelerator::kFirstTimed || (step > 0 && step % Accelerator::kTimedEvery == 0);
    EXPECT_EQ(FakeEvents::recorded - recorded, is_timed ? 2 : 0) << "step " << step;
    // A step reads what the one before it has measured.
    if (!is_timed && step % Accelerator::kTimedEvery > Accelerator::kFirstTimed) {
      EXPECT_EQ(FakeEvents::queried, asked) << "step " << step;
    }
    if (step == Accelerator::kTimedEvery - 1) FakeStreams::slowness = 3;
    if (step == Accelerator::kTimedEvery + 2) {
      EXPECT_GT(seconds, 1.1 * kSine) << "the device has become slower";
    }
  }
  EXPECT_EQ(waits(), before);
}

TEST_F(DeviceTimes, ASteadyStepUnderPressureRecordsNoEventAndWaitsForNothing) {
  Network network(fake(0));
  const Tensors plain = network.gradients();
  MemoryBudget budget(network.limit_at(0.6), [] {
    BudgetOptions options = on_fake();
    options.planning_time = std::chrono::milliseconds(200);
    return options;
  }());
  const auto before = waits(), recorded = FakeEvents::recorded.load();
  network.gradients_under(budget);
  EXPECT_GT(FakeEvents::recorded, recorded);
  EXPECT_LE(FakeEvents::recorded - recorded, 2 * budget.report().operators);
  for (int i = 1; i < 4; ++i) network.gradients_under(budget);
  EXPECT_EQ(waits(), before) << "steps that are timed wait for nothing either";
  ASSERT_TRUE(budget.wait_for_plan(Seconds(60)));
  for (int i = 4; i < 20; ++i) {
    const auto steady = FakeEvents::recorded.load(), asked = FakeEvents::queried.load();
    const auto before_step = waits();
    const Tensors mine = network.gradients_under(budget);
    EXPECT_EQ(waits(), before_step) << "step " << i;
    EXPECT_TRUE(same_bits(mine, plain)) << "step " << i;
    EXPECT_GT(budget.report().replayed, 0);
    EXPECT_GT(budget.report().followed, 0);
    EXPECT_EQ(FakeEvents::recorded, steady) << "step " << i;
    if (i > 4) {
      EXPECT_EQ(FakeEvents::queried, asked) << "step " << i;
    }
  }
}

// One value more than fits is dropped and replayed. Of seven operators two read two tensors each.
TEST_F(DeviceTimes, APlanIsMadeFromTimesThatArrivedBeforeItsStepEnded) {
  MemoryBudget budget(live_bytes(fake(0)) + Bytes(kBytes * 9 / 2), [] {
    BudgetOptions options = on_fake();
    options.planning_time = std::chrono::milliseconds(500);
    return options;
  }());
  const auto before = waits();
  const WorkIsLate late;
  for (int i = 0; i < 3; ++i) {
    auto step = budget.step();
    const at::Tensor y = x.sin();
    at::Tensor t = x.cos(), u = t * 2.0, v = u * 3.0;
    at::Tensor sum = t + u;
    t = u = at::Tensor();
    const at::Tensor all = sum + v;
    sum = v = at::Tensor();
    const at::Tensor last = y * 2.0;
    // Nothing has arrived when the calls are noted.
    if (i == 2) FakeStreams::of(0).get_there();
    step.finish();
    EXPECT_GT(budget.report().dropped, 0);
  }
  ASSERT_TRUE(budget.wait_for_plan(Seconds(60)));
  ASSERT_TRUE(budget.plan().has_value());
  const double plain = 5 * kSine + 2 * seconds_of(3);
  EXPECT_NEAR(budget.plan()->figures().slowdown, 1 + kSine / plain, 1e-3);
  EXPECT_EQ(waits(), before);
}

TEST_F(DeviceTimes, AnEventThatFailsCostsTheTimesAlone) {
  using enum FakeEvents::Use;
  Network network(fake(0), 3, 64);
  const Tensors plain = network.gradients();
  const Bytes limit = network.limit_at(0.6);
  // A test before may have left events that are freed meanwhile.
  const auto alive = FakeEvents::alive.load();
  for (const auto use : {kMake, kRecord, kQuery, kElapsed}) {
    for (const std::int64_t first : {0, 1}) {
      const EventsFail fail(use, first);
      MemoryBudget budget(limit, on_fake());
      for (int i = 0; i < 3; ++i) {
        EXPECT_TRUE(same_bits(network.gradients_under(budget), plain)) << "step " << i;
        EXPECT_GT(budget.report().replayed, 0);
        EXPECT_GT(budget.report().replay_time.count(), 0);
        if (i > 0) {
          EXPECT_LE(budget.report().peak, limit);
        }
      }
      EXPECT_LE(FakeEvents::alive, alive) << "a timer that stops frees its events";
    }
  }
  EXPECT_LE(FakeEvents::alive, alive);
}

TEST_F(DeviceTimes, EventsAreTriedAgainWithTheNextRound) {
  MemoryBudget budget(GiB(1), paranoid_on_fake());
  {
    const EventsFail fail(FakeEvents::Use::kMake);
    step_with_one_replay(budget, x);
  }
  for (std::int64_t step = 1; step <= Accelerator::kTimedEvery; ++step) {
    EXPECT_GT(std::abs(step_with_one_replay(budget, x).replay_time.count() - kSine), 0.1 * kSine);
  }
  EXPECT_NEAR(step_with_one_replay(budget, x).replay_time.count(), kSine, 1e-9);
}

TEST_F(DeviceTimes, ABudgetThatEndsLeavesNoEvent) {
  // A test before may have left events that are freed meanwhile.
  const auto alive = FakeEvents::alive.load();
  {
    const WorkIsLate late;
    MemoryBudget budget(GiB(1), on_fake());
    auto step = budget.step();
    const at::Tensor y = x.sin().cos();
    step.finish();
    EXPECT_GT(FakeEvents::alive, 0) << "measurements are pending";
  }
  EXPECT_LE(FakeEvents::alive, alive);
  FakeStreams::of(0).get_there();
}

TEST_F(DeviceTimes, TheTapesOwnTimeIsTheHosts) {
  Network network(fake(0), 3, 64);
  MemoryBudget budget(GiB(1), on_fake());
  for (int i = 0; i < 10; ++i) network.gradients_under(budget);
  const StepReport report = budget.report();
  EXPECT_GT(report.own_time.count(), 0);
  RecordProperty("nanoseconds_an_operator",
                 std::to_string(std::llround(1e9 * report.own_time.count()) / report.operators));
}

}  // namespace
}  // namespace reprise
