#include "plan/step/keep_set.h"

#include <algorithm>
#include <cmath>

#include "plan/step/min_cut.h"

namespace reprise::plan {
namespace {

using Index = StepGraph::Index;

// In memory while the operator runs, whatever is kept.
std::vector<bool> at_hand(const StepGraph& graph, Index slot) {
  std::vector<bool> at_hand(graph.storages(), false);
  if (slot >= graph.operators()) return at_hand;
  for (const Index tensor : graph.reads(slot)) at_hand[graph.tensor(tensor).storage] = true;
  return at_hand;
}

// What a first load costs.
double to_and_fro(const StepGraph& graph, Index op) {
  return 2 * static_cast<double>(graph.transfer_nanoseconds(op));
}

}  // namespace

std::int64_t bytes_across(const StepGraph& graph, Index slot, std::int64_t budget) {
  std::int64_t bytes = budget - graph.fixed_bytes(slot);
  const std::vector<bool> there = at_hand(graph, slot);
  for (Index storage = 0; storage < graph.storages(); ++storage) {
    if (there[storage] || graph.storage(storage).op == slot) bytes -= graph.storage(storage).bytes;
  }
  return bytes;
}

KeepSet keep_set(const StepGraph& graph, Index slot, double price) {
  const Index storages = graph.storages();
  const auto need = [](Index storage) { return 2 + storage; };
  const Index operators = std::min(slot, graph.operators());
  const auto make = [&](Index op) { return 2 + storages + op; };
  // Loaded, or made again.
  const auto redo = [&](Index op) { return make(op) + (graph.has_store() ? operators : 0); };
  const std::vector<bool> there = at_hand(graph, slot);
  MinCut cut(2 + storages + operators * (graph.has_store() ? 2 : 1));
  for (Index storage = 0; storage < storages; ++storage) {
    const StepGraph::Storage& of = graph.storage(storage);
    if (of.op >= slot) continue;
    const bool is_free = there[storage];
    cut.connect(need(storage), redo(of.op), is_free ? 0 : price * static_cast<double>(of.bytes));
    bool is_needed = false;
    for (const Index tensor : graph.tensors_on(storage)) {
      const auto readers = graph.readers(tensor);
      is_needed = is_needed || graph.is_kept(tensor) || (!readers.empty() && readers.back() > slot);
    }
    if (is_needed) cut.connect(0, need(storage), MinCut::kUnlimited);
  }
  for (Index op = 0; op < operators; ++op) {
    if (graph.makes(op).empty()) continue;
    cut.connect(make(op), 1, static_cast<double>(graph.nanoseconds(op)));
    if (graph.has_store()) {
      cut.connect(redo(op), make(op),
                  graph.can_load(op) ? to_and_fro(graph, op) : MinCut::kUnlimited);
    }
    for (const Index tensor : graph.reads(op)) {
      cut.connect(make(op), need(graph.tensor(tensor).storage), MinCut::kUnlimited);
    }
  }
  KeepSet set;
  set.cut = cut.solve();
  set.kept.resize(storages);
  set.made_again.resize(storages);
  for (Index storage = 0; storage < storages; ++storage) {
    const StepGraph::Storage& of = graph.storage(storage);
    if (of.op >= slot || !cut.is_with_source(need(storage))) continue;
    set.made_again[storage] = cut.is_with_source(redo(of.op));
    set.kept[storage] = !set.made_again[storage];
    if (set.kept[storage] && !there[storage]) set.kept_bytes += of.bytes;
  }
  for (Index op = 0; op < operators; ++op) {
    if (cut.is_with_source(make(op))) {
      set.nanoseconds += static_cast<double>(graph.nanoseconds(op));
    } else if (graph.can_load(op) && cut.is_with_source(redo(op))) {
      set.nanoseconds += to_and_fro(graph, op);
    }
  }
  return set;
}

double least_recompute(const StepGraph& graph, Index slot, std::int64_t budget,
                       const std::function<bool()>& is_over) {
  const std::int64_t bytes = bytes_across(graph, slot, budget);
  double best = 0;
  // The bound is concave in the price: it rises as long as more is kept than there is room for.
  double low = std::log(1e-7), high = std::log(1e4);
  for (int i = 0; i < 30 && !(is_over && is_over()); ++i) {
    const double price = std::exp((low + high) / 2);
    const KeepSet set = keep_set(graph, slot, price);
    best = std::max(best, set.cut - price * static_cast<double>(bytes));
    (set.kept_bytes > bytes ? low : high) = std::log(price);
  }
  return best;
}

}  // namespace reprise::plan
