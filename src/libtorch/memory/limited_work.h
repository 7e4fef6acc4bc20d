// For whose limits a thread works.
//
// An allocation is refused only on a thread that works for the keeper of the limit: the thread that
// opened its scope, and every thread to which LibTorch carries that one's state (autograd's device
// threads, the pool for reentrant backward calls, a thread that was given at::ThreadLocalState).
// Any other thread (a data loader, a logger, a thread that a kernel starts itself) has no part in
// the limit: room is made for its allocations, and those that find none are counted all the same.
#pragma once

#include <memory>

#include "libtorch/base/thread_state.h"
#include "libtorch/memory/memory_limit.h"

namespace reprise::libtorch {

struct LimitLink {
  const LimitKeeper* keeper;
  std::shared_ptr<const LimitLink> outer;
};

// While it lives, this thread works for the keeper. Scopes nest.
class LimitedWork {
 public:
  explicit LimitedWork(const LimitKeeper& keeper);

 private:
  ThreadStateScope in_force_;
};

// While it lives, this thread runs an operator that is seen, or a keeper's own work, and what it
// allocates belongs to that. What a thread that works for a limit allocates otherwise is counted
// apart (bytes_past_operators() in counting_allocator.h).
class AccountedWork {
 public:
  AccountedWork();
  ~AccountedWork();
  AccountedWork(const AccountedWork&) = delete;
  AccountedWork& operator=(const AccountedWork&) = delete;

  static bool is_on();
};

// A state with nothing but the limits that this thread works within: for a call that nobody else
// is to see, here or on another thread.
std::shared_ptr<ThreadState> state_of_limits();

// Whether this thread works for that keeper, or for any.
bool works_for(const LimitKeeper& keeper);
bool works_for_a_limit();

}  // namespace reprise::libtorch
