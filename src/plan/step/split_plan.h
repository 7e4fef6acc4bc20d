// Plans for a step whose forward and backward are compiled apart. The compiler takes one decision for
// each value that forward makes and backward needs: forward hands it over, or backward makes it
// again. So this is hindsight on a split step (StepGraph::split_at()).
//
// The caller gives the operators in order, forward's first. A value that no plan may drop is no
// value of the step; its bytes are in `beside`.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "plan/step/step_graph.h"

namespace reprise::plan {

struct SplitStep {
  using Index = StepGraph::Index;

  struct Operator {
    std::int64_t nanoseconds = 0;
    std::vector<Index> reads;  // values, by number; each was made before
    std::vector<Index> makes;  // values that no other operator makes
  };

  std::vector<Operator> operators;
  std::vector<std::int64_t> bytes;   // of each value
  std::vector<Index> kept;           // values that must be there when the step ends
  std::vector<std::int64_t> beside;  // bytes while each operator runs, whatever the plan
  Index half = 0;                    // the first operator of backward

  // Throws UsageError, which names the first part that is wrong. `repeats`: StepGraph::split_at().
  StepGraph graph(bool repeats = false) const;
};

struct SplitOptions {
  std::int64_t budget = 0;      // bytes, for everything
  std::int64_t moves = 100000;  // of the annealing: as many give the same plan each time
  double seconds = 60;          // a guard: the search then ends with the best plan so far
  bool repeats = false;         // whether backward may make a value again more than once
  std::function<bool()> is_cancelled = {};
};

struct SplitPlan {
  using Index = StepGraph::Index;

  bool fits = false;              // if not, only `bound_nanoseconds` has a meaning
  std::vector<bool> handed_over;  // by value; false for those that backward does not need
  // By operator, those of backward before which it runs again, in order.
  std::vector<std::vector<Index>> runs;
  std::int64_t peak = 0;    // bytes
  Index peak_operator = 0;  // while that one runs, or just before it
  std::int64_t recompute_nanoseconds = 0;
  double bound_nanoseconds = 0;  // no plan recomputes for less
};

SplitPlan plan_split(const SplitStep& step, const SplitOptions& options);

// The plan with the least peak that a few searches find. The options are those of each, without
// the budget.
SplitPlan smallest_split(const SplitStep& step, const SplitOptions& options);

}  // namespace reprise::plan
