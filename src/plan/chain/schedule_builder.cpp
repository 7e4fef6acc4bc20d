// What several planners make schedules of, and the error that all of them have.
#include "plan/chain/schedule_builder.h"

#include <reprise/error.h>

#include <algorithm>

namespace reprise::plan {

using Kind = ScheduleOp::Kind;

void ScheduleBuilder::advance(StageRange stages) {
  for (std::int64_t i = stages.begin; i < stages.end; ++i) {
    add(i == stages.begin ? Kind::kForwardCheckpoint : Kind::kForwardDrop, i);
  }
}

void ScheduleBuilder::keep(StageRange stages) {
  for (std::int64_t i = stages.begin; i < stages.end; ++i) add(Kind::kForwardKeep, i);
}

void ScheduleBuilder::backward(StageRange stages) {
  for (std::int64_t i = stages.end; i-- > stages.begin;) add(Kind::kBackward, i);
}

Schedule ScheduleBuilder::take(const Chain& chain) {
  const auto is_one = [](const ChainStage& stage) { return stage.layers == 1; };
  if (!std::all_of(chain.stages.begin(), chain.stages.end(), is_one)) {
    for (const ChainStage& stage : chain.stages) schedule_.layers.push_back(stage.layers);
  }
  return std::move(schedule_);
}

void refuse_budget(const std::string& planner, Bytes budget, Bytes least) {
  throw BudgetError(planner + ": the budget is " + to_string(budget) + " (" +
                    std::to_string(budget.count) + " bytes), but the chain needs at least " +
                    to_string(least) + " (" + std::to_string(least.count) +
                    " bytes) with this planner; raise the budget" +
                    (planner == "rotor" ? ", or make stages smaller" : ", or take rotor"));
}

Schedule within(const Chain& chain, Schedule schedule, Bytes budget, const std::string& planner) {
  const Bytes peak = evaluate(chain, schedule).peak;
  if (peak > budget) refuse_budget(planner, budget, peak);
  return schedule;
}

Schedule segments_of_equal_length(const Chain& chain, std::int64_t segments) {
  const std::int64_t stages = std::ssize(chain.stages);
  const std::int64_t length = stages / segments;
  const std::int64_t last = (segments - 1) * length;
  ScheduleBuilder builder;
  for (std::int64_t begin = 0; begin < last; begin += length) {
    builder.advance({begin, begin + length});
  }
  builder.keep({last, stages});
  builder.backward({last, stages});
  for (std::int64_t begin = last - length; begin >= 0; begin -= length) {
    builder.keep({begin, begin + length});
    builder.backward({begin, begin + length});
  }
  return builder.take(chain);
}

}  // namespace reprise::plan
