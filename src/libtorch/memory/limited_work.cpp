#include "libtorch/memory/limited_work.h"

#include <utility>

namespace reprise::libtorch {
namespace {

std::shared_ptr<ThreadState> state_with(const LimitKeeper& keeper) {
  auto state = copy_of_current_state();
  state->work_for(keeper);
  return state;
}

thread_local int accounted = 0;

const LimitLink* innermost_limit() {
  const ThreadState* const state = current_state();
  return state != nullptr ? state->limits.get() : nullptr;
}

}  // namespace

void ThreadState::work_for(const LimitKeeper& keeper) {
  limits = std::make_shared<const LimitLink>(LimitLink{&keeper, std::move(limits)});
}

LimitedWork::LimitedWork(const LimitKeeper& keeper) : in_force_(state_with(keeper)) {}

AccountedWork::AccountedWork() { ++accounted; }
AccountedWork::~AccountedWork() { --accounted; }
bool AccountedWork::is_on() { return accounted != 0; }

std::shared_ptr<ThreadState> state_of_limits() {
  auto state = std::make_shared<ThreadState>();
  if (const ThreadState* const now = current_state()) state->limits = now->limits;
  return state;
}

bool works_for(const LimitKeeper& keeper) {
  for (const LimitLink* link = innermost_limit(); link != nullptr; link = link->outer.get()) {
    if (link->keeper == &keeper) return true;
  }
  return false;
}

bool works_for_a_limit() { return innermost_limit() != nullptr; }

}  // namespace reprise::libtorch
