// Bytes are never above the budget, and what happens when they cannot be had.

#include <ATen/ThreadLocalState.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <chrono>
#include <cmath>
#include <optional>

#include "libtorch/base/thread_state.h"
#include "tape/value.h"
#include "tests/tape/testing.h"

namespace reprise {
namespace {

using at::Tensor;
using testing::leaf;
using testing::Tensors;

// A deep chain of layers that all keep something for backward.
struct Network {
  torch::nn::Sequential layers;
  Tensor x = leaf({64, 64});

  explicit Network(int depth = 24) {
    for (int i = 0; i < depth; ++i) {
      layers->push_back(torch::nn::Linear(64, 64));
      layers->push_back(torch::nn::Tanh());
      layers->push_back(torch::nn::Dropout(0.1));
    }
  }
  Tensors leaves() {
    Tensors all = layers->parameters();
    all.push_back(x);
    return all;
  }
  Tensor operator()() { return layers->forward(x); }
};

TEST(Budget, TheStepFitsAndGradientsAreThePlainOnes) {
  Network network;
  const auto f = [&] { return network(); };
  Bytes peak;
  Tensors plain;
  {
    const PeakScope scope;
    plain = testing::plain_gradients(f, network.leaves());
    plain.clear();
    peak = scope.peak();
    plain = testing::plain_gradients(f, network.leaves());
  }
  const Bytes start = live_bytes();
  for (const double share : {0.8, 0.6}) {
    const Bytes limit(start.count +
                      static_cast<std::int64_t>(share * static_cast<double>((peak - start).count)));
    MemoryBudget budget(limit, {.min_bytes = Bytes(1024)});
    EXPECT_TRUE(testing::same_bits(testing::gradients_under(budget, f, network.leaves()), plain));
    EXPECT_LE(budget.report().peak, limit);
    EXPECT_GT(budget.report().replayed, 0);
  }
}

TEST(Budget, WithoutPressureThePeakIsThePlainOne) {
  Network network(6);
  const auto f = [&] { return network(); };
  const auto peak_of = [&](auto&& run) {
    run();
    const PeakScope scope;
    run();
    return scope.peak_above_start();
  };
  MemoryBudget budget(GiB(64));
  const Bytes mine = peak_of([&] { testing::gradients_under(budget, f, network.leaves()); });
  const Bytes plain = peak_of([&] { testing::plain_gradients(f, network.leaves()); });
  // malloc hands out some bytes more or less from time to time.
  EXPECT_NEAR(static_cast<double>(mine.count), static_cast<double>(plain.count), 1024);
  EXPECT_EQ(budget.report().dropped, 0);
}

// A gradient waits in the thread's queue when another one's hook throws.
Tensor two_branches(const Tensor& x, bool fails) {
  const Tensor first = x.sin(), second = x.cos();
  if (fails) second.register_hook([](const Tensor&) { throw std::out_of_range("hook"); });
  return first.exp() + second.exp();
}

TEST(Budget, AStepThatFailedInBackwardTakesNothingFromTheNextOne) {
  const Tensor x = leaf({64, 1024});
  const auto f = [&] { return two_branches(x, /*fails=*/false); };
  const Tensors plain = testing::plain_gradients(f, {x});
  const Bytes before = live_bytes();
  const Bytes limit = testing::limit_at(0.85, [&] { testing::plain_gradients(f, {x}); });
  MemoryBudget budget(limit);
  const auto fails = [&] {
    testing::gradients_under(budget, [&] { return two_branches(x, true); }, {x});
  };
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(testing::error_of<std::out_of_range>(fails), "hook");
    x.mutable_grad() = Tensor();
    EXPECT_EQ(live_bytes(), before);
    EXPECT_TRUE(testing::same_bits(testing::gradients_under(budget, f, {x}), plain));
  }
}

TEST(Budget, WorkGoesOnInAStepWhoseBackwardFailed) {
  const Tensor x = leaf({64, 1024});
  const auto f = [&] { return two_branches(x, /*fails=*/false); };
  const Tensors plain = testing::plain_gradients(f, {x});
  MemoryBudget budget(testing::limit_at(0.85, [&] { testing::plain_gradients(f, {x}); }));
  testing::take_gradients({x});
  auto step = budget.step();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(testing::error_of<std::out_of_range>([&] { two_branches(x, true).sum().backward(); }),
              "hook");
    testing::take_gradients({x});
  }
  f().sum().backward();
  step.finish();
  EXPECT_TRUE(testing::same_bits(testing::take_gradients({x}), plain));
}

