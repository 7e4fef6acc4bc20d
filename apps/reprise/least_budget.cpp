// Budgets are tried on the trace of the estimated step.
#include "apps/reprise/least_budget.h"

#include <reprise/error.h>

#include <algorithm>
#include <chrono>

namespace reprise::app {

namespace {

constexpr int kHalvings = 7;
constexpr std::chrono::duration<double> kSearch(kBudgetSearchSeconds);

std::optional<double> online_cost(const StepTrace& trace, Bytes budget) {
  const SimulatedStep step = trace.simulate(
      {.budget = budget, .heuristic = "h_up", .by_index = true, .slowdown_limit = kSlowestStep});
  if (step.outcome != SimulatedStep::Outcome::kFits) return std::nullopt;
  return step.slowdown;
}

// Nothing where the step is beyond what a plan can count.
std::optional<double> planned_cost(const StepTrace& trace, Bytes budget) {
  try {
    const StepPlan plan = planners::hindsight(trace, {.budget = budget, .time_limit = kSearch});
    if (plan.fits && plan.slowdown <= kSlowestStep) return plan.slowdown;
  } catch (const UsageError&) {
  }
  return std::nullopt;
}

}  // namespace

BudgetCost cost_of_budget(const StepTrace& trace, Bytes budget) {
  return {.budget = budget,
          .online = online_cost(trace, budget),
          .planned = planned_cost(trace, budget)};
}

BudgetCost least_budget(const StepTrace& trace) {
  const auto end = std::chrono::steady_clock::now() + kSearch;
  std::int64_t works = trace.plain_peak().count, fails = trace.floor().count;
  if (online_cost(trace, Bytes(fails))) works = fails;
  bool is_cut = false;
  for (int i = 0; i < kHalvings && works > fails; ++i) {
    is_cut = std::chrono::steady_clock::now() > end;
    if (is_cut) break;
    const std::int64_t middle = fails + (works - fails) / 2;
    (online_cost(trace, Bytes(middle)) ? works : fails) = middle;
  }
  BudgetCost cost = cost_of_budget(trace, Bytes(works));
  cost.is_cut = is_cut;
  return cost;
}

}  // namespace reprise::app
