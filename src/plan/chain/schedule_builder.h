// What planners share: schedules out of their parts, and the budget's last word.
#pragma once

#include <reprise/chain.h>

#include <cstdint>
#include <string>
#include <utility>

namespace reprise::plan {

// Stages [begin, end).
struct StageRange {
  std::int64_t begin = 0, end = 0;
};

class ScheduleBuilder {
 public:
  void add(ScheduleOp::Kind kind, std::int64_t stage) {
    schedule_.ops.push_back({kind, static_cast<std::int32_t>(stage)});
  }
  // Runs the stages not kept, so that the output of the last is there, and the input of the first
  // still.
  void advance(StageRange stages);
  void keep(StageRange stages);
  // From the last to the first.
  void backward(StageRange stages);

  Schedule take(const Chain& chain);

 private:
  Schedule schedule_;
};

// The schedule, if its peak is within the budget; BudgetError otherwise.
Schedule within(const Chain& chain, Schedule schedule, Bytes budget, const std::string& planner);

// Runs of equally many stages, all but the last run not kept at first, and kept before their
// backward; see planners::uniform().
Schedule segments_of_equal_length(const Chain& chain, std::int64_t segments);

[[noreturn]] void refuse_budget(const std::string& planner, Bytes budget, Bytes least);

}  // namespace reprise::plan
