// The bytes of one worker of a pipeline, action by action, whatever the moments at which the others
// send: so a plan that fits always fits.
#pragma once

#include <reprise/pipeline_residency.h>

#include <cstdint>
#include <vector>

namespace reprise::plan {

// One stage and micro-batch of a worker.
struct ResidentItem {
  std::int64_t stage = 0, micro_batch = 0;
  // Places of its F, of its B or I, and of its W (or B) in the worker's list.
  std::size_t forward = 0, backward = 0, end = 0;
};

// A worker's actions in order, with the bytes that do not depend on the plan: what is resident, and
// the most that can have arrived by then for later actions.
struct WorkerActions {
  std::vector<PipelineAction> actions;
  std::vector<Bytes> fixed;  // of each action
  std::vector<ResidentItem> items;
};

// The most inputs and gradients that may wait at a stage.
struct Waiting {
  std::int64_t inputs = 1, gradients = 1;
};

// Counts how many wait at each stage in that step. A step can be run with these bounds.
std::vector<Waiting> waiting_in(const PipelineTimeline& timeline, std::int64_t stages);

// All workers' actions. An action's arrivals are bounded by `waiting` and by the order: whatever does
// not wait for the action may have been sent before it ends.
std::vector<WorkerActions> actions_of_workers(const PipelineSchedule& schedule,
                                              const std::vector<PipelineStageProfile>& profiles,
                                              const std::vector<Waiting>& waiting);

// The bytes of a worker under a plan that changes.
class WorkerBytes {
 public:
  // Every item as in `plan`, by the order of the worker's items.
  WorkerBytes(const WorkerActions& worker, const std::vector<PipelineStageProfile>& profiles,
              std::vector<const PipelineMicroBatch*> plan);

  Bytes peak() const;
  // Whether the worker stays within that with another plan of one item.
  bool fits(std::size_t item, const PipelineMicroBatch& other, Bytes bytes) const;
  void set(std::size_t item, const PipelineMicroBatch& other);

 private:
  // Calls `use` with each place that the item is in flight at, and what it takes there.
  template <class Use>
  void each_place(std::size_t item, const PipelineMicroBatch& as, Use&& use) const;

  const WorkerActions& worker_;
  const std::vector<PipelineStageProfile>& profiles_;
  std::vector<const PipelineMicroBatch*> plan_;
  std::vector<Bytes> totals_;  // of each action
};

}  // namespace reprise::plan
