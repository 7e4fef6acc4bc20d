// What to drop when the future is known: the value that costs least to make again for each byte and
// each second for which nobody needs it.
//
//   score = (own cost + that of the dropped values that it would be made from, or that of loading)
//           / (bytes * (time until it is needed next) ^ beta)
//
// A value is needed next when it, or something dropped that is made from it, is read.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "plan/step/graph_plan.h"
#include "plan/step/step_graph.h"

namespace reprise::plan {

struct NextUseOptions {
  std::int64_t budget = 0;  // bytes, constants included
  double beta = 0.5;
  // Gives up where more is run again.
  std::int64_t most_nanoseconds = 0;
  // For storages that cross that slot, what their score is multiplied by meanwhile; empty: nothing.
  StepGraph::Index slot = 0;
  std::vector<double> factors = {};
  // Asked now and then; true gives up.
  std::function<bool()> is_cancelled = {};
};

// Nothing if the step does not fit.
std::optional<GraphPlan> plan_by_next_use(const StepGraph& graph, const NextUseOptions& options);

}  // namespace reprise::plan
