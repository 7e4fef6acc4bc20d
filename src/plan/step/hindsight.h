// The best plan that can be found for a step that is known, and how far it can be from the best
// there is: policies first, then choices across the fullest moment, then annealing.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "plan/step/graph_plan.h"
#include "plan/step/step_graph.h"

namespace reprise::plan {

struct HindsightOptions {
  std::int64_t budget = 0;  // bytes, constants included
  // What is tried ends after that many seconds. With `moves` it does not count, and the plan is the
  // same each time.
  double seconds = 10;
  std::int64_t moves = 0;  // of the annealing; 0: as many as the seconds allow
  std::uint64_t seed = 0;
  // Asked now and then; true ends the search with what was found.
  std::function<bool()> is_cancelled = {};
};

struct Hindsight {
  std::optional<GraphPlan> plan;  // none if nothing that was tried fits
  GraphCost cost;
  // No plan takes less beyond the plain step, in running again and transfers.
  double least_nanoseconds = 0;
};

Hindsight plan_with_hindsight(const StepGraph& graph, const HindsightOptions& options);

}  // namespace reprise::plan
