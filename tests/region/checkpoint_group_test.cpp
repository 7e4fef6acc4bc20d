// GraphExecGroup: several backward calls that share one recomputation, and the price of it, that
// each saved tensor is handed out once.
#include "tests/region/testing.h"

#include <thread>

namespace reprise {
namespace {

using namespace reprise::testing;

auto two_halves(const at::Tensor& x) {
  at::Tensor y = x.sin().cos();
  at::Tensor z = y.sin().cos();
  return std::pair(y, z);
}

// Backward in two calls: from z to y, then from y to x.
at::Tensor in_two_calls(const at::Tensor& x, const at::Tensor& y, const at::Tensor& z) {
  const at::Tensor grad_y = torch::autograd::grad({z}, {y}, {torch::ones_like(z)})[0];
  return torch::autograd::grad({y}, {x}, {grad_y})[0];
}

TEST(CheckpointGroup, RecomputesOnceForAllItsBackwardCalls) {
  const at::Tensor x = leaf({3, 3});
  const auto [plain_y, plain_z] = two_halves(x);
  const at::Tensor expected = in_two_calls(x, plain_y, plain_z);
  int runs = 0;
  {
    const auto [y, z] = checkpoint(counted(runs, two_halves), x);
    GraphExecGroup group;
    const GraphExecGroup::Scope scope(group);
    EXPECT_TRUE(same_bits(in_two_calls(x, y, z), expected));
    EXPECT_EQ(runs, 2);
  }
  runs = 0;
  const auto [y, z] = checkpoint(counted(runs, two_halves), x);
  EXPECT_TRUE(same_bits(in_two_calls(x, y, z), expected));
  EXPECT_EQ(runs, 3);
}

TEST(CheckpointGroup, MayBeLeftAndEnteredAgain) {
  const at::Tensor x = leaf({3, 3});
  int runs = 0;
  const auto [y, z] = checkpoint(counted(runs, two_halves), x);
  GraphExecGroup group;
  at::Tensor grad_y;
  {
    const GraphExecGroup::Scope scope(group);
    grad_y = torch::autograd::grad({z.sum()}, {y})[0];
  }
  {
    const GraphExecGroup::Scope scope(group);
    torch::autograd::grad({y}, {x}, {grad_y});
  }
  EXPECT_EQ(runs, 2);
}

TEST(CheckpointGroup, OverlappingBackwardCallsAreAnErrorThatSaysSo) {
  const at::Tensor x = leaf({3, 3});
  const at::Tensor y = checkpoint([](const at::Tensor& t) { return t.sin().cos(); }, x);
  {
    GraphExecGroup group;
    const GraphExecGroup::Scope scope(group);
    y.sum().backward({}, /*retain_graph=*/true);
    const std::string text = error_of<DeterminismError>([&] { y.sum().backward({}, true); });
    EXPECT_TRUE(contains(text, "two backward calls that overlap"));
    EXPECT_TRUE(contains(text, "GraphExecGroup"));
  }
  take_gradients({x});
  y.sum().backward();  // outside of the group it is an ordinary backward
  const Tensors actual = take_gradients({x});
  EXPECT_TRUE(same_bits(actual, gradients_of([&] { return x.sin().cos(); }, {x})));
}

TEST(CheckpointGroup, ScopesOfGroupsDoNotNest) {
  GraphExecGroup first, second;
  {
    const GraphExecGroup::Scope scope(first);
    EXPECT_TRUE(
        contains(error_of<UsageError>([&] { const GraphExecGroup::Scope inner(second); }), "nest"));
    error_of<UsageError>([&] { const GraphExecGroup::Scope inner(first); });
  }
  const GraphExecGroup::Scope scope(second);  // the failed attempts left nothing behind
}

TEST(CheckpointGroup, WhatWasNotReadIsFreedWithTheGroup) {
  const at::Tensor x = leaf({10000});
  const auto [y, z] = checkpoint(two_halves, x);
  const Bytes before = live_bytes();
  {
    GraphExecGroup group;
    {
      const GraphExecGroup::Scope scope(group);
      torch::autograd::grad({z.sum()}, {y}, {}, /*retain_graph=*/true);
    }
    EXPECT_GT(live_bytes(), before) << "the first half's tensors wait for a second call";
  }
  EXPECT_EQ(live_bytes(), before);
}

TEST(CheckpointGroup, AnotherThreadsBackwardCallsAreNotInTheGroup) {
  const at::Tensor x = leaf({3, 3});
  const at::Tensor expected = torch::autograd::grad({x.sin().cos().sum()}, {x})[0];
  int runs = 0;
  const at::Tensor y =
      checkpoint(counted(runs, [](const at::Tensor& t) { return t.sin().cos(); }), x);
  GraphExecGroup group;
  const GraphExecGroup::Scope scope(group);
  EXPECT_TRUE(same_bits(torch::autograd::grad({y.sum()}, {x}, {}, true)[0], expected));
  at::Tensor other;
  std::thread([&] { other = torch::autograd::grad({y.sum()}, {x}, {}, true)[0]; }).join();
  EXPECT_TRUE(same_bits(other, expected));
  EXPECT_EQ(runs, 3);
}

TEST(CheckpointGroup, ReentrantRegionsAreNotAffected) {
  const at::Tensor x = leaf({3, 3});
  int runs = 0;
  const at::Tensor y =
      checkpoint(reentrant(), counted(runs, [](const at::Tensor& t) { return t.sin().cos(); }), x);
  GraphExecGroup group;
  const GraphExecGroup::Scope scope(group);
  y.sum().backward({}, true);
  y.sum().backward({}, true);
  EXPECT_EQ(runs, 3);
  const Tensors twice = take_gradients({x});
  const Tensors once = gradients_of([&] { return x.sin().cos(); }, {x});
  EXPECT_TRUE(same_bits(twice[0], once[0] * 2));
}

TEST(CheckpointGroup, RegionsNestedInRegionsShareTheRecomputationToo) {
  const at::Tensor x = leaf({3, 3});
  int inner_runs = 0;
  const auto inner = counted(inner_runs, [](const at::Tensor& t) { return two_halves(t); });
  const auto nested = [&](const at::Tensor& t) { return checkpoint(inner, t.exp()); };
  const auto [y, z] = checkpoint(with_early_stop(EarlyStop::kAlways), nested, x);
  const auto [plain_y, plain_z] = two_halves(x.exp());
  const at::Tensor expected = in_two_calls(x, plain_y, plain_z);
  inner_runs = 0;
  GraphExecGroup group;
  const GraphExecGroup::Scope scope(group);
  EXPECT_TRUE(same_bits(in_two_calls(x, y, z), expected));
  EXPECT_EQ(inner_runs, 1);
}

}  // namespace
}  // namespace reprise
