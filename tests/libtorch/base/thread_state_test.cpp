// The state attached to a thread: a stack of immutable states, carried where at::ThreadLocalState
// goes and nowhere else.
#include "libtorch/base/thread_state.h"

#include <ATen/ThreadLocalState.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

namespace reprise::libtorch {
namespace {

std::shared_ptr<ThreadState> state_with_debug(bool debug) {
  auto state = copy_of_current_state();
  state->debug = debug;
  return state;
}

TEST(ThreadState, IsNullWhereNothingIsInForce) {
  EXPECT_EQ(current_state(), nullptr);
  const auto fresh = copy_of_current_state();
  EXPECT_EQ(fresh->hooks, nullptr);
  EXPECT_FALSE(fresh->debug.has_value());
  EXPECT_FALSE(fresh->checkpointing || fresh->recomputing);
  EXPECT_EQ(fresh->replaying, ThreadState::ReplayLock::kNone);
  EXPECT_EQ(current_state(), nullptr);
}

TEST(ThreadState, ScopesNestAndGiveBackTheirPredecessor) {
  {
    const ThreadStateScope outer(state_with_debug(true));
    const ThreadState* const outer_state = current_state();
    ASSERT_NE(outer_state, nullptr);
    {
      auto changed = copy_of_current_state();
      changed->recomputing = true;
      const ThreadStateScope inner(changed);
      EXPECT_EQ(current_state()->debug, true);
      EXPECT_TRUE(current_state()->recomputing);
      EXPECT_FALSE(outer_state->recomputing);
    }
    EXPECT_EQ(current_state(), outer_state);
  }
  EXPECT_EQ(current_state(), nullptr);
}

TEST(ThreadState, ACopyKeepsTheHooksOfTheScopeAroundIt) {
  struct Provider final : HookProvider {
    std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override { return nullptr; }
  };
  const auto provider = std::make_shared<Provider>();
  auto state = copy_of_current_state();
  state->set_hooks(provider);
  const ThreadStateScope scope(state);
  EXPECT_EQ(copy_of_current_state()->hooks, provider);
  EXPECT_EQ(copy_of_current_state()->python_hooks_below, 0u);
}

TEST(ThreadState, IsUnwoundByAnException) {
  try {
    const ThreadStateScope scope(state_with_debug(true));
    throw 1;
  } catch (int) {
  }
  EXPECT_EQ(current_state(), nullptr);
}

TEST(ThreadState, IsNotSeenByAThreadOfTheUsers) {
  const ThreadStateScope scope(state_with_debug(true));
  std::thread([] { EXPECT_EQ(current_state(), nullptr); }).join();
}

TEST(ThreadState, GoesWhereLibTorchCarriesItsThreadLocalState) {
  const ThreadStateScope scope(state_with_debug(true));
  const at::ThreadLocalState carried;
  std::thread([&] {
    {
      const at::ThreadLocalStateGuard guard(carried);
      ASSERT_NE(current_state(), nullptr);
      EXPECT_EQ(current_state()->debug, true);
    }
    EXPECT_EQ(current_state(), nullptr);
  }).join();
}

TEST(ThreadState, OutlivesItsScopeWhereItWasCarried) {
  std::optional<at::ThreadLocalState> carried;
  {
    const ThreadStateScope scope(state_with_debug(true));
    carried.emplace();
  }
  EXPECT_EQ(current_state(), nullptr);
  const at::ThreadLocalStateGuard guard(*carried);
  EXPECT_EQ(current_state()->debug, true);
}

TEST(ThreadState, IsNotInTheWayOfTheProfilersEntryInTheSameChannel) {
  struct Other final : c10::DebugInfoBase {};
  const ThreadStateScope outer(state_with_debug(true));
  const auto other = std::make_shared<Other>();
  const c10::DebugInfoGuard profiler(c10::DebugInfoKind::PROFILER_STATE, other);
  EXPECT_EQ(current_state()->debug, true);
  const ThreadStateScope inner(state_with_debug(false));
  EXPECT_EQ(current_state()->debug, false);
  EXPECT_EQ(c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE), other.get());
}

}  // namespace
}  // namespace reprise::libtorch
