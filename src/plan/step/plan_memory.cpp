#include "plan/step/plan_memory.h"

#include <algorithm>
#include <limits>

namespace reprise::plan {
namespace {

using Index = StepGraph::Index;

constexpr Index kNoRun = std::numeric_limits<Index>::max();
// Edges of intervals that are there when the slot begins, or still when it ends.
constexpr Index kBefore = kNoRun - 1;
constexpr Index kAfter = kNoRun;

}  // namespace

PlanMemory::PlanMemory(const StepGraph& graph, const GraphPlan& plan, std::int64_t budget)
    : graph_(graph),
      plan_(plan),
      budget_(budget),
      runs_(graph.operators()),
      computed_(graph.operators()),
      intervals_(graph.storages()),
      through_(graph.operators() + 1),
      inside_(graph.operators() + 1, 0),
      edges_(graph.operators() + 1),
      is_changed_(graph.operators() + 1, false) {
  for (Index op = 0; op < graph.operators(); ++op) {
    runs_[op] = plan.slots[op];
    runs_[op].insert(runs_[op].begin(), op);
    for (const Index slot : runs_[op]) {
      if (!plan.is_load(op, slot)) computed_[op].push_back(slot);
    }
    nanoseconds_ += (std::ssize(computed_[op]) - 1) * graph.nanoseconds(op);
    const auto loads = std::ssize(plan.loads[op]);
    if (loads > 0) nanoseconds_ += (1 + loads) * graph.transfer_nanoseconds(op);
  }
  for (Index slot = 0; slot <= graph.operators(); ++slot) {
    through_[slot] = graph.fixed_bytes(slot);
    excess_ += std::max<std::int64_t>(0, bytes(slot) - budget_);
  }
  for (Index storage = 0; storage < graph.storages(); ++storage) recount(storage);
  for (const Index slot : changed_) look_into(slot);
  changed_.clear();
}

std::size_t PlanMemory::run_seen(Index op, Index slot) const {
  const std::vector<Index>& runs = runs_[op];
  if (runs.size() == 1) return 0;
  return static_cast<std::size_t>(std::upper_bound(runs.begin(), runs.end(), slot) - runs.begin()) -
         1;
}

bool PlanMemory::runs_in(Index op, Index slot) const {
  return std::binary_search(runs_[op].begin(), runs_[op].end(), slot);
}

void PlanMemory::add(Run run) { change(run, true); }
void PlanMemory::remove(Run run) { change(run, false); }

// The first load, and so the last that is taken away, comes with the way to the store.
std::int64_t PlanMemory::price(Run run) const {
  if (!run.loads) return graph_.nanoseconds(run.op);
  return (plan_.loads[run.op].empty() ? 2 : 1) * graph_.transfer_nanoseconds(run.op);
}

void PlanMemory::change(Run run, bool adds) {
  if (!adds) run.loads = plan_.is_load(run.op, run.slot);
  if (adds) nanoseconds_ += price(run);
  for (std::vector<Index>* slots : {&runs_[run.op], &plan_.slots[run.op],
                                    run.loads ? &plan_.loads[run.op] : &computed_[run.op]}) {
    const auto at = std::lower_bound(slots->begin(), slots->end(), run.slot);
    if (adds)
      slots->insert(at, run.slot);
    else
      slots->erase(at);
  }
  if (!adds) nanoseconds_ -= price(run);
  for (const Index storage : graph_.makes(run.op)) recount(storage);
  if (!run.loads) {
    for (const Index tensor : graph_.reads(run.op)) recount(graph_.tensor(tensor).storage);
  }
  for (const Index slot : changed_) look_into(slot);
  changed_.clear();
}

void PlanMemory::recount(Index storage) {
  const Index op = graph_.storage(storage).op;
  const std::vector<Index>& runs = runs_[op];
  fresh_.clear();
  for (std::size_t k = 0; k < runs.size(); ++k) {
    const Index next = k + 1 < runs.size() ? runs[k + 1] : kNoRun;
    End end{runs[k], op};
    for (const Index tensor : graph_.results(op)) {
      if (graph_.tensor(tensor).storage != storage) continue;
      end = std::max(end, last_read(tensor, runs[k], next));
    }
    fresh_.push_back({runs[k], end.slot, end.op});
  }
  // Most are as they were, and long.
  std::vector<Interval>& known = intervals_[storage];
  const auto is_in = [](const std::vector<Interval>& all, const Interval& interval) {
    return std::find(all.begin(), all.end(), interval) != all.end();
  };
  for (const Interval& interval : known) {
    if (!is_in(fresh_, interval)) count(storage, interval, false);
  }
  for (const Interval& interval : fresh_) {
    if (!is_in(known, interval)) count(storage, interval, true);
  }
  known = fresh_;
}

PlanMemory::End PlanMemory::last_read(Index tensor, Index slot, Index next) const {
  End end{slot, graph_.tensor(tensor).op};
  if (graph_.is_kept(tensor) && next == kNoRun) end = {graph_.operators(), kNoRun};
  const Index storage = graph_.tensor(tensor).storage;
  for (const Index reader : graph_.readers(tensor)) {
    const std::vector<Index>& runs = computed_[reader];
    // The reader's runs that see this one of the maker's.
    auto after = next == kNoRun ? runs.end() : std::lower_bound(runs.begin(), runs.end(), next);
    if (after == runs.begin() || *std::prev(after) < slot) continue;
    end = std::max(end, End{*std::prev(after), reader});
    for (const Index result : graph_.results(reader)) {
      if (graph_.tensor(result).storage != storage) continue;
      // A view: its readers read the storage as well.
      for (auto run = std::lower_bound(runs.begin(), runs.end(), slot); run != after; ++run) {
        const auto later = std::next(run);
        end = std::max(end, last_read(result, *run, later == runs.end() ? kNoRun : *later));
      }
    }
  }
  return end;
}

void PlanMemory::count(Index storage, const Interval& interval, bool adds) {
  const std::int64_t bytes = graph_.storage(storage).bytes;
  if (bytes == 0) return;
  const Index op = graph_.storage(storage).op;
  const auto edge = [&](Index slot, const Edge& edge) {
    std::vector<Edge>& edges = edges_[slot];
    if (adds) {
      edges.push_back(edge);
    } else {
      *std::find(edges.begin(), edges.end(), edge) = edges.back();
      edges.pop_back();
    }
    if (!is_changed_[slot]) changed_.push_back(slot);
    is_changed_[slot] = true;
  };
  if (interval.begin == interval.end) {
    return edge(interval.begin, {op, interval.end_op, bytes});
  }
  edge(interval.begin, {op, kAfter, bytes});
  edge(interval.end, {kBefore, interval.end_op, bytes});
  const std::int64_t signed_bytes = adds ? bytes : -bytes;
  for (Index slot = interval.begin + 1; slot < interval.end; ++slot) {
    const std::int64_t before = through_[slot] + inside_[slot];
    through_[slot] += signed_bytes;
    const std::int64_t now = before + signed_bytes;
    if (before > budget_ || now > budget_) {
      excess_ +=
          std::max<std::int64_t>(0, now - budget_) - std::max<std::int64_t>(0, before - budget_);
    }
  }
}

void PlanMemory::look_into(Index slot) {
  is_changed_[slot] = false;
  const std::vector<Edge>& edges = edges_[slot];
  // Few: what is made, and what is read last, in one slot.
  struct Event {
    Index op;
    bool frees;  // after the operator
    std::int64_t bytes;
  };
  static thread_local std::vector<Event> events;
  events.clear();
  std::int64_t live = 0;
  for (const Edge& edge : edges) {
    if (edge.begin_op == kBefore)
      live += edge.bytes;
    else
      events.push_back({edge.begin_op, false, edge.bytes});
    if (edge.end_op != kAfter) events.push_back({edge.end_op, true, -edge.bytes});
  }
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return a.op != b.op ? a.op < b.op : a.frees < b.frees;
  });
  std::int64_t peak = live;
  for (const Event& event : events) {
    live += event.bytes;
    peak = std::max(peak, live);
  }
  excess_ -= std::max<std::int64_t>(0, bytes(slot) - budget_);
  inside_[slot] = peak;
  excess_ += std::max<std::int64_t>(0, bytes(slot) - budget_);
}

