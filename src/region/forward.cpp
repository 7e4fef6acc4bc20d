// The first run of a region's function.
#include <utility>

#include "core/ticks.h"
#include "region/frame.h"

namespace reprise::region {

Frame::Forward::Forward(Frame& frame, const CheckpointOptions& options) : frame_(frame) {
  if (options.context) frame.contexts_ = std::make_unique<RegionContexts>(options.context());
  auto state = libtorch::copy_of_current_state();
  auto self = frame.shared_from_this();
  state->set_region_hooks(self);
  state->checkpointing = true;
  recording_.emplace(std::shared_ptr<ReplayState>(std::move(self), &frame.replay_), *state);
  in_force_.emplace(std::move(state));
  if (frame.contexts_ != nullptr && frame.contexts_->forward) {
    context_ = frame.contexts_->forward();
  }
  frame.forward_scope_ = context_.get();
  if (frame.debug_) trace_.emplace();
  if (frame.determinism_check_ == DeterminismCheck::kValues) names_.emplace();
}

void Frame::Forward::end() {
  if (frame_.early_stop_ != EarlyStop::kNever) frame_.tail_ = ticks() - frame_.last_save_;
  if (trace_) frame_.forward_operators_ = trace_->lines();
  names_.reset();
  trace_.reset();
  context_.reset();
  in_force_.reset();
  recording_.reset();
  frame_.replay_.end_forward();
  frame_.arguments_.end_forward();
  frame_.forward_completed_.store(true, std::memory_order_release);
}

void Frame::run_forward(const CheckpointOptions& options) {
  Forward forward(*this, options);
  call_->run_first();
  forward.end();
}

}  // namespace reprise::region
