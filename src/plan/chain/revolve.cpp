#include "plan/chain/revolve.h"

#include <reprise/error.h>
#include <reprise/planners.h>

#include <algorithm>
#include <optional>

#include "plan/chain/schedule_builder.h"

namespace reprise {
namespace plan {
namespace {

// (c + r choose c), or anything above `enough`: it grows beyond all types.
std::int64_t beta(std::int64_t c, std::int64_t r, std::int64_t enough) {
  std::int64_t product = 1;
  for (std::int64_t k = 1; k <= std::min(c, r); ++k) {
    product = product * (std::max(c, r) + k) / k;
    if (product > enough) return product;
  }
  return product;
}

// Runs the range again and again, with at most `checkpoints` outputs at once that wait for it, the
// range's input among them.
void revolve(ScheduleBuilder& builder, StageRange range, std::int64_t checkpoints) {
  for (;;) {
    const std::int64_t length = range.end - range.begin;
    if (length == 1) break;
    if (checkpoints == 1) {
      builder.advance({range.begin, range.end - 1});
      builder.keep({range.end - 1, range.end});
      builder.backward({range.end - 1, range.end});
      --range.end;
      continue;
    }
    const std::int64_t least = revolve_advances(length, checkpoints);
    std::int64_t first = 1;
    while (first + revolve_advances(length - first, checkpoints - 1) +
               revolve_advances(first, checkpoints) >
           least) {
      ++first;
    }
    const StageRange before{range.begin, range.begin + first};
    builder.advance(before);
    revolve(builder, {before.end, range.end}, checkpoints - 1);
    range = before;
  }
  builder.keep(range);
  builder.backward(range);
}

Schedule schedule_of(const Chain& chain, std::int64_t checkpoints) {
  constexpr std::int64_t kMost = 5'000;
  if (std::ssize(chain.stages) > kMost) {
    throw UsageError("revolve: the chain has " + std::to_string(chain.stages.size()) +
                     " stages, and schedules may have about the square of steps: at most " +
                     std::to_string(kMost) + " are planned; join stages");
  }
  ScheduleBuilder builder;
  revolve(builder, {0, std::ssize(chain.stages)}, checkpoints);
  return builder.take(chain);
}

}  // namespace

std::int64_t revolve_advances(std::int64_t stages, std::int64_t checkpoints) {
  if (stages < 1 || checkpoints < 1) {
    throw UsageError("revolve: " + std::to_string(stages) + " stages with " +
                     std::to_string(checkpoints) + " checkpoints; both must be at least 1");
  }
  constexpr std::int64_t kMost = 1'000'000;  // whose square, and binomials near it, fit
  if (stages > kMost) {
    throw UsageError("revolve: " + std::to_string(stages) + " stages; it takes up to " +
                     std::to_string(kMost));
  }
  const std::int64_t c = std::min(checkpoints, stages);
  std::int64_t repetitions = 0;
  while (beta(c, repetitions, stages) < stages) ++repetitions;
  if (repetitions == 0) return 0;
  return repetitions * stages - beta(c + 1, repetitions - 1, kMost * kMost);
}

Schedule revolve_checkpoints(const Chain& chain, std::int64_t checkpoints) {
  chain.check();
  revolve_advances(std::ssize(chain.stages), checkpoints);  // refuses what cannot be
  return schedule_of(chain, checkpoints);
}

}  // namespace plan

Schedule planners::revolve(const Chain& chain, Bytes budget) {
  chain.check();
  const std::int64_t stages = std::ssize(chain.stages);
  std::optional<Schedule> best;
  Seconds best_time{};
  Bytes least = kUnlimited;
  for (std::int64_t checkpoints = 1; checkpoints <= stages; ++checkpoints) {
    Schedule schedule = plan::schedule_of(chain, checkpoints);
    const ScheduleCost cost = evaluate(chain, schedule);
    least = std::min(least, cost.peak);
    if (cost.peak > budget || (best && cost.time >= best_time)) continue;
    best = std::move(schedule);
    best_time = cost.time;
  }
  if (!best) plan::refuse_budget("revolve", budget, least);
  return *std::move(best);
}

}  // namespace reprise
