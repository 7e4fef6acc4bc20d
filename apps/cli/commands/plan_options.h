// The options of `reprise plan`.
#pragma once

#include <CLI/App.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli/training/asked_budget.h"
#include "apps/cli/training/pipelined/pipeline_choice.h"
#include "apps/cli/training/run_options.h"

namespace reprise::app {

// A planner of chains that planner_named() does not know, because it needs the rate of a store.
inline constexpr const char* kOffloadPlanner = "rotor_offload";

struct PlanOptions : RunOptions {
  std::string file;       // empty: the model is measured
  bool is_trace = false;  // whether the file holds a step's operators, and not a chain
  std::vector<std::string> planners;
  std::vector<AskedBudget> budgets;
  double seconds = 10;
  std::int64_t moves = 0;
  double store_bandwidth = 0;              // bytes a second, each way; 0: there is no store
  std::optional<PipelineChoice> pipeline;  // a schedule of a pipeline in place of planners
  std::string picture, schedule_out, chain_out, trace_out;
};

void bind(CLI::App& command, PlanOptions& options);
// Throws UsageError for values that cannot work, looks at the file, and completes planners and
// budgets.
void check(PlanOptions& options);

}  // namespace reprise::app
