// Planners choose what a training step keeps and what it recomputes, so that it fits in a number of
// bytes and takes the least time. Planners for chains (reprise/chain.h) decide for each stage,
// planners for recorded steps (reprise/step_trace.h) for each operator.
//
//   auto schedule = reprise::planners::rotor(chain, reprise::MB(400));
//   reprise::evaluate(chain, schedule).peak             // at most 400 MB
//   auto y = reprise::checkpoint_sequential(model, schedule, x);
//
//   const auto trace = reprise::StepTrace::read("step.jsonl.gz");
//   const auto plan = reprise::planners::hindsight(trace, {.budget = reprise::GB(4)});
//   std::cout << plan.slowdown << ", at least " << plan.bound << '\n';   // 1.075, at least 1.071
//
// docs/planning.md has the models and the formulas. Any thread may plan.
#pragma once

#include <reprise/bytes.h>
#include <reprise/chain.h>
#include <reprise/step_trace.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace reprise {

using ChainPlanner = std::function<Schedule(const Chain&, Bytes budget)>;

inline constexpr Bytes kUnlimited{std::numeric_limits<std::int64_t>::max()};

namespace planners {

// -- Chains
//
// These planners are deterministic. `budget` is for all bytes in the chain's figures: activations,
// temporaries and gradients, but neither the chain's input nor parameters. A planner throws
// BudgetError, with the least bytes that it can plan for, if each of its schedules needs more than
// the budget. It throws UsageError for a chain that Chain::check() refuses.

// Keeps every stage: the plain step.
Schedule keep_all(const Chain& chain, Bytes budget = kUnlimited);

// Makes every stage but the last a region of its own, which runs again right before its backward.
Schedule every_stage(const Chain& chain, Bytes budget = kUnlimited);

// Cuts the chain into `segments` runs of equally many stages (rounded down; the last takes the
// rest). All runs but the last are regions, as in checkpoint_sequential(functions, segments, x) and
// torch.utils.checkpoint_sequential. Throws UsageError if `segments` is not between 1 and the
// number of stages.
Schedule uniform(const Chain& chain, std::int64_t segments, Bytes budget = kUnlimited);

// Uses uniform() with sqrt(stages) segments, rounded (Chen et al., arXiv:1604.06174, section 4).
Schedule sqrt(const Chain& chain, Bytes budget = kUnlimited);

// The binomial schedule, with as many checkpoints as the budget allows. It is optimal for stages
// that are all alike and kept one at a time (Griewank and Walther, Algorithm 799, ACM Transactions
// on Mathematical Software 26, 2000). Throws UsageError for more than 5,000 stages.
Schedule revolve(const Chain& chain, Bytes budget = kUnlimited);

struct RotorOptions {
  // The number of slots into which the budget (or the plain step's peak, if that is less) is
  // divided to count bytes. 0: as many as take about a second to solve, at least 100 and about 500
  // for 300 stages; this is exact to the byte for small figures. Peaks are checked in bytes.
  std::int64_t slots = 0;
  // With a store, kept values may be moved there until backward needs them, except recomputed ones.
  TransferRate store;
};

// The fastest schedule that keeps what it stores until backward has used it. Dynamic programming
// over first stage, last stage and memory finds it (Beaumont, Eyraud-Dubois, Herrmann, Joly and
// Shilova, arXiv:1911.13214, theorem 1). Time grows with the cube of the stages, memory with the
// square. Throws UsageError, with both figures, if the tables would take more than 4 GiB: from
// about 1,700 stages on.
Schedule rotor(const Chain& chain, Bytes budget = kUnlimited, const RotorOptions& options = {});

// The same, and it may also move what a stage keeps in forward to a store and back. The model waits
// for transfers, so a store that moves bytes beside the computation is faster than planned.
Schedule rotor_offload(const Chain& chain, Bytes budget, const TransferRate& store);

// Solves once for all budgets up to `most`, so a frontier costs as much as one schedule.
class Rotor {
 public:
  explicit Rotor(const Chain& chain, const RotorOptions& options = {}, Bytes most = kUnlimited);
  ~Rotor();
  Rotor(Rotor&&) noexcept;
  Rotor& operator=(Rotor&&) noexcept;

  // A larger budget never gives a slower schedule, except for the rounding of times to single
  // precision.
  Schedule plan(Bytes budget) const;
  // The least budget that plan() takes.
  Bytes least() const;

 private:
  class Impl;
  std::unique_ptr<const Impl> impl_;
};

}  // namespace planners

// "keep_all", "every_stage", "uniform:K" (K segments), "sqrt", "revolve" or "rotor". Throws
// UsageError, with the choices, for any other text.
ChainPlanner planner_named(const std::string& text);
std::vector<std::string> planner_names();

// -- Recorded steps
//
// These planners know the future of a step: the operators of a trace, in order. A plan says when
// operators run again, or when a store loads what they made. A value is in memory from each run of
// its operator until the last read before the next run. What the program still holds does not
// count.

struct StepPlan {
  // Operator `op` runs again right before operator `before` runs for the first time. Both count
  // from 0, in the order of the trace and without its constants. If `before` is the number of
  // operators, it runs at the end of the step. With `loads` it does not run: its results were
  // stored right after the first run and are loaded.
  struct Run {
    std::int64_t op = 0;
    std::int64_t before = 0;
    bool loads = false;
    bool operator==(const Run&) const = default;
  };

  bool fits = false;    // a plan was found; if not, only `bound` has a meaning
  double slowdown = 0;  // (base + recompute + transfer) / base
  double bound = 1;     // proven: no plan has a smaller slowdown
  Seconds recompute{};
  Seconds transfer{};  // to the store and back
  Bytes peak;
  std::vector<Run> runs;  // in order
};

struct StepPlanOptions {
  // -- What must fit, and how long the search takes

  Bytes budget;  // for everything, parameters included
  // The result is the best plan found in this time.
  Seconds time_limit{10};
  // With a store, results may be stored and loaded any number of times, if that takes less than
  // running their operator again. The model waits for transfers, as in rotor_offload(). Views of
  // other operators' results cannot be loaded.
  TransferRate store = {};

  // -- Rarely needed

  // The number of moves of hindsight's search, in place of the time limit: the same number gives
  // the same plan every time. 0: the time limit holds.
  std::int64_t moves = 0;
  std::uint64_t seed = 0;  // for hindsight's random draws
};

namespace planners {

// Starts from policies that know when each value is needed next. Then it searches least cuts at the
// fullest moment of the step, which also bound what any plan recomputes, and ends with annealing.
// For a given number of moves a store never makes the plan slower. Throws UsageError for
// - a budget below zero, a time limit not above zero, or moves below zero;
// - a transfer rate that is below zero or not finite;
// - a step whose bytes times operators pass 2^60.
StepPlan hindsight(const StepTrace& trace, const StepPlanOptions& options);

// The optimum by an integer program (Checkmate: Jain et al., arXiv:1910.02653), for steps of up to
// about 60 operators. When time runs out, the result is the best plan so far and a proven bound. A
// value that is in memory is not recomputed, and views are of the memory that was made last.
// Throws the errors of hindsight(), UsageError for more than 200 operators and for `moves`, and
// Error if the build has no HiGHS (has_ilp()).
StepPlan ilp(const StepTrace& trace, const StepPlanOptions& options);
bool has_ilp();

}  // namespace planners
}  // namespace reprise
