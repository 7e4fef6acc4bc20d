#include "plan/simulate/neighbourhood_costs.h"

#include <algorithm>
#include <utility>

namespace reprise::plan {

NeighbourhoodCosts::NeighbourhoodCosts(Neighbourhood kind, const Trace& trace,
                                       const ValueGraph& graph)
    : kind_(kind),
      trace_(trace),
      graph_(graph),
      own_(trace.values.size(), 0),
      last_maker_(trace.values.size(), 0),
      is_dropped_(trace.values.size(), 0),
      nodes_(trace.values.size(), CostClasses::kNone) {
  if (walks()) {
    upstream_.assign(trace.values.size(), -1);
    downstream_.assign(trace.values.size(), -1);
    seen_.assign(trace.values.size(), 0);
  }
}

void NeighbourhoodCosts::made(Index op) {
  operators_made_ = op + 1;
  const Trace::Operator& made = trace_.operators[op];
  for (Index t = made.results.begin; t < made.results.end; ++t) {
    const Index value = trace_.tensors[t].value;
    // Several results may be views of one value.
    if (std::exchange(last_maker_[value], op + 1) == op + 1) continue;
    own_[value] += static_cast<double>(made.nanoseconds);
  }
}

void NeighbourhoodCosts::dropped(Index value) {
  is_dropped_[value] = 1;
  if (walks()) mark_changed(value);
  if (kind_ != Neighbourhood::kClasses) return;
  nodes_[value] = classes_.add(own_[value]);
  for (const auto links : {graph_.inputs(value), graph_.users(value)}) {
    for (const ValueGraph::Link& link : links) {
      if (is_dropped(link)) classes_.merge(nodes_[link.value], nodes_[value]);
    }
  }
}

void NeighbourhoodCosts::restored(Index value) {
  is_dropped_[value] = 0;
  if (walks()) mark_changed(value);
  if (kind_ != Neighbourhood::kClasses) return;
  classes_.remove(nodes_[value], own_[value]);
  nodes_[value] = CostClasses::kNone;
}

double NeighbourhoodCosts::around(Index value) {
  switch (kind_) {
    case Neighbourhood::kNone:
      return 0;
    case Neighbourhood::kClasses:
      return classes_around(value);
    case Neighbourhood::kWalk:
    case Neighbourhood::kUpstream:
      break;
  }
  for (const bool upstream : {true, false}) {
    if (!upstream && kind_ == Neighbourhood::kUpstream) return upstream_[value];
    double& found = (upstream ? upstream_ : downstream_)[value];
    if (found >= 0) continue;
    found = walk(value, upstream);
    ++known_;
  }
  return upstream_[value] + downstream_[value];
}

double NeighbourhoodCosts::classes_around(Index value) {
  double sum = 0;
  roots_.clear();
  for (const auto links : {graph_.inputs(value), graph_.users(value)}) {
    for (const ValueGraph::Link& link : links) {
      if (!is_dropped(link)) continue;
      const CostClasses::Node root = classes_.find(nodes_[link.value]);
      if (std::ranges::find(roots_, root) != roots_.end()) continue;
      roots_.push_back(root);
      sum += classes_.cost(root);
    }
  }
  return sum;
}

double NeighbourhoodCosts::walk(Index value, bool upstream) {
  double sum = 0;
  seen_[value] = ++walks_made_;
  stack_.assign(1, value);
  while (!stack_.empty()) {
    const Index at = stack_.back();
    stack_.pop_back();
    for (const ValueGraph::Link& link : upstream ? graph_.inputs(at) : graph_.users(at)) {
      if (seen_[link.value] == walks_made_ || !is_dropped(link)) continue;
      seen_[link.value] = walks_made_;
      sum += own_[link.value];
      stack_.push_back(link.value);
    }
  }
  return sum;
}

void NeighbourhoodCosts::forget(std::vector<double>& found, Index value) {
  if (found[value] < 0) return;
  found[value] = -1;
  --known_;
}

// Whoever reaches the value downstream stands upstream of it, with dropped values alone between.
// Ends where nothing is known any more: a step that nobody chooses in walks nowhere.
void NeighbourhoodCosts::mark_changed(Index value) {
  forget(upstream_, value);
  forget(downstream_, value);
  for (const bool upstream : {true, false}) {
    if (upstream && kind_ == Neighbourhood::kUpstream) continue;
    std::vector<double>& found = upstream ? downstream_ : upstream_;
    seen_[value] = ++walks_made_;
    stack_.assign(1, value);
    while (!stack_.empty() && known_ > 0) {
      const Index at = stack_.back();
      stack_.pop_back();
      for (const ValueGraph::Link& link : upstream ? graph_.inputs(at) : graph_.users(at)) {
        if (seen_[link.value] == walks_made_ || link.by >= operators_made_) continue;
        seen_[link.value] = walks_made_;
        forget(found, link.value);
        if (is_dropped_[link.value] != 0) stack_.push_back(link.value);
      }
    }
  }
}

}  // namespace reprise::plan
