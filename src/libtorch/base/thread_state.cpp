#include "libtorch/base/thread_state.h"

#include <ATen/SavedTensorHooks.h>

#include <utility>

#include "core/recycling_allocator.h"
#include "libtorch/base/versions.h"

namespace reprise::libtorch {
namespace {

std::size_t python_hooks() { return at::SavedTensorDefaultHooks::get_tls_state().stack.size(); }

}  // namespace

void ThreadState::set_hooks(std::shared_ptr<HookProvider> provider) {
  set_region_hooks(std::move(provider));
  program_hooks = hooks;
  python_hooks_below_program = python_hooks_below;
}

void ThreadState::set_region_hooks(std::shared_ptr<HookProvider> region) {
  hooks = std::move(region);
  python_hooks_below = python_hooks();
}

void ThreadState::use_program_hooks() {
  hooks = program_hooks;
  python_hooks_below = python_hooks_below_program;
}

bool is_in_program_hooks() {
  const ThreadState* const state = current_state();
  return (state != nullptr && state->program_hooks != nullptr) || python_hooks() > 0;
}

const ThreadState* current_state() {
  return static_cast<const ThreadState*>(c10::ThreadLocalDebugInfo::get(thread_state_kind()));
}

std::shared_ptr<ThreadState> copy_of_current_state() {
  const ThreadState* state = current_state();
  const RecyclingAllocator<ThreadState> allocator;
  return state != nullptr ? std::allocate_shared<ThreadState>(allocator, *state)
                          : std::allocate_shared<ThreadState>(allocator);
}

ThreadStateScope::ThreadStateScope(std::shared_ptr<ThreadState> state)
    : before_(c10::ThreadLocalDebugInfo::current()) {
  c10::ThreadLocalDebugInfo::_push(thread_state_kind(), std::move(state));
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
