#include "tape/least_bytes.h"

#include <utility>

#include "plan/simulate/online_run.h"
#include "tape/tape.h"

namespace reprise::tape {

bool LeastBytes::wants_next() const { return written_ < kFirst || (is_other_ && written_ < kMost); }

void LeastBytes::step_ended(Tape& tape) {
  const std::int64_t operators = tape.report.operators;
  is_other_ = operators != operators_;
  if (!tape.log) return;
  ++written_;
  operators_ = operators;
  is_other_ = false;
  auto step = std::make_shared<const plan::OnlineStep>(tape.log->take());
  tape.log.reset();
  const std::lock_guard lock(mutex_);
  step_ = std::move(step);
  found_.reset();
}

std::optional<Bytes> LeastBytes::find_soon(const plan::EvictionHeuristic& heuristic) {
  {
    const std::lock_guard lock(mutex_);
    if (step_ == nullptr || step_->calls.size() > kFewCalls) return found_;
  }
  return find(heuristic);
}

std::optional<Bytes> LeastBytes::find(const plan::EvictionHeuristic& heuristic) {
  const std::lock_guard one_at_a_time(searching_);
  std::shared_ptr<const plan::OnlineStep> step;
  {
    const std::lock_guard lock(mutex_);
    if (step_ == nullptr || found_) return found_;
    step = step_;
  }
  const Bytes found(plan::least_bytes(*step, heuristic));
  const std::lock_guard lock(mutex_);
  if (step == step_) found_ = found;
  return found;
}

}  // namespace reprise::tape
