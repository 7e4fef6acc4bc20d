// The lock of all limits. What is lent is the mutex itself: its owner lets go of it, and whoever
// may not have it meanwhile goes to sleep again until it is returned.
#include "libtorch/memory/memory_limit.h"

#include <utility>

namespace reprise::libtorch {

LimitMutex& limit_mutex() {
  // Destroyed never, since tensors in static variables are freed at the very end.
  static auto* mutex = new LimitMutex;
  return *mutex;
}

void LimitMutex::wait_for_return() {
  while (is_lent_ && lender_ != std::this_thread::get_id()) returned_.wait(mutex_);
}

void LimitMutex::run_last() {
  while (last_ != nullptr) {
    Last& work = *std::exchange(last_, last_->next_);
    work.run_last();
  }
}

LimitLoan::LimitLoan() {
  LimitMutex& limit = limit_mutex();
  depth_ = std::exchange(limit.depth_, 0);
  was_lent_ = std::exchange(limit.is_lent_, true);
  lender_before_ = std::exchange(limit.lender_, std::this_thread::get_id());
  for (int i = 0; i < depth_; ++i) limit.mutex_.unlock();
}

LimitLoan::~LimitLoan() {
  LimitMutex& limit = limit_mutex();
  for (int i = 0; i < depth_; ++i) limit.mutex_.lock();
  limit.depth_ = depth_;
  limit.is_lent_ = was_lent_;
  limit.lender_ = lender_before_;
  limit.returned_.notify_all();
}

}  // namespace reprise::libtorch
