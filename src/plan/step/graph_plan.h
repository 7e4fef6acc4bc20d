// A plan for a step that is known: when operators run again. A value is then in memory from each
// run of its operator until the last read before the next; that is all there is to decide. Where
// the graph has a store, an operator's run again may be a load instead: what it makes comes from
// the store, at the time of the transfer, and nothing is read; the first load of an operator costs
// the way to the store as well, which is waited for when the operator runs for the first time.
//
// Slot i is just before operator i runs for the first time; the last slot is the end of the step.
// In a slot what runs again does so in the order of the operators.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "plan/step/step_graph.h"

namespace reprise::plan {

struct GraphPlan {
  // Of each operator, beside its own, in order; all above its own.
  std::vector<std::vector<StepGraph::Index>> slots;
  // Those of `slots` in which it is loaded instead, in order.
  std::vector<std::vector<StepGraph::Index>> loads;

  explicit GraphPlan(const StepGraph& graph) : slots(graph.operators()), loads(graph.operators()) {}

  bool is_load(StepGraph::Index op, StepGraph::Index slot) const {
    return std::binary_search(loads[op].begin(), loads[op].end(), slot);
  }
  bool operator==(const GraphPlan&) const = default;
};

struct GraphCost {
  std::int64_t peak = 0;  // bytes, constants included
  std::int64_t recompute_nanoseconds = 0;
  std::int64_t transfer_nanoseconds = 0;  // to the store and back
  std::int64_t nanoseconds() const { return recompute_nanoseconds + transfer_nanoseconds; }
  StepGraph::Index peak_slot = 0;
};

// Runs the plan without tensors. Knows nothing of how it was found.
GraphCost cost_of(const StepGraph& graph, const GraphPlan& plan);

}  // namespace reprise::plan
