// Steps whose halves are compiled apart: what a plan hands over is all that there is to know of it.
#include "plan/step/split_plan.h"

#include <gmock/gmock.h>
#include <rapidcheck.h>
#include <reprise/error.h>

#include <algorithm>
#include <functional>
#include <set>

#include "plan/step/graph_plan.h"
#include "plan/step/hindsight.h"

namespace reprise::plan {
namespace {

using Index = SplitStep::Index;

// Forward makes value i from value i - 1; backward reads them from the last to the first.
SplitStep chain(Index layers) {
  SplitStep step;
  for (Index i = 0; i < layers; ++i) {
    step.bytes.push_back(100);
    step.operators.push_back({10, i == 0 ? std::vector<Index>{} : std::vector<Index>{i - 1}, {i}});
  }
  step.half = layers;
  for (Index i = layers; i-- > 0;) step.operators.push_back({10, {i}, {}});
  step.beside.assign(step.operators.size(), 0);
  return step;
}

// Runs the halves as a compiler does: backward makes again what was not handed over, just before
// the first operator that needs it, and keeps it until the last. Gives the peak.
std::int64_t peak_of(const SplitStep& step, const std::vector<bool>& over) {
  std::vector<std::size_t> maker(step.bytes.size());
  for (std::size_t op = 0; op < step.operators.size(); ++op) {
    for (const Index value : step.operators[op].makes) maker[value] = op;
  }
  struct Run {
    std::size_t op, slot;
    bool again;
  };
  std::vector<Run> runs;
  for (std::size_t op = 0; op < step.half; ++op) runs.push_back({op, op, false});
  std::set<std::size_t> again;
  const std::function<void(Index, std::size_t)> need = [&](Index value, std::size_t slot) {
    if (over[value] || maker[value] >= step.half || !again.insert(maker[value]).second) return;
    for (const Index read : step.operators[maker[value]].reads) need(read, slot);
    runs.push_back({maker[value], slot, true});
  };
  for (std::size_t op = step.half; op < step.operators.size(); ++op) {
    for (const Index read : step.operators[op].reads) need(read, op);
    runs.push_back({op, op, false});
  }
  const auto is_second = [&](const Run& run, Index value) {
    return (run.again || run.op >= step.half) && !over[value] && maker[value] < step.half;
  };
  std::vector<std::size_t> last(2 * step.bytes.size(), 0);
  for (std::size_t at = 0; at < runs.size(); ++at) {
    for (const Index value : step.operators[runs[at].op].makes)
      last[2 * value + runs[at].again] = at;
    for (const Index value : step.operators[runs[at].op].reads) {
      last[2 * value + is_second(runs[at], value)] = at;
    }
  }
  std::set<std::size_t> live;
  std::int64_t peak = 0;
  for (std::size_t at = 0; at < runs.size(); ++at) {
    for (const Index value : step.operators[runs[at].op].makes)
      live.insert(2 * value + runs[at].again);
    std::int64_t bytes = step.beside[runs[at].slot];
    for (const std::size_t each : live) bytes += step.bytes[each / 2];
    peak = std::max(peak, bytes);
    std::erase_if(live, [&](std::size_t each) { return last[each] <= at; });
  }
  return peak;
}

TEST(SplitPlan, HandsOverEverythingWhereThereIsRoom) {
  const SplitPlan plan = plan_split(chain(8), {.budget = 1000, .moves = 100});
  EXPECT_TRUE(plan.fits);
  EXPECT_EQ(plan.recompute_nanoseconds, 0);
  EXPECT_THAT(plan.handed_over, testing::Each(true));
  EXPECT_EQ(plan.peak, 800);
}

TEST(SplitPlan, MakesAgainWhatDoesNotFit) {
  const SplitStep step = chain(9);
  const SplitPlan plan = plan_split(step, {.budget = 600, .moves = 2000});
  ASSERT_TRUE(plan.fits);
  EXPECT_LE(peak_of(step, plan.handed_over), 600);
  EXPECT_GT(plan.recompute_nanoseconds, 0);
  EXPECT_GE(static_cast<double>(plan.recompute_nanoseconds), plan.bound_nanoseconds);
}

TEST(SplitPlan, FitsNoWhereBelowWhatOneOperatorNeeds) {
  EXPECT_FALSE(plan_split(chain(5), {.budget = 150, .moves = 500}).fits);
}

TEST(SplitPlan, CountsBytesBeside) {
  SplitStep step = chain(6);
  step.beside[6] = 300;
  const SplitPlan plan = plan_split(step, {.budget = 700, .moves = 2000});
  ASSERT_TRUE(plan.fits);
  EXPECT_LE(peak_of(step, plan.handed_over), 700);
}

TEST(SplitPlan, FindsAPlanFarBelowThePlainStep) {
  const SplitStep step = chain(16);
  const SplitPlan plan = smallest_split(step, 2000);
  EXPECT_TRUE(plan.fits);
  EXPECT_LE(plan.peak, 1000);
  EXPECT_LE(peak_of(step, plan.handed_over), plan.peak);
}

TEST(SplitPlan, RefusesWrongSteps) {
  SplitStep step = chain(2);
  step.operators[0].reads = {1};
  EXPECT_THROW(plan_split(step, {.budget = 1000, .moves = 1}), UsageError);
  step = chain(2);
  step.operators[1].makes = {0};
  EXPECT_THROW(plan_split(step, {.budget = 1000, .moves = 1}), UsageError);
  step = chain(2);
  step.kept = {7};
  EXPECT_THROW(plan_split(step, {.budget = 1000, .moves = 1}), UsageError);
  step = chain(2);
  step.half = 9;
  EXPECT_THROW(plan_split(step, {.budget = 1000, .moves = 1}), UsageError);
}

// The plan's own peak is that of the halves which a compiler makes of what it hands over.
TEST(SplitPlan, TellsThePeakOfItsHalves) {
  EXPECT_TRUE(rc::check([] {
    SplitStep step;
    const auto number = [](int least, int most) { return *rc::gen::inRange(least, most + 1); };
    const int forward = number(2, 10), backward = number(1, 10);
    for (int op = 0; op < forward + backward; ++op) {
      SplitStep::Operator made{number(1, 50), {}, {}};
      const auto known = static_cast<int>(step.bytes.size());
      for (int i = number(0, 3); i > 0 && known > 0; --i) {
        const auto read = static_cast<Index>(number(0, known - 1));
        if (std::ranges::find(made.reads, read) == made.reads.end()) made.reads.push_back(read);
      }
      made.makes = {static_cast<Index>(step.bytes.size())};
      step.bytes.push_back(number(1, 100));
      step.operators.push_back(made);
      step.beside.push_back(number(0, 20));
    }
    step.half = static_cast<Index>(forward);
    const std::int64_t plain = cost_of(step.graph(), GraphPlan(step.graph())).peak;
    const SplitPlan plan =
        plan_split(step, {.budget = plain * number(70, 100) / 100, .moves = 500});
    if (!plan.fits) return;
    RC_ASSERT(peak_of(step, plan.handed_over) <= plan.peak);
  }));
}

}  // namespace
}  // namespace reprise::plan
