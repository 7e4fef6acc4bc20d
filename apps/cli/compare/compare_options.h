// The options of `reprise compare`, and what `reprise frontier` shares with it.
#pragma once

#include <CLI/App.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli/training/asked_budget.h"
#include "apps/cli/training/run_options.h"

namespace reprise::app {

struct CompareOptions : RunOptions {
  std::vector<std::string> strategies;  // empty: the usual ones that fit the model
  std::int64_t steps = 5;
  std::vector<std::string> planners;  // instead of strategies
  std::vector<AskedBudget> budgets;   // of planners, or the one of --fill-budget
  double seconds = 10;                // of planners that search
  bool fill_budget = false;           // compares strategies at the largest batches
  std::string svg;
};

// The planners of steps, "hindsight" and "ilp"; all others plan for chains.
bool is_step_planner(const std::string& name);
// Throws UsageError, naming the option, for a planner that this build does not have.
void check_planner(const char* option, const std::string& name);

void bind(CLI::App& command, CompareOptions& options);
// Throws UsageError for values that cannot work, and completes strategies and budgets.
void check(CompareOptions& options);

}  // namespace reprise::app