TEST(Budget, TooSmallIsAnErrorThatNamesTheOperatorAndTheNextStepWorks) {
  Network network;
  const auto f = [&] { return network(); };
  const Tensors plain = testing::plain_gradients(f, network.leaves());
  const Bytes before = live_bytes();
  {
    MemoryBudget budget(live_bytes() + KiB(20));
    const std::string text = testing::error_of<BudgetError>(
        [&] { testing::gradients_under(budget, f, network.leaves()); });
    EXPECT_THAT(text, ::testing::HasSubstr("aten::"));
    EXPECT_THAT(text, ::testing::HasSubstr("asks for"));
    EXPECT_THAT(text, ::testing::HasSubstr("in use by this operator or pinned"));
    EXPECT_THAT(text, ::testing::HasSubstr(" bytes) this allocation would have fitted, and this "
                                           "operator or later ones may need more; raise the"));
  }
  testing::take_gradients(network.leaves());
  EXPECT_EQ(live_bytes(), before);
  MemoryBudget budget(GiB(64));
  EXPECT_TRUE(testing::same_bits(testing::gradients_under(budget, f, network.leaves()), plain));
}

// "With 20.1 KB (20056 bytes)": both figures.
std::pair<Bytes, Bytes> asked_for(const std::string& text) {
  const auto begin = text.find("With ") + 5, open = text.find(" (", begin);
  return {parse_bytes(text.substr(begin, open - begin)), Bytes(std::stoll(text.substr(open + 2)))};
}

TEST(Budget, WhatTheErrorAsksForSuffices) {
  std::int64_t rounded_away = 0;
  for (std::int64_t width = 5000; width < 5020; ++width) {
    const Tensor x = torch::ones({width});
    const auto text_at = [&](Bytes limit) {
      MemoryBudget budget(limit);
      auto step = budget.step();
      return testing::error_of<BudgetError>([&] { x.neg(); });
    };
    const auto [rounded, exact] = asked_for(text_at(live_bytes() + Bytes(100)));
    EXPECT_GE(rounded, exact);
    EXPECT_LE(static_cast<double>((rounded - exact).count), 0.1 * static_cast<double>(exact.count));
    rounded_away += parse_bytes(to_string(exact)) < exact ? 1 : 0;
    for (const Bytes enough : {rounded, exact}) {
      MemoryBudget budget(enough);
      auto step = budget.step();
      EXPECT_NO_THROW(x.neg()) << enough.count;
    }
    // No more than malloc's overhead is asked for in vain.
    EXPECT_NE(text_at(exact - Bytes(65)), "");
  }
  // Or nothing was tried.
  EXPECT_GT(rounded_away, 0);
}

TEST(Budget, WithoutAnOperatorTheErrorSpeaksOfNone) {
  const Tensor x = torch::ones({64, 64});
  MemoryBudget budget(live_bytes() + KiB(20));
  auto step = budget.step();
  const Tensor y = x.neg();
  const Pin pin(y);
  const std::string text = testing::error_of<BudgetError>(
      [] { c10::GetAllocator(c10::kCPU)->allocate(std::size_t{1} << 20); });
  EXPECT_THAT(text, ::testing::HasSubstr(": an allocation outside of operators asks for 1.0 MB"));
  EXPECT_THAT(text, ::testing::HasSubstr(" in use or pinned. With"));
  EXPECT_THAT(text, ::testing::HasSubstr("this allocation would have fitted, and later ones may"));
  EXPECT_THAT(text, ::testing::Not(::testing::HasSubstr("this operator")));
}

TEST(Budget, AWarningMayTakeThePlaceOfTheError) {
  Network network;
  const auto f = [&] { return network(); };
  const Tensors plain = testing::plain_gradients(f, network.leaves());
  MemoryBudget budget(live_bytes() + KiB(20), {.on_exceeded = OnExceeded::kWarn});
  EXPECT_TRUE(testing::same_bits(testing::gradients_under(budget, f, network.leaves()), plain));
  EXPECT_GT(budget.report().peak, budget.limit());
}

TEST(Budget, BadOptionsAreRefused) {
  EXPECT_THAT(testing::error_of<UsageError>([] { MemoryBudget budget(Bytes(0)); }),
              ::testing::HasSubstr("the limit is 0 bytes; it must be above 0"));
  EXPECT_THAT(testing::error_of<UsageError>(
                  [] { MemoryBudget budget(GiB(1), {.heuristic = static_cast<Heuristic>(7)}); }),
              ::testing::HasSubstr("h_eq"));
  const auto refusal_of = [](const BudgetOptions& options) {
    return testing::error_of<UsageError>([&] { MemoryBudget budget(GiB(1), options); });
  };
  EXPECT_THAT(refusal_of({.min_bytes = Bytes(-1)}),
              ::testing::HasSubstr("BudgetOptions::min_bytes is -1 bytes; it must be at least 0"));
  for (const double limit : {-1.0, std::nan("")}) {
    EXPECT_THAT(
        refusal_of({.replay_limit = std::chrono::duration<double>(limit)}),
        ::testing::ContainsRegex("BudgetOptions::replay_limit is -?(1.0+|nan) s; it must be at "
                                 "least 0"));
  }
}

