// An observer of a step on an accelerator is told what happened in order, when the step ends, with
// the times of the device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <reprise/budget_extensions.h>
#include <reprise/step_trace.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/fake_device/tape_testing.h"

namespace reprise {
namespace {

using namespace testing_support;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Told : BudgetObserver {
  void recorded(const Operator& done) noexcept override {
    what.push_back(std::string(done.name));
    add(done.time.count(), done.at);
    read += done.arguments.size();
    made += done.results.size();
  }
  void dropped(const Value& value) noexcept override {
    what.push_back("drop " + std::string(value.maker));
    add(0, value.at);
  }
  void restored(const Value& value) noexcept override {
    what.push_back("restore " + std::string(value.maker));
    add(0, value.at);
  }
  void replayed(const Replay& done) noexcept override {
    what.push_back("replay " + std::string(done.name));
    add(done.time.count(), done.at);
  }
  void released(const Memory&) noexcept override { ++releases; }

  void add(double time, std::optional<Seconds> when) {
    seconds.push_back(time);
    at.push_back(when.value_or(Seconds(-1)).count());
  }
  std::vector<std::string> what;
  std::vector<double> seconds, at;
  std::size_t read = 0, made = 0, releases = 0;
};

BudgetOptions observed(std::shared_ptr<BudgetObserver> observer) {
  BudgetOptions options = paranoid_on_fake();
  options.observer = std::move(observer);
  return options;
}

class DeviceObserver : public OnFakeDevice {
 protected:
  const at::Tensor x = at::ones({1024}).to(fake(0));
  // An operator of fake_operators.cpp makes its result, and its kernel reads one such tensor and
  // writes another one.
  static constexpr double kOne = 2e-6 + 2 * 4096e-9;
};

TEST_F(DeviceObserver, IsToldAllInOrderWithTheDevicesTimesWhenTheStepEnds) {
  const auto told = std::make_shared<Told>();
  MemoryBudget budget(GiB(1), observed(told));
  const WorkIsLate late;
  const auto before = FakeStreams::of(0).waits();
  {
    auto step = budget.step();
    const at::Tensor y = x.sin();
    const at::Tensor z = y.cos();
    EXPECT_THAT(told->what, IsEmpty());
    EXPECT_EQ(FakeStreams::of(0).waits(), before);
    step.finish();
  }
  EXPECT_EQ(FakeStreams::of(0).waits(), before + 1) << "the step waits once, at its end";
  EXPECT_THAT(std::vector(told->what.begin(), told->what.begin() + 6),
              ElementsAre("aten::sin", "drop aten::sin", "replay aten::sin", "restore aten::sin",
                          "aten::cos", "drop aten::cos"));
  EXPECT_GT(told->what.size(), 6U) << "both come back when the step ends";
  double end = 0;
  for (std::size_t i = 0; i < told->what.size(); ++i) {
    const bool is_work = told->what[i].starts_with("aten::") || told->what[i].starts_with("replay");
    EXPECT_NEAR(told->seconds[i], is_work ? kOne : 0, 1e-9) << told->what[i];
    if (is_work) end += kOne;
    EXPECT_NEAR(told->at[i], end, 1e-9) << told->what[i];
  }
  EXPECT_EQ(told->read, 2U);
  EXPECT_EQ(told->made, 2U);
}

TEST_F(DeviceObserver, IsToldEachStepFromItsBeginning) {
  const auto told = std::make_shared<Told>();
  MemoryBudget budget(GiB(1), observed(told));
  for (int i = 0; i < 2; ++i) {
    auto step = budget.step();
    const at::Tensor y = x.sin();
    step.finish();
    EXPECT_NEAR(told->at.front(), kOne, 1e-9) << "step " << i;
    *told = {};
  }
}

TEST_F(DeviceObserver, IsToldGuessesWhereEventsFail) {
  using enum FakeEvents::Use;
  // A test before may have left events that are freed meanwhile.
  const auto alive = FakeEvents::alive.load();
  for (const auto use : {kMake, kRecord, kQuery, kElapsed}) {
    const EventsFail fail(use);
    const auto told = std::make_shared<Told>();
    MemoryBudget budget(GiB(1), observed(told));
    auto step = budget.step();
    const at::Tensor y = x.sin();
    step.finish();
    ASSERT_FALSE(told->what.empty());
    EXPECT_EQ(told->what.front(), "aten::sin");
    EXPECT_GT(told->seconds.front(), 0);
    EXPECT_TRUE(std::ranges::is_sorted(told->at));
  }
  EXPECT_LE(FakeEvents::alive, alive);
}

TEST_F(DeviceObserver, IsToldOfAStepThatFailed) {
  const auto told = std::make_shared<Told>();
  MemoryBudget budget(GiB(1), observed(told));
  EXPECT_THROW(
      {
        auto step = budget.step();
        const at::Tensor y = x.sin();
        at::mm(y, y);
      },
      c10::Error);
  ASSERT_FALSE(told->what.empty());
  EXPECT_EQ(told->what.front(), "aten::sin");
}

TEST_F(DeviceObserver, ARecordedStepIsSimulatedByTheDevicesTimes) {
  std::string folder = (std::filesystem::temp_directory_path() / "reprise-test-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string file = folder + "/step.jsonl";
  {
    const auto recorder = std::make_shared<TraceRecorder>(file);
    BudgetOptions options = on_fake();
    options.observer = recorder;
    MemoryBudget budget(GiB(1), options);
    auto step = budget.step();
    const at::Tensor y = x.sin();
    const at::Tensor z = y.cos();
    step.finish();
    recorder->close();
  }
  EXPECT_NEAR(StepTrace::read(file).base().count(), 2 * kOne, 2e-9);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace reprise
