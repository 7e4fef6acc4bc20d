// Planners: which stages of a chain (reprise/chain.h) are kept and which run again, so that a
// training step fits in so many bytes and takes the least time.
//
//   auto schedule = reprise::planners::rotor(chain, reprise::MB(400));
//   reprise::check(chain, schedule).peak             // at most 400 MB
//   auto y = reprise::checkpoint_sequential(model, schedule, x);
//
// All planners are deterministic. `budget` is for all that the chain's figures count: activations,
// temporaries, gradients; not the chain's input, nor parameters. All throw BudgetError if their
// schedule, or every one of those that they may choose from, needs more, with the least bytes that
// they can do with; and UsageError for a chain that Chain::check() refuses. Any thread may plan.
#pragma once

#include <reprise/bytes.h>
#include <reprise/chain.h>
#include <reprise/schedule.h>

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
// The same with that many checkpoints at once, the chain's input among them: at least 1.
Schedule revolve_checkpoints(const Chain& chain, std::int64_t checkpoints);
// How often a stage is run without being kept, in a chain of `stages` with that many checkpoints:
// t(l, c) = r l - beta(c + 1, r - 1), where beta(c, r) = (c + r choose c) and r is the least number
// with beta(c, r) >= l. UsageError below 1, and for more than 1,000,000 stages.
std::int64_t revolve_advances(std::int64_t stages, std::int64_t checkpoints);

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

}  // namespace reprise
