// Planners: which stages of a chain (reprise/chain.h) are kept and which run again, so that a
// training step fits in so many bytes and takes the least time.
//
//   auto schedule = reprise::planners::rotor(chain, reprise::MB(400));
//   reprise::evaluate(chain, schedule).peak             // at most 400 MB
//   auto y = reprise::checkpoint_sequential(model, schedule, x);
//
// All planners are deterministic. `budget` is for all that the chain's figures count: activations,
// temporaries, gradients; not the chain's input, nor parameters. All throw BudgetError if their
// schedule, or every one of those that they may choose from, needs more, with the least bytes that
// they can do with; and UsageError for a chain that Chain::check() refuses. Any thread may plan.
#pragma once

#include <reprise/bytes.h>
#include <reprise/chain.h>
#include <reprise/step_trace.h>

#include <chrono>
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

// Every stage kept: the plain step.
Schedule keep_all(const Chain& chain, Bytes budget = kUnlimited);

// Every stage but the last a region of its own: runs again right before its backward.
Schedule every_stage(const Chain& chain, Bytes budget = kUnlimited);

// `segments` runs of equally many stages (rounded down; the last takes what is left over), all but
// the last of them regions, as checkpoint_sequential(functions, segments, x) does and
// torch.utils.checkpoint_sequential. Throws UsageError if `segments` is not between 1 and the
// number of stages.
Schedule uniform(const Chain& chain, std::int64_t segments, Bytes budget = kUnlimited);

// uniform() with the whole number of segments next to sqrt(stages) (Chen et al.,
// arXiv:1604.06174, section 4).
Schedule sqrt(const Chain& chain, Bytes budget = kUnlimited);

// The binomial schedule: optimal for stages that are all alike, of which one at a time is kept
// (Griewank and Walther, Algorithm 799, ACM Transactions on Mathematical Software 26, 2000). Takes
// as many checkpoints as the budget allows. UsageError for more than 5,000 stages.
Schedule revolve(const Chain& chain, Bytes budget = kUnlimited);

struct RotorOptions {
  // Bytes are counted in slots, so many for the budget (or the plain step's peak, if that is less);
  // 0: as many as can be solved in about a second, which is exact to the byte for small figures,
  // and some 500 for 300 stages; never fewer than 100. A schedule's peak is always checked in
  // bytes.
  std::int64_t slots = 0;
  // With a store, what was kept may go there until backward needs it, but for what is recomputed.
  TransferRate store;
};

// The fastest schedule that keeps what it stores until backward has used it, by dynamic programming
// over (first stage, last stage, memory): Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova,
// arXiv:1911.13214, theorem 1. Time grows with the cube of the stages, memory with the square:
// UsageError, with both figures, where the tables would take more than 4 GiB, which they do from
// about 1,700 stages on.
Schedule rotor(const Chain& chain, Bytes budget = kUnlimited, const RotorOptions& options = {});

// rotor() that may also move what a stage keeps in forward to a store and back. Transfers are
// waited for in the model; a store that moves bytes beside the computation is faster than planned.
Schedule rotor_offload(const Chain& chain, Bytes budget, const TransferRate& store);

// One solution for all budgets up to `most`: a frontier costs what one schedule does.
class Rotor {
 public:
  explicit Rotor(const Chain& chain, const RotorOptions& options = {}, Bytes most = kUnlimited);
  ~Rotor();
  Rotor(Rotor&&) noexcept;
  Rotor& operator=(Rotor&&) noexcept;

  // A larger budget never gives a slower schedule, but for the rounding of times to single
  // precision.
  Schedule plan(Bytes budget) const;
  // The least budget that plan() takes.
  Bytes least() const;

 private:
  class Impl;
  std::unique_ptr<const Impl> impl_;
};

}  // namespace planners

// "keep_all", "every_stage", "uniform:K" (K segments), "sqrt", "revolve", "rotor". Throws
// UsageError, with the choices, for any other text.
ChainPlanner planner_named(const std::string& text);
std::vector<std::string> planner_names();

// Planning a recorded step whose future is known, as that of a step that repeats: what to drop
// after which operator, and when to make it again.
//
//   const auto trace = reprise::StepTrace::read("step.jsonl.gz");       // reprise/step_trace.h
//   const auto plan = reprise::planners::hindsight(trace, {.budget = reprise::GB(4)});
//   std::cout << plan.slowdown << ", at least " << plan.bound << '\n';   // 1.075, at least 1.071
//
// A plan is when operators run again, or load from a store what they made. Every value is then in
// memory from each run of its operator until the last read before the next, and not a moment
// longer; what the program still holds does not count. docs/planning.md has the model and the
// formulas.
//
// Any thread may plan.

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
  Seconds recompute{};
  Seconds transfer{};  // to the store and back
  Bytes peak;
  std::vector<Run> runs;  // in order
};

struct StepPlanOptions {
  // For everything, parameters included.
  Bytes budget;
  // The best plan that was found by then is the result.
  Seconds time_limit{10};
  // With a store, what an operator made may go there and be loaded again, as often as is needed,
  // where that takes less than running it again. Transfers are waited for, as in rotor_offload(): a
  // store that moves bytes beside the computation is faster than planned. Operators that make views
  // of what others made cannot be loaded.
  TransferRate store = {};
  // Of hindsight's search, instead of a time limit; the same number gives the same plan every time.
  // 0: the time limit holds.
  std::int64_t moves = 0;
  std::uint64_t seed = 0;  // of what hindsight draws at random
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
