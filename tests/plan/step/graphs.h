// What the tests of graph plans share: random graphs and plans, and plans followed without any
// cleverness.
#pragma once

#include <algorithm>
#include <random>
#include <vector>

#include "plan/step/graph_plan.h"
#include "plan/step/step_graph.h"
#include "tests/plan/trace/random_trace.h"

namespace reprise::plan {

inline StepGraph random_graph(std::uint64_t seed, int length, double store = 0) {
  return StepGraph(random_trace(seed, length), store);
}

// Forward through `length` operators, with skips and views, and back through as many, each of which
// reads what its forward read or made; only the last result is kept.
inline Trace random_training_trace(std::uint64_t seed, int length) {
  std::mt19937_64 random(seed);
  const auto up_to = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n)) + 1;
  };
  TraceBuilder builder;
  builder.constant("f0", up_to(20));
  const auto call = [&](const std::string& result, const std::vector<std::string>& arguments,
                        int view_of) {
    const std::vector<std::string_view> names(arguments.begin(), arguments.end());
    const TraceBuilder::Result results[] = {
        {.name = result, .bytes = up_to(20), .view_of = view_of}};
    builder.call("op", names, results, up_to(50));
  };
  const auto forward = [](std::int64_t i) { return "f" + std::to_string(i); };
  for (int i = 1; i <= length; ++i) {
    std::vector<std::string> arguments{forward(i - 1)};
    if (up_to(3) == 1) arguments.push_back(forward(up_to(i) - 1));
    call(forward(i), arguments, i > 1 && up_to(8) == 1 ? 0 : -1);
  }
  std::string gradient = forward(length);
  for (int i = length; i >= 1; --i) {
    const std::string next = "b" + std::to_string(i);
    call(next, {gradient, forward(i - static_cast<int>(up_to(2)) + 1)}, -1);
    builder.release(gradient);
    if (gradient != forward(i)) builder.release(forward(i));
    gradient = next;
  }
  builder.release("f0");
  return std::move(builder).finish();
}

inline StepGraph random_training_step(std::uint64_t seed, int length, double store = 0) {
  return StepGraph(random_training_trace(seed, length), store);
}

// Any plan can be run: each operator's inputs have been made at least once before. Of what can be
// loaded, half is.
inline GraphPlan random_plan(const StepGraph& graph, std::uint64_t seed, int runs) {
  std::mt19937_64 random(seed);
  GraphPlan plan(graph);
  for (int i = 0; i < runs && graph.operators() > 0; ++i) {
    const auto op = static_cast<StepGraph::Index>(random() % graph.operators());
    const auto slot = op + 1 + static_cast<StepGraph::Index>(random() % (graph.operators() - op));
    std::vector<StepGraph::Index>& slots = plan.slots[op];
    const auto at = std::lower_bound(slots.begin(), slots.end(), slot);
    if (at != slots.end() && *at == slot) continue;
    slots.insert(at, slot);
    std::vector<StepGraph::Index>& loads = plan.loads[op];
    if (graph.can_load(op) && random() % 2 == 0) {
      loads.insert(std::lower_bound(loads.begin(), loads.end(), slot), slot);
    }
  }
  return plan;
}

// Every run in order; each makes new instances of storages, and reads the latest of each tensor.
// An instance is there from its run to the last that reads it.
inline GraphCost naive_cost(const StepGraph& graph, const GraphPlan& plan) {
  using Index = StepGraph::Index;
  struct Instance {
    Index storage;
    std::size_t begin, end;
  };
  std::vector<Instance> instances;
  std::vector<std::size_t> instance_of(graph.tensors());
  GraphCost cost;
  std::vector<Index> slots;  // of runs
  std::size_t run = 0;
  const auto execute = [&](Index op, Index slot, bool loads) {
    slots.push_back(slot);
    for (const Index tensor : graph.reads(op)) {
      if (!loads) instances[instance_of[tensor]].end = run;
    }
    for (const Index tensor : graph.results(op)) {
      const Index storage = graph.tensor(tensor).storage;
      if (graph.storage(storage).op == op) {
        // Several results may lie on one.
        const bool is_new = instances.empty() || instances.back().storage != storage ||
                            instances.back().begin != run;
        bool is_there = false;
        for (std::size_t i = 0; i < instances.size(); ++i) {
          if (instances[i].storage != storage || instances[i].begin != run) continue;
          instance_of[tensor] = i;
          is_there = true;
        }
        if (!is_there && is_new) {
          instance_of[tensor] = instances.size();
          instances.push_back({storage, run, run});
        }
        continue;
      }
      for (const Index read : graph.reads(op)) {
        if (graph.tensor(read).storage == storage) instance_of[tensor] = instance_of[read];
      }
    }
    ++run;
  };
  for (Index slot = 0; slot <= graph.operators(); ++slot) {
    for (Index op = 0; op < slot; ++op) {
      if (!std::count(plan.slots[op].begin(), plan.slots[op].end(), slot)) continue;
      const bool loads = std::count(plan.loads[op].begin(), plan.loads[op].end(), slot) > 0;
      execute(op, slot, loads);
      if (!loads) {
        cost.recompute_nanoseconds += graph.nanoseconds(op);
        continue;
      }
      const bool is_first = plan.loads[op].front() == slot;
      cost.transfer_nanoseconds += (is_first ? 2 : 1) * graph.transfer_nanoseconds(op);
    }
    if (slot < graph.operators()) execute(slot, slot, false);
  }
  for (const Index tensor : graph.kept()) instances[instance_of[tensor]].end = run;
  slots.push_back(graph.operators());
  cost.peak = 0;
  for (std::size_t at = 0; at <= run; ++at) {
    std::int64_t live = graph.fixed_bytes(slots[at]);
    for (const Instance& each : instances) {
      if (each.begin <= at && at <= each.end) live += graph.storage(each.storage).bytes;
    }
    cost.peak = std::max(cost.peak, live);
  }
  return cost;
}

}  // namespace reprise::plan
