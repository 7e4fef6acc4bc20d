// The activations that each worker of a pipeline holds, slot by slot, and the buffers that they
// need. Free buffers are taken lowest first, which needs no more buffers than activations live at
// once: lives are intervals.
#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <utility>

#include "plan/pipeline/action_order.h"
#include "plan/pipeline/checkpointed.h"

namespace reprise::plan {
namespace {

using ActivationKey = std::pair<std::int64_t, std::int64_t>;  // stage and micro-batch

class LivesOfWorker {
 public:
  explicit LivesOfWorker(std::int64_t checkpoint_stop) : checkpoint_stop_(checkpoint_stop) {}

  void run(const PipelineSlot& slot) {
    std::int64_t ending = 0, ending_checkpointed = 0;
    std::vector<std::int64_t> freed;
    for (const PipelineAction& action : slot) {
      const bool is_checkpointed = action.micro_batch < checkpoint_stop_;
      const ActivationKey key{action.stage, action.micro_batch};
      const bool is_gradient =
          action.work == PipelineWork::kBackward || action.work == PipelineWork::kInputGradient;
      if (action.work == PipelineWork::kForward) {
        place_of_[key] = result_.buffer.size();
        result_.buffer.push_back(-1);
        is_checkpointed ? static_cast<void>(++checkpointed_) : begin_life(key);
      } else if (is_gradient && is_checkpointed) {
        begin_life(key);
        ++ending_checkpointed;
      }
      if (action.work == PipelineWork::kBackward || action.work == PipelineWork::kWeightGradient) {
        ++ending;
        freed.push_back(result_.buffer[place_of_[key]]);
      }
    }
    result_.peak_kept = std::max(result_.peak_kept, kept_);
    result_.peak_checkpointed = std::max(result_.peak_checkpointed, checkpointed_);
    kept_ -= ending;
    checkpointed_ -= ending_checkpointed;
    for (const std::int64_t buffer : freed) free_.push(buffer);
    result_.kept.push_back(kept_);
    result_.checkpointed.push_back(checkpointed_);
  }

  PipelineLives::Worker take() && { return std::move(result_); }

 private:
  void begin_life(const ActivationKey& key) {
    ++kept_;
    std::int64_t& buffer = result_.buffer[place_of_[key]];
    if (free_.empty()) {
      buffer = result_.buffers++;
    } else {
      buffer = free_.top();
      free_.pop();
    }
  }

  const std::int64_t checkpoint_stop_;
  std::int64_t kept_ = 0, checkpointed_ = 0;
  std::map<ActivationKey, std::size_t> place_of_;  // in the order of forwards
  std::priority_queue<std::int64_t, std::vector<std::int64_t>, std::greater<>> free_;
  PipelineLives::Worker result_;
};

}  // namespace
}  // namespace reprise::plan

namespace reprise {

PipelineLives activation_lives(const PipelineSchedule& schedule, std::int64_t checkpoint_stop) {
  plan::check_checkpoint_stop("activation_lives", checkpoint_stop);
  schedule.check();
  PipelineLives lives;
  for (const std::vector<PipelineSlot>& slots : schedule.workers) {
    plan::LivesOfWorker worker(checkpoint_stop);
    for (const PipelineSlot& slot : slots) worker.run(slot);
    lives.workers.push_back(std::move(worker).take());
  }
  return lives;
}

}  // namespace reprise
