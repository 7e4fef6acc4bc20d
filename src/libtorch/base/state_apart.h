// For work that is done beside the step around it, and that regions, hooks and groups of that step
// must see nothing of: profiles and estimates.
#pragma once

#include <memory>

#include "libtorch/base/thread_state.h"

namespace reprise::libtorch {

// The thread's state without regions, hooks for saved tensors and what belongs to them.
std::shared_ptr<ThreadState> state_without_regions();
// Also without operator interceptors (budgets, policies, recorders) and names: as on a new thread.
std::shared_ptr<ThreadState> state_apart();

}  // namespace reprise::libtorch
