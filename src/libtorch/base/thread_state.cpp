#include "libtorch/base/thread_state.h"

#include <ATen/SavedTensorHooks.h>

#include <utility>

#include "core/recycling_allocator.h"
#include "libtorch/base/versions.h"

namespace reprise::libtorch {
void ThreadState::set_hooks(std::shared_ptr<HookProvider> provider) {
  hooks = std::move(provider);
  python_hooks_below = at::SavedTensorDefaultHooks::get_tls_state().stack.size();
}

const ThreadState* current_state() {
  return static_cast<const ThreadState*>(c10::ThreadLocalDebugInfo::get(kThreadState));
}

std::shared_ptr<ThreadState> copy_of_current_state() {
  const ThreadState* state = current_state();
  const RecyclingAllocator<ThreadState> allocator;
  return state != nullptr ? std::allocate_shared<ThreadState>(allocator, *state)
                          : std::allocate_shared<ThreadState>(allocator);
}

ThreadStateScope::ThreadStateScope(std::shared_ptr<ThreadState> state)
    : before_(c10::ThreadLocalDebugInfo::current()) {
  c10::ThreadLocalDebugInfo::_push(kThreadState, std::move(state));
}

ThreadStateScope::~ThreadStateScope() {
  if (!is_left_) c10::ThreadLocalDebugInfo::_forceCurrentDebugInfo(std::move(before_));
}

std::shared_ptr<c10::ThreadLocalDebugInfo> ThreadStateScope::leave() {
  is_left_ = true;
  return std::move(before_);
}

OwnWorkScope::OwnWorkScope() {
  const ThreadState* state = current_state();
  // Nobody asks unless something intercepts.
  if (state == nullptr || state->interceptors == nullptr || state->own_work) return;
  auto changed = copy_of_current_state();
  changed->own_work = true;
  scope_.emplace(std::move(changed));
}

}  // namespace reprise::libtorch
