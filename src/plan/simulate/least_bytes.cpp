// The least limit of a recorded step: by bisection, each trial in arithmetic. Which value is
// dropped first depends on microseconds, and just above the least a limit may work where a larger
// one does not. So a limit has to work in every trial, with other costs in each.
#include <algorithm>
#include <limits>

#include "plan/simulate/online_run.h"

namespace reprise::plan {
namespace {

// A step that runs so many operators again for each of its own is of no use to anybody.
constexpr std::int64_t kMostReplays = 100;
// Measured seconds vary by a factor of e to that power, up or down.
constexpr double kNoise = 0.3;
constexpr int kTrials = 16;
// In some trials the limit is a little less, in thousandths: the allocator rounds, other threads
// have some bytes, and small results that no value holds stay a little longer or shorter.
constexpr int kLess = 8;
constexpr std::int64_t kParts = 1000;

}  // namespace

std::int64_t least_bytes(const OnlineStep& step, const EvictionHeuristic& heuristic) {
  const std::int64_t most_replays =
      1000 + kMostReplays * static_cast<std::int64_t>(step.producers.size());
  const auto run = [&](std::int64_t limit, int trial) {
    OnlineRun once(step, heuristic,
                   {.limit = limit - limit / 1000 * (trial % kLess),
                    .most_replays = most_replays,
                    .noise = trial == 0 ? 0 : kNoise,
                    .seed = static_cast<std::uint64_t>(trial)});
    return once.run();
  };
  std::int64_t works = run(std::numeric_limits<std::int64_t>::max() / 2, 0).peak;
  std::int64_t fails = 0;
  for (OnlineStep::Index call = 0; call < step.calls.size(); ++call) {
    fails = std::max(fails, step.calls[call].beside + step.calls[call].taken);
  }
  fails = std::min(fails, works) - 1;
  const auto does_work = [&](std::int64_t limit) {
    for (int trial = 0; trial < kTrials; ++trial) {
      if (!run(limit, trial).fits) return false;
    }
    return true;
  };
  while (works - fails > std::max<std::int64_t>(works / kParts, 1)) {
    const std::int64_t middle = fails + (works - fails) / 2;
    (does_work(middle) ? works : fails) = middle;
  }
  return works;
}

}  // namespace reprise::plan
