#include "apps/cli/commands/least_budget.h"

#include <reprise/error.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

namespace reprise::app {

namespace {

constexpr int kHalvings = 7;

using StepOutcome = SimulatedStep::Outcome;
using Clock = std::chrono::steady_clock;
using Moment = std::chrono::time_point<Clock, BudgetSearch::Time>;

SimulatedStep online(const StepTrace& trace, Bytes budget, Moment end) {
  // A limit of zero would mean no limit.
  const BudgetSearch::Time none_left(1e-9), left = end - Moment(Clock::now());
  return trace.simulate({.budget = budget,
                         .heuristic = Heuristic::kHUp,
                         .slowdown_limit = kSlowestStep,
                         .time_limit = std::max(left, none_left),
                         .by_index = true});
}

// Nothing if the step has more bytes than a plan can count.
std::optional<double> planned_cost(const StepTrace& trace, Bytes budget, BudgetSearch::Time time) {
  try {
    const StepPlan plan = planners::hindsight(trace, {.budget = budget, .time_limit = time});
    if (plan.fits && plan.slowdown <= kSlowestStep) return plan.slowdown;
  } catch (const UsageError&) {
  }
  return std::nullopt;
}

}  // namespace

BudgetCost cost_of_budget(const StepTrace& trace, Bytes budget, const BudgetSearch& search) {
  const SimulatedStep step = online(trace, budget, Clock::now() + search.trials);
  BudgetCost cost{
      .budget = budget, .online = {}, .planned = planned_cost(trace, budget, search.plan)};
  if (step.outcome == StepOutcome::kFits) cost.online = step.slowdown;
  cost.online_is_unknown = step.outcome == StepOutcome::kOutOfTime;
  return cost;
}

// A larger budget takes less time to simulate, so one that takes too long counts as too small.
BudgetCost least_budget(const StepTrace& trace, const BudgetSearch& search) {
  constexpr int kTrials = 4;  // that may take long
  const Moment end = Clock::now() + search.trials;
  std::int64_t works = trace.plain_peak().count, fails = trace.floor().count;
  bool is_cut = false;
  const auto does_work = [&](std::int64_t budget) {
    const Moment by = std::min(end, Moment(Clock::now()) + search.trials / kTrials);
    const StepOutcome outcome = online(trace, Bytes(budget), by).outcome;
    is_cut |= outcome == StepOutcome::kOutOfTime;
    return outcome == StepOutcome::kFits;
  };
  if (does_work(fails)) works = fails;
  for (int i = 0; i < kHalvings && works > fails; ++i) {
    const std::int64_t middle = fails + (works - fails) / 2;
    (does_work(middle) ? works : fails) = middle;
  }
  BudgetCost cost = cost_of_budget(trace, Bytes(works), search);
  cost.is_cut = is_cut;
  return cost;
}

nlohmann::json json_of(const BudgetCost& cost) {
  nlohmann::json row = {{"budget_bytes", cost.budget.count}, {"fits", bool(cost.slowdown())}};
  if (cost.is_cut) row["search_was_cut"] = true;
  if (cost.online_is_unknown) row["online_is_unknown"] = true;
  if (cost.planned) row["planned_slowdown"] = *cost.planned;
  if (cost.online) row["online_slowdown"] = *cost.online;
  return row;
}

}  // namespace reprise::app
