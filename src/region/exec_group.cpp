#include "region/exec_group.h"

#include <reprise/checkpoint.h>

#include <atomic>
#include <limits>
#include <utility>

#include "libtorch/base/thread_state.h"

namespace reprise {
namespace detail {
namespace {

std::uint64_t next_key() {
  static std::atomic<std::uint64_t> next{std::numeric_limits<std::uint64_t>::max()};
  return next.fetch_sub(1);
}

}  // namespace

GroupState::GroupState() : key(next_key()) {}

void GroupState::at_end(std::function<void()> callback) {
  std::lock_guard<std::mutex> lock(mutex_);
  callbacks_.push_back(std::move(callback));
}

void GroupState::end() {
  std::vector<std::function<void()>> callbacks;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    callbacks.swap(callbacks_);
  }
  for (const auto& callback : callbacks) callback();
}

}  // namespace detail

GraphExecGroup::GraphExecGroup() : state_(std::make_shared<detail::GroupState>()) {}
GraphExecGroup::~GraphExecGroup() { state_->end(); }

struct GraphExecGroup::Scope::Impl {
  libtorch::ThreadStateScope in_force;
};

GraphExecGroup::Scope::Scope(GraphExecGroup& group) {
  auto state = libtorch::copy_of_current_state();
  if (state->group != nullptr) {
    throw UsageError(
        "GraphExecGroup::Scope: this thread is already inside a group's scope; groups cannot be "
        "nested, so close the outer scope first");
  }
  state->group = group.state_;
  impl_.reset(new Impl{libtorch::ThreadStateScope(std::move(state))});
}

GraphExecGroup::Scope::~Scope() = default;

}  // namespace reprise
