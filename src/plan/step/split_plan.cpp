// From the caller's lists to a trace, and from a graph plan to what is handed over.
#include "plan/step/split_plan.h"

#include <reprise/error.h>

#include <limits>
#include <string>

#include "core/clock.h"
#include "plan/step/graph_plan.h"
#include "plan/step/hindsight.h"

namespace reprise::plan {
namespace {

using Index = StepGraph::Index;

[[noreturn]] void refuse(std::size_t op, const std::string& what) {
  throw UsageError("split step: operator " + std::to_string(op) + " " + what);
}

// A value that backward reads as forward made it, and not as a later run did.
std::vector<bool> handed_over(const StepGraph& graph, const GraphPlan& plan) {
  std::vector<bool> over(graph.storages(), false);
  const auto needs_first = [&](Index tensor, Index slot) {
    const Index op = graph.tensor(tensor).op;
    if (op >= graph.half() || slot < graph.half()) return;
    if (plan.slots[op].empty() || plan.slots[op].front() > slot) {
      over[graph.tensor(tensor).storage] = true;
    }
  };
  for (Index op = 0; op < graph.operators(); ++op) {
    for (const Index tensor : graph.reads(op)) {
      needs_first(tensor, op);
      for (const Index slot : plan.slots[op]) needs_first(tensor, slot);
    }
  }
  return over;
}

SplitPlan split_plan(const SplitStep& step, const StepGraph& graph, const GraphPlan& of) {
  const GraphCost cost = cost_of(graph, of);
  SplitPlan plan;
  plan.fits = true;
  plan.peak = cost.peak;
  plan.peak_operator = cost.peak_slot;
  plan.recompute_nanoseconds = cost.recompute_nanoseconds;
  // Storages are in the order of the operators that make them, as in graph().
  plan.runs = of.slots;
  const std::vector<bool> over = handed_over(graph, of);
  plan.handed_over.assign(step.bytes.size(), false);
  Index storage = 0;
  for (const SplitStep::Operator& op : step.operators) {
    for (const Index value : op.makes) plan.handed_over[value] = over[storage++];
  }
  return plan;
}

void require_moves(const SplitOptions& options) {
  if (options.moves >= 1) return;
  throw UsageError("split step: a search of " + std::to_string(options.moves) +
                   " moves; at least 1 is needed");
}

Hindsight search(const StepGraph& graph, const SplitOptions& options) {
  const Stopwatch watch;
  const auto is_cancelled = [&] {
    return watch.elapsed().count() > options.seconds ||
           (options.is_cancelled && options.is_cancelled());
  };
  return plan_with_hindsight(
      graph, {.budget = options.budget, .moves = options.moves, .is_cancelled = is_cancelled});
}

}  // namespace

StepGraph SplitStep::graph(bool repeats) const {
  Trace trace;
  trace.names.emplace_back();
  constexpr Index kNone = std::numeric_limits<Index>::max();
  std::vector<Index> tensor_of(bytes.size(), kNone);
  for (std::size_t at = 0; at < operators.size(); ++at) {
    Trace::Operator op;
    op.nanoseconds = operators[at].nanoseconds;
    if (op.nanoseconds < 0) refuse(at, "takes " + std::to_string(op.nanoseconds) + " ns");
    op.arguments.begin = static_cast<Index>(trace.arguments.size());
    for (const Index value : operators[at].reads) {
      if (value >= bytes.size() || tensor_of[value] == kNone) {
        refuse(at, "reads value " + std::to_string(value) + ", which nothing before it makes");
      }
      trace.arguments.push_back(tensor_of[value]);
    }
    op.arguments.end = static_cast<Index>(trace.arguments.size());
    op.results.begin = static_cast<Index>(trace.tensors.size());
    for (const Index value : operators[at].makes) {
      if (value >= bytes.size() || tensor_of[value] != kNone || bytes[value] < 0) {
        refuse(at, "makes value " + std::to_string(value) + "; a value has a number below " +
                       std::to_string(bytes.size()) +
                       ", bytes of at least 0, and one operator that makes it");
      }
      tensor_of[value] = static_cast<Index>(trace.tensors.size());
      trace.tensors.push_back(
          {static_cast<Index>(at), static_cast<Index>(trace.values.size()), false});
      trace.values.push_back({bytes[value], static_cast<Index>(at)});
      op.bytes += bytes[value];
    }
    op.results.end = static_cast<Index>(trace.tensors.size());
    trace.operators.push_back(op);
  }
  for (const Index value : kept) {
    if (value >= bytes.size() || tensor_of[value] == kNone) {
      throw UsageError("split step: value " + std::to_string(value) +
                       " is kept, and nothing makes it");
    }
    trace.events.push_back({Trace::Do::kKeep, tensor_of[value]});
  }
  if (half > operators.size() || beside.size() != operators.size()) {
    throw UsageError("split step: backward begins at operator " + std::to_string(half) + " of " +
                     std::to_string(operators.size()) + ", and there are bytes beside " +
                     std::to_string(beside.size()) + " of them");
  }
  StepGraph graph(trace, 0, beside);
  graph.split_at(half, repeats);
  return graph;
}

SplitPlan plan_split(const SplitStep& step, const SplitOptions& options) {
  const StepGraph graph = step.graph(options.repeats);
  require_moves(options);
  const Hindsight found = search(graph, options);
  SplitPlan plan;
  if (found.plan) plan = split_plan(step, graph, *found.plan);
  plan.bound_nanoseconds = found.least_nanoseconds;
  return plan;
}

SplitPlan smallest_split(const SplitStep& step, const SplitOptions& options) {
  const StepGraph graph = step.graph(options.repeats);
  require_moves(options);
  constexpr int kTries = 12;
  SplitPlan best = split_plan(step, graph, GraphPlan(graph));
  std::int64_t fails = 0;
  for (int i = 0; i < kTries && best.peak - fails > best.peak / 100; ++i) {
    SplitOptions within = options;
    within.budget = fails + (best.peak - fails) / 2;
    const Hindsight found = search(graph, within);
    if (found.plan) {
      best = split_plan(step, graph, *found.plan);
    } else {
      fails = within.budget;
    }
  }
  return best;
}

}  // namespace reprise::plan
