// A planner of one's own: one region at the front of the chain, as short as the budget allows, the
// rest kept.
#pragma once

#include <reprise/error.h>
#include <reprise/planners.h>

namespace example {

inline reprise::Schedule one_segment(const reprise::Chain& chain, reprise::Bytes budget) {
  using Kind = reprise::ScheduleOp::Kind;
  const auto count = static_cast<std::int32_t>(chain.stages.size());
  for (std::int32_t length = 0; length < count; ++length) {
    reprise::Schedule schedule;
    const auto add = [&](Kind kind, std::int32_t stage) { schedule.ops.push_back({kind, stage}); };
    for (std::int32_t i = 0; i < length; ++i)
      add(i == 0 ? Kind::kForwardCheckpoint : Kind::kForwardDrop, i);
    for (std::int32_t i = length; i < count; ++i) add(Kind::kForwardKeep, i);
    for (std::int32_t i = count; i-- > length;) add(Kind::kBackward, i);
    for (std::int32_t i = 0; i < length; ++i) add(Kind::kForwardKeep, i);
    for (std::int32_t i = length; i-- > 0;) add(Kind::kBackward, i);
    // Proves it valid, too.
    if (reprise::evaluate(chain, schedule).peak <= budget) return schedule;
  }
  throw reprise::BudgetError("one_segment: the budget is " + reprise::to_string(budget) +
                             ", and no segment makes the chain fit; raise it, or take rotor");
}

}  // namespace example
