// Makes a graph plan cheaper by simulated annealing: runs are removed, added and moved, and the
// bytes above the budget have a price that goes up while there are any.
#pragma once

#include <cstdint>
#include <functional>

#include "plan/step/graph_plan.h"
#include "plan/step/step_graph.h"

namespace reprise::plan {

struct AnnealingOptions {
  std::int64_t budget = 0;  // bytes, constants included
  std::int64_t moves = 0;   // in all; that many give the same plan each time
  std::uint64_t seed = 0;
  // Asked now and then with the share of the moves that are done; true ends it.
  std::function<bool()> is_over = {};
};

// The cheapest plan that was met and keeps to the budget; `plan` itself if none was, which may not.
GraphPlan anneal(const StepGraph& graph, const GraphPlan& plan, const AnnealingOptions& options);

}  // namespace reprise::plan
