// The generators of schedules share this: lists of slots that grow action by action, and the bounds
// of arguments.
#pragma once

#include <reprise/pipeline_schedule.h>

#include <cstdint>
#include <string>
#include <vector>

namespace reprise::plan {

// The list of one worker.
class SlotList {
 public:
  void idle(std::int64_t count = 1) {
    for (std::int64_t i = 0; i < count; ++i) slots_.emplace_back();
  }
  void add(std::int64_t stage, PipelineWork work, std::int64_t micro_batch) {
    slots_.push_back({{stage, work, micro_batch}});
  }
  void add(const PipelineSlot& slot) { slots_.push_back(slot); }
  std::vector<PipelineSlot> take() && { return std::move(slots_); }

 private:
  std::vector<PipelineSlot> slots_;
};

// A schedule without actions, with lists for all workers. Throws UsageError for sizes out of bounds.
PipelineSchedule empty_schedule(const std::string& name, std::int64_t workers,
                                std::int64_t stages_per_worker, std::int64_t micro_batches);

// Throws UsageError if `micro_batches` is not a multiple of its rounds; returns how many
// micro-batches a round has.
std::int64_t micro_batches_of_round(const std::string& name, std::int64_t workers,
                                    std::int64_t micro_batches);

}  // namespace reprise::plan
