// The optimal plan for a small step, as an integer program (Checkmate: Jain et al.,
// arXiv:1910.02653, section 4): the yardstick for plans that are found in other ways.
//
// Slots are Checkmate's stages: in slot t operators up to t may run, t for its first time. R says
// which run, S which tensors are there when the slot begins, F which storages go after which
// operator; memory is followed from operator to operator. What is there is not made again.
#pragma once

#include <cstdint>
#include <optional>

#include "plan/step/graph_plan.h"
#include "plan/step/step_graph.h"

namespace reprise::plan {

struct IlpResult {
  std::optional<GraphPlan> plan;  // none if none was found
  bool is_infeasible = false;     // proven
  double bound_nanoseconds =
      0;  // that no plan recomputes less than; equal to the plan's if optimal
};

// Sizes grow with the square of the operators times their arguments: some 60 operators can be
// solved. Throws Error where the build has no solver.
IlpResult plan_by_ilp(const StepGraph& graph, std::int64_t budget, double seconds);

}  // namespace reprise::plan
