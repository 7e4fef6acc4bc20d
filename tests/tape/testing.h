// What the tests of the tape share: a step under a budget beside the plain one.
#pragma once

#include <gtest/gtest.h>
#include <reprise/budget.h>
#include <reprise/memory.h>

#include "tests/region/testing.h"

namespace reprise::testing {

inline BudgetOptions paranoid() { return {.min_bytes = Bytes(1), .paranoid = true}; }

// Gradients of `leaves` after forward().sum().backward(), all in a step under the budget.
template <class F>
Tensors gradients_under(MemoryBudget& budget, const F& forward, const Tensors& leaves) {
  at::manual_seed(7);
  take_gradients(leaves);
  auto step = budget.step();
  forward().sum().backward();
  step.finish();
  return take_gradients(leaves);
}

template <class F>
Tensors plain_gradients(const F& forward, const Tensors& leaves) {
  at::manual_seed(7);
  take_gradients(leaves);
  forward().sum().backward();
  return take_gradients(leaves);
}

// Bitwise the plain gradients where every read is a replay; and something was replayed.
template <class F>
::testing::AssertionResult is_right_when_all_is_dropped(const F& forward, const Tensors& leaves) {
  const Tensors plain = plain_gradients(forward, leaves);
  MemoryBudget budget(GiB(64), paranoid());
  const Tensors mine = gradients_under(budget, forward, leaves);
  if (budget.report().replayed == 0) return ::testing::AssertionFailure() << "nothing was replayed";
  return same_bits(mine, plain);
}

// `f(scope)` outside of steps, and in one: what a test does with tensors that are not leaves.
// Bitwise equal results, and something was replayed.
template <class F>
::testing::AssertionResult does_the_same_when_all_is_dropped(
    const F& f, const BudgetOptions& options = paranoid()) {
  at::manual_seed(7);
  const Tensors plain = f();
  MemoryBudget budget(GiB(64), options);
  at::manual_seed(7);
  Tensors mine;
  {
    auto step = budget.step();
    mine = f();
    step.finish();
  }
  if (budget.report().replayed == 0) return ::testing::AssertionFailure() << "nothing was replayed";
  return same_bits(mine, plain);
}

// `share` of what `run` takes above the bytes that are live now, as the limit of a budget.
template <class F>
Bytes limit_at(double share, const F& run) {
  run();
  const PeakScope scope;
  run();
  return live_bytes() + Bytes(static_cast<std::int64_t>(
                            share * static_cast<double>(scope.peak_above_start().count)));
}

}  // namespace reprise::testing
