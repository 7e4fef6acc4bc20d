// What to keep across one moment of a step: of the values that are made before it and needed after
// it, each is kept, at a price for its bytes, or made again, at the cost of its operator and of
// what that reads, or loaded, at the cost of the way to the store and back. For one price a least
// cut finds the best of all choices.
//
// With c the cost of what is made again and b the bytes of what is kept, the cut is the least of
// c + price * b. So c is at least cut - price * (bytes that there are) for any plan that keeps to
// them, whatever the price: a lower bound on what every plan runs again.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "plan/step/step_graph.h"

namespace reprise::plan {

struct KeepSet {
  std::vector<bool> kept;  // by storage; those that do not cross the moment are not
  std::vector<bool>
      made_again;  // by storage, or loaded; with what was not needed across it neither
  std::int64_t kept_bytes = 0;
  double nanoseconds = 0;  // of what is made again
  double cut = 0;          // nanoseconds + price * kept_bytes
};

// At the moment at which operator `slot` runs; `price` in nanoseconds a byte.
KeepSet keep_set(const StepGraph& graph, StepGraph::Index slot, double price);

// Bytes that what crosses the moment may take: the budget without constants and what the operator
// itself makes.
std::int64_t bytes_across(const StepGraph& graph, StepGraph::Index slot, std::int64_t budget);

// The greatest lower bound that any price gives for the moment, in nanoseconds; that of the prices
// so far where `is_over` says so.
double least_recompute(const StepGraph& graph, StepGraph::Index slot, std::int64_t budget,
                       const std::function<bool()>& is_over = {});

}  // namespace reprise::plan
