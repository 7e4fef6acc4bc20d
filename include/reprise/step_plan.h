// Planning a recorded step whose future is known, as that of a step that repeats: what to drop
// after which operator, and when to make it again.
//
//   const auto trace = reprise::StepTrace::read("step.jsonl.gz");       // reprise/simulate.h
//   const auto plan = reprise::planners::hindsight(trace, {.budget = reprise::GB(4)});
//   std::cout << plan.slowdown << ", at least " << plan.bound << '\n';   // 1.075, at least 1.071
//
// A plan is when operators run again, or load from a store what they made. Every value is then in
// memory from each run of its operator until the last read before the next, and not a moment
// longer; what the program still holds does not count. docs/planning.md has the model and the
// formulas.
//
// Any thread may plan.
#pragma once

#include <reprise/bytes.h>
#include <reprise/schedule.h>
#include <reprise/simulate.h>

#include <chrono>
#include <cstdint>
#include <vector>

namespace reprise {

struct StepPlan {
  // Operator `op` runs again right before operator `before` runs for the first time; both count
  // from 0, in the order of the trace and without its constants. `before` may be the number of
  // operators: at the end of the step. With `loads` it does not run: what it makes, which went to
  // the store right after its first run, is loaded.
  struct Run {
    std::int64_t op = 0;
    std::int64_t before = 0;
    bool loads = false;
    bool operator==(const Run&) const = default;
  };

  bool fits = false;    // whether a plan was found; if not, only `bound` says something
  double slowdown = 0;  // (base + recompute + transfer) / base
  double bound = 1;     // that no plan's slowdown can be below; proven
  std::chrono::duration<double> recompute{};
  std::chrono::duration<double> transfer{};  // to the store and back
  Bytes peak;
  std::vector<Run> runs;  // in order
};

struct StepPlanOptions {
  // For everything, parameters included.
  Bytes budget;
  // The best plan that was found by then is the result.
  std::chrono::duration<double> time_limit{10};
  // Of hindsight's search, instead of a time limit; the same number gives the same plan every time.
  // 0: the time limit holds.
  std::int64_t moves = 0;
  std::uint64_t seed = 0;  // of what hindsight draws at random
  // With a store, what an operator made may go there and be loaded again, as often as is needed,
  // where that takes less than running it again. Transfers are waited for, as in rotor_offload(): a
  // store that moves bytes beside the computation is faster than planned. Operators that make views
  // of what others made cannot be loaded.
  TransferRate store = {};
};

namespace planners {

// Policies that know when each value is needed next, then least cuts at the fullest moment of the
// step, which also bound what any plan recomputes, then annealing. Throws UsageError for a budget
// below zero, a time limit that is not above zero, moves below zero, a rate that is below zero or
// not finite, and for steps of which bytes times operators pass 2^60. A store never makes the plan
// of so many moves slower.
StepPlan hindsight(const StepTrace& trace, const StepPlanOptions& options);

// The optimum, by an integer program (Checkmate: Jain et al., arXiv:1910.02653), for steps of up to
// some 60 operators; if time runs out, the best plan so far and a proven bound. What is there is
// not made again, and views are of memory as it was made last. The same errors, and UsageError for
// more than 200 operators and for `moves`; Error where the build has no HiGHS (has_ilp()).
StepPlan ilp(const StepTrace& trace, const StepPlanOptions& options);
bool has_ilp();

}  // namespace planners
}  // namespace reprise
