// The smallest byte budget in which an estimated step would run, and what it would cost there.
#pragma once

#include <reprise/planners.h>
#include <reprise/step_trace.h>

#include <chrono>
#include <nlohmann/json_fwd.hpp>
#include <optional>

namespace reprise::app {

// The time that each search may take, above zero.
struct BudgetSearch {
  using Time = std::chrono::duration<double>;
  Time trials{1};  // simulations: all in search of the least budget, or the one of a given budget
  Time plan{1};    // hindsight's plan for one budget, which uses all of its time
};
// A budget under which a step takes longer than so many plain ones counts as too small.
inline constexpr double kSlowestStep = 2;

struct BudgetCost {
  Bytes budget;
  // The slowdown with decisions made as the step runs, and with a plan (hindsight). Nothing if the
  // step would not fit, or take longer than kSlowestStep.
  std::optional<double> online, planned;
  // The search for the least ended early: there may be a smaller budget.
  bool is_cut = false;
  // The simulation of `online` ran out of time.
  bool online_is_unknown = false;
  std::optional<double> slowdown() const {
    if (!planned || !online) return planned ? planned : online;
    return std::min(*planned, *online);
  }
};

BudgetCost cost_of_budget(const StepTrace& trace, Bytes budget, const BudgetSearch& search = {});

// Bisects the budgets that a running step can hold, down to a hundredth of the range between the
// step's floor and its plain peak. The search may end early, because a simulation's time grows with
// the square of the step's operators.
BudgetCost least_budget(const StepTrace& trace, const BudgetSearch& search = {});

nlohmann::json json_of(const BudgetCost& cost);

}  // namespace reprise::app
