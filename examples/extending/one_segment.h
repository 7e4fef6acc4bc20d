// A planner of one's own: one region at the front of the chain, as short as the budget allows, the
// rest kept.
#pragma once

#include <reprise/error.h>
#include <reprise/planners.h>

namespace example {

inline reprise::Schedule one_segment(const reprise::Chain& chain, reprise::Bytes budget) {
  using Do = reprise::ChainStep::Do;
  const auto count = static_cast<std::int32_t>(chain.stages.size());
  for (std::int32_t length = 0; length < count; ++length) {
    reprise::Schedule schedule;
    const auto add = [&](Do what, std::int32_t stage) { schedule.steps.push_back({what, stage}); };
    for (std::int32_t i = 0; i < length; ++i)
      add(i == 0 ? Do::kForwardCheckpoint : Do::kForwardDrop, i);
    for (std::int32_t i = length; i < count; ++i) add(Do::kForwardKeep, i);
    for (std::int32_t i = count; i-- > length;) add(Do::kBackward, i);
    for (std::int32_t i = 0; i < length; ++i) add(Do::kForwardKeep, i);
    for (std::int32_t i = length; i-- > 0;) add(Do::kBackward, i);
    // Proves it valid, too.
    if (reprise::check(chain, schedule).peak <= budget) return schedule;
  }
  throw reprise::BudgetError("one_segment: the budget is " + reprise::to_string(budget) +
                             ", and no segment makes the chain fit; raise it, or take rotor");
}

}  // namespace example