TEST(Budget, APlanIsWaitedForANumberOfSeconds) {
  const MemoryBudget budget(GiB(1));
  EXPECT_THAT(testing::error_of<UsageError>(
                  [&] { budget.wait_for_plan(std::chrono::duration<double>(std::nan(""))); }),
              ::testing::HasSubstr("the time is nan s; it must be a number"));
  EXPECT_TRUE(budget.wait_for_plan(std::chrono::seconds(0)));
}

TEST(Budget, AStepThatWasMovedFromCannotBeFinished) {
  MemoryBudget budget(GiB(1));
  auto step = budget.step();
  auto moved = std::move(step);
  EXPECT_THAT(testing::error_of<UsageError>([&] { step.finish(); }),
              ::testing::HasSubstr("finish() of a step that was moved from"));
  moved.finish();
}

// A step's scope, which sees its operators only while it is in force.
std::int64_t operators_seen_by(MemoryBudget& budget) {
  const std::int64_t before = budget.report().operators;
  leaf().sin();
  return budget.report().operators - before;
}

TEST(Budget, AStepCannotBeFinishedBeforeTheOneInsideOfIt) {
  MemoryBudget one(GiB(1)), other(GiB(1));
  auto outer = one.step();
  auto inner = other.step();
  EXPECT_THAT(testing::error_of<UsageError>([&] { outer.finish(); }),
              ::testing::HasSubstr("end the inner step first"));
  EXPECT_GT(operators_seen_by(one), 0) << "nothing has changed";
  EXPECT_GT(operators_seen_by(other), 0);
  inner.finish();
  EXPECT_GT(operators_seen_by(one), 0);
  outer.finish();
}

TEST(Budget, StepsThatEndInTheWrongOrderLeaveNothingBehind) {
  MemoryBudget one(GiB(1)), other(GiB(1)), third(GiB(1));
  std::optional<MemoryBudget::Step> outer(one.step()), middle(other.step()), inner(third.step());
  outer.reset();
  EXPECT_GT(operators_seen_by(third), 0);
  middle.reset();
  EXPECT_GT(operators_seen_by(third), 0);
  inner->finish();
  EXPECT_EQ(libtorch::current_state(), nullptr);
  auto again = one.step();
  EXPECT_GT(operators_seen_by(one), 0);
  again.finish();
  EXPECT_EQ(libtorch::current_state(), nullptr);
}

TEST(Budget, ADeepChainIsReplayedWithoutRecursion) {
  const Tensor x = leaf({16, 16});
  MemoryBudget budget(live_bytes() + MiB(4), {.min_bytes = Bytes(512)});
  Tensor y;
  {
    auto step = budget.step();
    y = x;
    for (int i = 0; i < 20'000; ++i) y = y.sin();
    y.sum().backward();
    step.finish();
  }
  EXPECT_LE(budget.report().peak, budget.limit());
  const Tensor gradient = x.grad().clone();
  x.mutable_grad().reset();
  Tensor z = x;
  for (int i = 0; i < 20'000; ++i) z = z.sin();
  z.sum().backward();
  EXPECT_TRUE(gradient.equal(x.grad()));
}

TEST(Budget, HoldsInAStepWhenAnotherOneOfItHasEnded) {
  MemoryBudget budget(live_bytes() + KiB(256));
  auto outer = budget.step();
  { auto inner = budget.step(); }
  EXPECT_THROW(torch::zeros({128, 1024}), BudgetError);
}

TEST(Budget, TellsTheTapesOwnTimeApartFromOperatorsAndReplays) {
  Network network;
  const auto f = [&] { return network(); };
  const Bytes limit =
      testing::limit_at(0.6, [&] { testing::plain_gradients(f, network.leaves()); });
  MemoryBudget budget(limit);
  EXPECT_EQ(budget.report().own_time.count(), 0);
  Seconds own{};
  std::int64_t replayed = 0;
  for (int i = 0; i < 5; ++i) {
    const auto start = std::chrono::steady_clock::now();
    testing::gradients_under(budget, f, network.leaves());
    const Seconds all = std::chrono::steady_clock::now() - start;
    const StepReport report = budget.report();
    EXPECT_LE((report.own_time + report.replay_time + report.pack_time).count(), all.count());
    own += report.own_time;
    replayed += report.replayed;
  }
  EXPECT_GT(replayed, 0);
  EXPECT_GT(own.count(), 0);
}

// A step that was given to a callback: what runs there when the step is over is plain.
TEST(Budget, WhatAStepHasStartedMayRunWhenTheBudgetIsGone) {
  std::optional<at::ThreadLocalState> state;
  {
    MemoryBudget budget(GiB(64));
    auto step = budget.step();
    state.emplace();
  }
  const at::ThreadLocalStateGuard guard(*state);
  const Tensor x = torch::rand({64, 64});
  EXPECT_TRUE(torch::equal(x + x, x * 2));
  EXPECT_EQ(tape::living_records(), 0);
}

}  // namespace
}  // namespace reprise
