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

// Runs the halves as a compiler does: backward makes values again just before the operators that the
// plan names, and reads what was made last. Without `runs` it makes again what was not handed over,
// just before the first operator that needs it, and keeps it until the last. Gives the peak.
std::int64_t peak_of(const SplitStep& step, const std::vector<bool>& over,
                     std::vector<std::vector<Index>> runs = {}) {
  const auto size = static_cast<Index>(step.operators.size());
  std::vector<Index> maker(step.bytes.size());
  for (Index op = 0; op < size; ++op) {
    for (const Index value : step.operators[op].makes) maker[value] = op;
  }
  if (runs.empty()) {
    runs.resize(size);
    const std::function<void(Index, Index)> need = [&](Index value, Index slot) {
      std::vector<Index>& of = runs[maker[value]];
      if (over[value] || maker[value] >= step.half || !of.empty()) return;
      of.push_back(slot);
      for (const Index read : step.operators[maker[value]].reads) need(read, slot);
    };
    for (Index op = step.half; op < size; ++op) {
      for (const Index read : step.operators[op].reads) need(read, op);
    }
  }
  struct Instance {
    Index value, last;
  };
  std::vector<Instance> made;
  std::vector<std::size_t> newest(step.bytes.size());
  std::vector<std::pair<Index, std::int64_t>> order;  // operators, and bytes beside
  for (Index slot = 0; slot < size; ++slot) {
    for (Index op = 0; op < slot && op < step.half; ++op) {
      if (std::ranges::count(runs[op], slot) > 0) order.emplace_back(op, step.beside[slot]);
    }
    order.emplace_back(slot, step.beside[slot]);
  }
  std::vector<std::size_t> first(order.size());
  for (Index at = 0; at < order.size(); ++at) {
    const SplitStep::Operator& op = step.operators[order[at].first];
    for (const Index value : op.reads) made[newest[value]].last = at;
    first[at] = made.size();
    for (const Index value : op.makes) {
      newest[value] = made.size();
      made.push_back({value, at});
    }
  }
  std::int64_t peak = 0;
  for (Index at = 0; at < order.size(); ++at) {
    std::int64_t bytes = order[at].second;
    const std::size_t end = at + 1 < order.size() ? first[at + 1] : made.size();
    for (std::size_t i = 0; i < end; ++i) {
      if (made[i].last >= at) bytes += step.bytes[made[i].value];
    }
    peak = std::max(peak, bytes);
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
  const SplitPlan plan = smallest_split(step, {.moves = 2000});
  EXPECT_TRUE(plan.fits);
  EXPECT_LE(plan.peak, 1000);
  EXPECT_LE(peak_of(step, plan.handed_over), plan.peak);
}

// A chain of n values needs about three times the cube root of n in memory where each may be made
// twice in backward. It needs about twice the square root where each may be made once.
TEST(SplitPlan, MakesValuesAgainMoreThanOnceForFewerBytes) {
  const SplitStep step = chain(40);
  const SplitPlan once = smallest_split(step, {.moves = 6000});
  const SplitPlan repeats = smallest_split(step, {.moves = 6000, .repeats = true});
  EXPECT_THAT(once.runs, testing::Each(testing::SizeIs(testing::Le(1))));
  EXPECT_THAT(repeats.runs, testing::Contains(testing::SizeIs(testing::Gt(1))));
  EXPECT_LT(repeats.peak, 0.9 * static_cast<double>(once.peak));
  EXPECT_EQ(peak_of(step, repeats.handed_over, repeats.runs), repeats.peak);
  EXPECT_FALSE(plan_split(step, {.budget = repeats.peak, .moves = 6000}).fits);
}

TEST(SplitPlan, RunsOperatorsAgainInBackwardAlone) {
  const SplitStep step = chain(24);
  const SplitPlan plan = smallest_split(step, {.moves = 5000, .repeats = true});
  for (const std::vector<Index>& runs : plan.runs) {
    EXPECT_THAT(runs, testing::Each(testing::Ge(step.half)));
  }
  for (Index op = step.half; op < plan.runs.size(); ++op)
    EXPECT_THAT(plan.runs[op], testing::IsEmpty());
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
    const std::int64_t budget = plain * number(70, 100) / 100;
    const SplitPlan plan = plan_split(step, {.budget = budget, .moves = 500});
    if (plan.fits) RC_ASSERT(peak_of(step, plan.handed_over) <= plan.peak);
    const SplitPlan repeats = plan_split(step, {.budget = budget, .moves = 500, .repeats = true});
    if (repeats.fits) RC_ASSERT(peak_of(step, repeats.handed_over, repeats.runs) == repeats.peak);
  }));
}

}  // namespace
}  // namespace reprise::plan