bool PlanMemory::is_read(Run run) const {
  const std::size_t k = run_seen(run.op, run.slot);
  const std::vector<Index>& runs = runs_[run.op];
  const Index next = k + 1 < runs.size() ? runs[k + 1] : kNoRun;
  for (const Index tensor : graph_.results(run.op)) {
    if (graph_.is_kept(tensor) && next == kNoRun) return true;
    for (const Index reader : graph_.readers(tensor)) {
      const std::vector<Index>& theirs = computed_[reader];
      const auto seen = std::lower_bound(theirs.begin(), theirs.end(), run.slot);
      if (seen != theirs.end() && *seen < next) return true;
    }
  }
  return false;
}

Index PlanMemory::next_read(Index storage, std::size_t run, Index slot) const {
  const Index op = graph_.storage(storage).op;
  const Index next = run + 1 < runs_[op].size() ? runs_[op][run + 1] : kNoRun;
  Index first = kNoRun;
  for (const Index tensor : graph_.tensors_on(storage)) {
    if (graph_.is_kept(tensor) && next == kNoRun) first = std::min(first, graph_.operators());
    for (const Index reader : graph_.readers(tensor)) {
      const std::vector<Index>& theirs = computed_[reader];
      const auto seen = std::lower_bound(theirs.begin(), theirs.end(), slot);
      if (seen != theirs.end() && *seen < next) first = std::min(first, *seen);
    }
  }
  return first == kNoRun ? 0 : first;
}

}  // namespace reprise::plan
