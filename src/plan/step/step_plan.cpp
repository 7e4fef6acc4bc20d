// The public face of hindsight and of integer programs.
#include <reprise/error.h>
#include <reprise/planners.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "plan/step/hindsight.h"
#include "plan/step/ilp.h"
#include "plan/step/mixed_integer.h"
#include "plan/trace/step_trace_access.h"
#include "plan/trace/trace.h"

namespace reprise::planners {
namespace {

void check(const std::string& planner, const StepPlanOptions& options) {
  if (options.budget < Bytes(0)) {
    throw UsageError(planner + ": the budget is " + to_string(options.budget) +
                     "; it must be at least 0");
  }
  if (options.moves < 0) {
    throw UsageError(planner + ": moves is " + std::to_string(options.moves) +
                     "; it must be at least 0, for which the time limit holds");
  }
  const double seconds = options.time_limit.count();
  if (options.moves == 0 && !(seconds > 0 && std::isfinite(seconds))) {
    throw UsageError(planner + ": the time limit is " + std::to_string(seconds) +
                     " s; it must be above 0, and finite");
  }
  const double rate = options.store.bytes_per_second;
  if (!(rate >= 0) || std::isinf(rate)) {
    throw UsageError(planner + ": the store moves " + std::to_string(rate) +
                     " bytes a second; it must be above 0, or 0, where there is none");
  }
}

// Searches add up bytes over all moments of the step.
void check_size(const std::string& planner, const StepTrace& trace, const plan::StepGraph& graph) {
  constexpr std::int64_t kMost = std::int64_t{1} << 60;
  std::int64_t bytes = graph.fixed_bytes(0);
  for (plan::StepGraph::Index i = 0; i < graph.storages(); ++i) bytes += graph.storage(i).bytes;
  if (bytes <= kMost / (trace.operators() + 1)) return;
  throw UsageError(planner + ": the step makes " + std::to_string(bytes) + " bytes in all in " +
                   std::to_string(trace.operators()) +
                   " operators; bytes times operators must be at most 2^60");
}

std::vector<StepPlan::Run> runs_of(const plan::GraphPlan& plan) {
  std::vector<StepPlan::Run> runs;
  for (std::size_t op = 0; op < plan.slots.size(); ++op) {
    for (const auto slot : plan.slots[op]) {
      runs.push_back({static_cast<std::int64_t>(op), static_cast<std::int64_t>(slot),
                      plan.is_load(static_cast<plan::StepGraph::Index>(op), slot)});
    }
  }
  std::sort(runs.begin(), runs.end(), [](const auto& a, const auto& b) {
    return a.before != b.before ? a.before < b.before : a.op < b.op;
  });
  return runs;
}

StepPlan step_plan(const plan::StepGraph& graph, const std::optional<plan::GraphPlan>& found,
                   double least_nanoseconds) {
  const auto base = static_cast<double>(std::max<std::int64_t>(graph.nanoseconds(), 1));
  StepPlan plan;
  plan.bound = 1 + least_nanoseconds / base;
  if (!found) return plan;
  const plan::GraphCost cost = cost_of(graph, *found);
  plan.fits = true;
  plan.slowdown = 1 + static_cast<double>(cost.nanoseconds()) / base;
  plan.recompute = std::chrono::nanoseconds(cost.recompute_nanoseconds);
  plan.transfer = std::chrono::nanoseconds(cost.transfer_nanoseconds);
  plan.peak = Bytes(cost.peak);
  plan.runs = runs_of(*found);
  return plan;
}

}  // namespace

StepPlan hindsight(const StepTrace& trace, const StepPlanOptions& options) {
  check("hindsight", options);
  const plan::StepGraph graph(detail::StepTraceAccess::trace_of(trace),
                              options.store.bytes_per_second);
  check_size("hindsight", trace, graph);
  const plan::Hindsight found =
      plan::plan_with_hindsight(graph, {.budget = options.budget.count,
                                        .seconds = options.time_limit.count(),
                                        .moves = options.moves,
                                        .seed = options.seed});
  return step_plan(graph, found.plan, found.least_nanoseconds);
}

StepPlan ilp(const StepTrace& trace, const StepPlanOptions& options) {
  check("ilp", options);
  if (options.moves > 0) {
    throw UsageError("ilp: moves is " + std::to_string(options.moves) +
                     "; they are hindsight's: leave it 0");
  }
  constexpr plan::StepGraph::Index kMost = 200;
  const plan::StepGraph graph(detail::StepTraceAccess::trace_of(trace),
                              options.store.bytes_per_second);
  if (graph.operators() > kMost) {
    throw UsageError("ilp: the step has " + std::to_string(graph.operators()) +
                     " operators; it takes up to " + std::to_string(kMost) +
                     ": take hindsight, which comes close");
  }
  const plan::IlpResult found =
      plan::plan_by_ilp(graph, options.budget.count, options.time_limit.count());
  return step_plan(graph, found.plan, found.bound_nanoseconds);
}

bool has_ilp() { return plan::MixedIntegerProgram::has_solver(); }

}  // namespace reprise::planners
