// The smallest byte budget in which an estimated step would run, and what it would cost there.
#pragma once

#include <reprise/planners.h>
#include <reprise/step_trace.h>

#include <chrono>
#include <nlohmann/json_fwd.hpp>
#include <optional>

namespace reprise::app {

// How long the searches may take, each above zero.
struct BudgetSearch {
  using Time = std::chrono::duration<double>;
  Time trials{1};  // of budgets as the step runs: all in search of the least, or that of one
  Time plan{1};    // with hindsight, for one budget; it takes all of it
};
// A step that takes longer than so many plain ones is of no use to anybody.
inline constexpr double kSlowestStep = 2;

struct BudgetCost {
  Bytes budget;
  // How much longer the step takes: with decisions made as it runs, and with a plan (hindsight).
  // Nothing where it would not fit, or take longer than kSlowestStep.
  std::optional<double> online, planned;
  // The search for the least ended early: there may be a smaller one.
  bool is_cut = false;
  // There was no time to see what `online` is.
  bool online_is_unknown = false;
  std::optional<double> slowdown() const {
    if (!planned || !online) return planned ? planned : online;
    return std::min(*planned, *online);
  }
};

BudgetCost cost_of_budget(const StepTrace& trace, Bytes budget, const BudgetSearch& search = {});

// Found by bisection among budgets that decisions made as the step runs can hold, to a hundredth of
// what lies between the step's floor and its plain peak, or as far as the time lets it: simulating
// a step takes a time that grows with the square of its operators.
BudgetCost least_budget(const StepTrace& trace, const BudgetSearch& search = {});

nlohmann::json json_of(const BudgetCost& cost);

}  // namespace reprise::app
