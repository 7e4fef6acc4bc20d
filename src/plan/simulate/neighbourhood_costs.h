// What the dropped values around a candidate would cost, kept up to date while a simulation drops
// and restores values: the part of a heuristic that has a memory.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "plan/simulate/heuristic.h"
#include "plan/simulate/union_find.h"
#include "plan/simulate/value_graph.h"
#include "plan/trace/trace.h"

namespace reprise::plan {

class NeighbourhoodCosts {
 public:
  using Index = Trace::Index;

  // The trace and the graph must outlive it.
  NeighbourhoodCosts(Neighbourhood kind, const Trace& trace, const ValueGraph& graph);

  // An operator has run for the first time: its results exist, and links that it makes count.
  void made(Index op);
  void dropped(Index value);
  void restored(Index value);

  // Nanoseconds that making the value again takes: its producer, and the operators that made views
  // of it.
  double own(Index value) const { return own_[value]; }
  double around(Index value);

 private:
  bool walks() const { return kind_ == Neighbourhood::kWalk || kind_ == Neighbourhood::kUpstream; }
  bool is_dropped(const ValueGraph::Link& link) const {
    return link.by < operators_made_ && is_dropped_[link.value] != 0;
  }
  double classes_around(Index value);
  // Through dropped values alone, upstream or downstream.
  double walk(Index value, bool upstream);
  void mark_changed(Index value);
  void forget(std::vector<double>& found, Index value);

  Neighbourhood kind_;
  const Trace& trace_;
  const ValueGraph& graph_;
  Index operators_made_ = 0;
  std::vector<double> own_;
  std::vector<Index> last_maker_;  // from 1; the operator whose cost was added to own_ last
  std::vector<char> is_dropped_;
  CostClasses classes_;
  std::vector<CostClasses::Node> nodes_;
  // What was found by walking, below zero where something has changed since.
  std::vector<double> upstream_, downstream_;
  std::size_t known_ = 0;            // of both, so many are not below zero
  std::vector<std::uint32_t> seen_;  // the number of the walk that has been there
  std::uint32_t walks_made_ = 0;
  std::vector<Index> stack_;
  std::vector<CostClasses::Node> roots_;
};

}  // namespace reprise::plan
