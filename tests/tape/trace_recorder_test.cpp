// A step's own trace is what the simulator takes it for: its operators, their time, and the
// bytes that the tape knew of, to the byte. The twin of tests/plan/simulate/reference_test.cpp,
// which reads simrd's logs.
#include <reprise/budget_extensions.h>
#include <reprise/error.h>
#include <reprise/step_trace.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string>

#include "tests/tape/testing.h"

namespace reprise {
namespace {

namespace fs = std::filesystem;

// Adds up what the trace should say, by itself.
struct Reckoning : BudgetObserver {
  explicit Reckoning(std::shared_ptr<BudgetObserver> also) : next(std::move(also)) {}

  void recorded(const Operator& done) noexcept override {
    next->recorded(done);
    ++operators;
    seconds += done.time.count();
    for (const Memory& each : done.arguments) {
      if (live.contains(each.id) || constants.contains(each.id)) continue;
      constants.insert(each.id);
      constant_bytes += each.bytes.count;
    }
    for (const Memory& each : done.results) {
      live[each.id] = each.bytes.count;
      live_bytes += each.bytes.count;
    }
    most = std::max(most, live_bytes);
    // In place is beside the old value.
    std::set<std::uint64_t> written;
    std::int64_t beside = 0;
    for (const std::size_t each : done.written) {
      const Memory& target = done.arguments[each];
      if (live.contains(target.id) && written.insert(target.id).second) {
        beside += target.bytes.count;
      }
    }
    most = std::max(most, live_bytes + beside);
  }
  void released(const Memory& memory) noexcept override {
    next->released(memory);
    const auto place = live.find(memory.id);
    if (place == live.end()) return;
    live_bytes -= place->second;
    live.erase(place);
  }

  std::shared_ptr<BudgetObserver> next;
  std::map<std::uint64_t, std::int64_t> live;
  std::set<std::uint64_t> constants;
  std::int64_t operators = 0, live_bytes = 0, constant_bytes = 0, most = 0;
  double seconds = 0;
};

class RecordedStep : public ::testing::Test {
 protected:
  RecordedStep() {
    std::string name = (fs::temp_directory_path() / "reprise-test-XXXXXX").string();
    if (!mkdtemp(name.data())) std::abort();
    folder = name;
    for (int i = 0; i < 4; ++i) {
      weights.push_back((at::randn({96, 96}) / 10).set_requires_grad(true));
    }
  }
  ~RecordedStep() override { fs::remove_all(folder); }

  // With views, writes in place, random numbers, several outputs, and parameters that are updated.
  void run_step(MemoryBudget& budget) const {
    at::manual_seed(7);
    auto step = budget.step();
    at::Tensor y = x;
    for (const at::Tensor& w : weights) {
      at::Tensor z = at::mm(y, w).view({8, 12, 96});
      z.mul_(1.5);
      z = std::get<0>(at::native_layer_norm(z, {96}, {}, {}, 1e-5));
      y = at::dropout(at::gelu(z), 0.1, true).reshape({96, 96}) + y;
    }
    y.square().sum().backward();
    {
      const at::NoGradGuard no_grad;
      for (const at::Tensor& w : weights) {
        w.sub_(w.grad() * 1e-3);
        w.mutable_grad().reset();
      }
    }
    y.reset();
    step.finish();
  }

  fs::path folder;
  at::Tensor x = at::randn({96, 96});
  std::vector<at::Tensor> weights;
};

class OwnTrace : public RecordedStep, public ::testing::WithParamInterface<const char*> {};

TEST_P(OwnTrace, IsTheStepThatWasRecorded) {
  const fs::path file = folder / GetParam();
  const auto recorder = std::make_shared<TraceRecorder>(file);
  const auto reckoning = std::make_shared<Reckoning>(recorder);
  MemoryBudget budget(GiB(64), {.observer = reckoning});
  run_step(budget);
  recorder->close();
  const StepTrace trace = StepTrace::read(file);
  EXPECT_EQ(trace.constants().count, reckoning->constant_bytes);
  EXPECT_EQ(trace.plain_peak().count, reckoning->most + reckoning->constant_bytes);
  EXPECT_GE(trace.operators(), reckoning->operators);
  // Not of what writes to parameters, which nothing could make again, is a record kept.
  EXPECT_LE(budget.report().operators, reckoning->operators);
  EXPECT_NEAR(trace.base().count(), reckoning->seconds,
              1e-9 * static_cast<double>(reckoning->operators));
  // And what the meter saw, but for the temporaries of operators and what malloc adds.
  EXPECT_NEAR(trace.plain_peak().megabytes(),
              (budget.report().peak - live_bytes()).megabytes() + trace.constants().megabytes(),
              0.15 * trace.plain_peak().megabytes());
  const SimulatedStep whole = trace.simulate({.budget = trace.plain_peak()});
  EXPECT_EQ(whole.outcome, SimulatedStep::Outcome::kFits);
  EXPECT_DOUBLE_EQ(whole.slowdown, 1);
  EXPECT_EQ(whole.evictions, 0);
  const Bytes less = trace.floor() + Bytes((trace.plain_peak() - trace.floor()).count / 2);
  const SimulatedStep half = trace.simulate({.budget = less, .by_index = true});
  EXPECT_EQ(half.outcome, SimulatedStep::Outcome::kFits);
  EXPECT_GT(half.recomputations, 0);
  EXPECT_LE(half.peak, less);
}

INSTANTIATE_TEST_SUITE_P(TraceRecorder, OwnTrace, ::testing::Values("step.jsonl", "step.log.gz"));

TEST_F(RecordedStep, IsTheSameProgramUnderPressure) {
  const auto events = [&](Bytes limit) {
    const auto recorder = std::make_shared<TraceRecorder>(folder / "trace.log");
    MemoryBudget budget(limit, {.observer = recorder});
    run_step(budget);
    recorder->close();
    const StepTrace trace = StepTrace::read(folder / "trace.log");
    EXPECT_EQ(budget.report().dropped + budget.report().packed > 0, limit < GiB(1));
    return std::tuple(trace.operators(), trace.plain_peak().count, trace.constants().count,
                      trace.floor().count);
  };
  EXPECT_EQ(events(GiB(64)), events(live_bytes() + KB(600)));
}

TEST_F(RecordedStep, AFileThatCannotBeWrittenIsAnError) {
  EXPECT_THROW(TraceRecorder(folder / "none" / "trace.log"), UsageError);
  const auto recorder = std::make_shared<TraceRecorder>("/dev/full");
  MemoryBudget budget(GiB(64), {.observer = recorder});
  run_step(budget);
  EXPECT_THROW(recorder->close(), Error);
}

}  // namespace
}  // namespace reprise
