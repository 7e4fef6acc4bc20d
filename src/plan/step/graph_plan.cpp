// Two walks through the plan: one that notes when each value is read last, one that counts bytes.
#include "plan/step/graph_plan.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace reprise::plan {
namespace {

using Index = StepGraph::Index;

constexpr Index kNowhere = std::numeric_limits<Index>::max();

enum class How : std::uint8_t { kFirst, kAgain, kLoad };

// Storages by instance: each run of an operator makes new ones.
class Walk {
 public:
  Walk(const StepGraph& graph, const GraphPlan& plan)
      : graph_(graph), on_(graph.tensors(), kNowhere), runs_in_(graph.operators() + 1) {
    for (Index op = 0; op < graph.operators(); ++op) {
      for (const Index slot : plan.slots[op]) {
        runs_in_[slot].push_back({op, plan.is_load(op, slot) ? How::kLoad : How::kAgain});
      }
    }
  }

  template <class Run, class End>
  void go(Run&& run, End&& end) {
    for (Index slot = 0; slot <= graph_.operators(); ++slot) {
      // Filled by operators in order, so in order.
      for (const auto& [op, how] : runs_in_[slot]) run(op, slot, how);
      if (slot < graph_.operators()) run(slot, slot, How::kFirst);
    }
    end();
  }

  void make(Index op) {
    const auto first = static_cast<Index>(storage_.size());
    for (const Index storage : graph_.makes(op)) storage_.push_back(storage);
    for (const Index tensor : graph_.results(op)) {
      const Index storage = graph_.tensor(tensor).storage;
      on_[tensor] = kNowhere;
      if (graph_.storage(storage).op == op) {
        const auto made = graph_.makes(op);
        on_[tensor] =
            first + static_cast<Index>(std::find(made.begin(), made.end(), storage) - made.begin());
        continue;
      }
      for (const Index read : graph_.reads(op)) {
        if (graph_.tensor(read).storage == storage) on_[tensor] = on_[read];
      }
    }
  }

  Index on(Index tensor) const { return on_[tensor]; }
  // Instances so far, and the storage of each.
  const std::vector<Index>& instances() const { return storage_; }

 private:
  const StepGraph& graph_;
  std::vector<Index> on_;  // the instance that each tensor is on
  std::vector<Index> storage_;
  std::vector<std::vector<std::pair<Index, How>>> runs_in_;
};

std::int64_t transfers(const StepGraph& graph, const GraphPlan& plan) {
  std::int64_t sum = 0;
  for (Index op = 0; op < graph.operators(); ++op) {
    const auto loads = std::ssize(plan.loads[op]);
    if (loads > 0) sum += (1 + loads) * graph.transfer_nanoseconds(op);
  }
  return sum;
}

}  // namespace

GraphCost cost_of(const StepGraph& graph, const GraphPlan& plan) {
  std::vector<std::int64_t> last_read;  // of each instance, the run that is its last
  std::int64_t run = 0;
  Walk first(graph, plan);
  first.go(
      [&](Index op, Index, How how) {
        if (how != How::kLoad) {
          for (const Index tensor : graph.reads(op)) last_read[first.on(tensor)] = run;
        }
        first.make(op);
        last_read.resize(first.instances().size(), run);
        ++run;
      },
      [&] {
        for (const Index tensor : graph.kept()) last_read[first.on(tensor)] = run;
      });
  std::vector<std::vector<Index>> ends(static_cast<std::size_t>(run) + 1);
  for (Index i = 0; i < last_read.size(); ++i) {
    ends[static_cast<std::size_t>(last_read[i])].push_back(i);
  }
  const auto bytes = [&](const Walk& walk, Index instance) {
    return graph.storage(walk.instances()[instance]).bytes;
  };
  GraphCost cost;
  cost.transfer_nanoseconds = transfers(graph, plan);
  std::int64_t live = 0;
  const auto see = [&](Index slot) {
    if (live + graph.fixed_bytes(slot) <= cost.peak) return;
    cost.peak = live + graph.fixed_bytes(slot);
    cost.peak_slot = slot;
  };
  run = 0;
  Walk second(graph, plan);
  second.go(
      [&](Index op, Index slot, How how) {
        if (how == How::kAgain) cost.recompute_nanoseconds += graph.nanoseconds(op);
        const auto before = static_cast<Index>(second.instances().size());
        second.make(op);
        for (Index i = before; i < second.instances().size(); ++i) live += bytes(second, i);
        see(slot);
        for (const Index i : ends[static_cast<std::size_t>(run)]) live -= bytes(second, i);
        ++run;
      },
      [&] { see(graph.operators()); });
  return cost;
}

}  // namespace reprise::plan
