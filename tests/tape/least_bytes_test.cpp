// MemoryBudget::least() beside what really runs.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "libtorch/operators/operator_interceptor.h"
#include "tape/replay_costs.h"
#include "tests/refusal.h"
#include "tests/tape/networks/least_networks.h"
#include "tests/tape/testing.h"

namespace reprise {
namespace {

using at::Tensor;
using testing::autoencoder;
using testing::Trained;

class LeastBytes : public ::testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }
  void TearDown() override { at::set_num_threads(threads_); }

  const int threads_ = at::get_num_threads();
};

void take_step(Trained& of) {
  of.loss().backward();
  for (Tensor& each : of.model->parameters()) each.mutable_grad().reset();
}

void take_steps(Trained& of, MemoryBudget& budget, int count) {
  for (int i = 0; i < count; ++i) {
    auto step = budget.step();
    take_step(of);
    step.finish();
  }
}

bool runs(Trained& of, Bytes limit, const BudgetOptions& options, int steps = 1) {
  MemoryBudget budget(limit, options);
  try {
    take_steps(of, budget, steps);
  } catch (const BudgetError&) {
    of.model->zero_grad();
    return false;
  }
  return true;
}

// The least limit in which five of five steps of new budgets run: one may be lucky.
std::int64_t least_by_trials(Trained& of, Bytes most, const BudgetOptions& options) {
  const auto does_work = [&](std::int64_t limit) {
    constexpr int kTrials = 5;
    for (int i = 0; i < kTrials; ++i) {
      if (!runs(of, Bytes(limit), options)) return false;
    }
    return true;
  };
  std::int64_t works = most.count, fails = 0;
  while (works - fails > works / 500) {
    const std::int64_t middle = fails + (works - fails) / 2;
    (does_work(middle) ? works : fails) = middle;
  }
  return works;
}

// The clock decides which value is dropped first, but hardly which limit suffices.
TEST_F(LeastBytes, AreWithinTwoPercentOfWhatTrialsFindAndWork) {
  const tape::ReplayCosts::GivenScope given(
      {.seconds_a_replay = 1e-4, .packed_bytes_a_second = 3e9});
  for (const Heuristic heuristic : {Heuristic::kHUp, Heuristic::kLru}) {
    for (const testing::TrainedKind& kind : testing::trained()) {
      SCOPED_TRACE(std::string(kind.name) + ", " + to_string(heuristic));
      const BudgetOptions options{.heuristic = heuristic, .plan_repeated_steps = false};
      Trained net = kind.make();
      take_step(net);
      MemoryBudget roomy(GiB(64), options);
      take_steps(net, roomy, 2);
      ASSERT_EQ(roomy.report().dropped, 0);
      const Bytes least = roomy.least().value();
      EXPECT_LT(least.count, roomy.report().peak.count * 9 / 10);
      const std::int64_t by_trials = least_by_trials(net, roomy.report().peak, options);
      EXPECT_GE(static_cast<double>(least.count), 0.98 * static_cast<double>(by_trials));
      EXPECT_LE(static_cast<double>(least.count), 1.02 * static_cast<double>(by_trials));
      for (int i = 0; i < 10; ++i) EXPECT_TRUE(runs(net, least, options));
    }
  }
}

TEST_F(LeastBytes, OfAStepUnderPressureAreThoseOfTheStepWithRoom) {
  const BudgetOptions options{.heuristic = Heuristic::kLru, .plan_repeated_steps = false};
  for (const testing::TrainedKind& kind : testing::trained()) {
    SCOPED_TRACE(kind.name);
    Trained net = kind.make();
    take_step(net);
    MemoryBudget roomy(GiB(64), options);
    take_steps(net, roomy, 2);
    const Bytes least = roomy.least().value();
    MemoryBudget tight(Bytes((least.count + roomy.report().peak.count) / 2), options);
    take_steps(net, tight, 2);
    ASSERT_GT(tight.report().replayed, 0);
    EXPECT_NEAR(static_cast<double>(tight.least().value().count), static_cast<double>(least.count),
                0.02 * static_cast<double>(least.count));
  }
}

// The clock decides what is dropped first: the time since its last use counts.
TEST_F(LeastBytes, WithSomePercentMoreWorkOnlineAndByPlans) {
  const tape::ReplayCosts::GivenScope given(
      {.seconds_a_replay = 1e-4, .packed_bytes_a_second = 3e9});
  for (const bool learn : {false, true}) {
    for (const testing::TrainedKind& kind : testing::trained()) {
      SCOPED_TRACE(std::string(kind.name) + (learn ? ", with plans" : ", online"));
      Trained net = kind.make();
      take_step(net);
      const BudgetOptions options{.plan_repeated_steps = learn,
                                  .planning_time = std::chrono::duration<double>(0.1)};
      MemoryBudget roomy(GiB(64), options);
      take_steps(net, roomy, 2);
      EXPECT_TRUE(runs(net, roomy.least().value() * 1.05, options, 5));
    }
  }
}

TEST_F(LeastBytes, HaveRoomForWhatIsTakenPastOperators) {
  const Tensor w = at::randn({256, 256}).requires_grad_();
  MemoryBudget budget(GiB(64), {.plan_repeated_steps = false});
  const Bytes live = live_bytes();
  for (int i = 0; i < 2; ++i) {
    auto step = budget.step();
    const Tensor loss = w.mm(w).tanh().sum();
    libtorch::run_unseen([] {
      const c10::impl::ForceDispatchKeyGuard keys(libtorch::keys_without_interceptors());
      at::empty({1024, 1024});
    });
    loss.backward();
    w.mutable_grad().reset();
    step.finish();
  }
  EXPECT_GE(budget.least().value(), live + MiB(4));
}

TEST_F(LeastBytes, OfAStepThatWritesToAPinnedTensorAreFound) {
  const Tensor w = at::randn({256, 256}).requires_grad_();
  MemoryBudget budget(GiB(64), {.plan_repeated_steps = false});
  for (int i = 0; i < 2; ++i) {
    auto step = budget.step();
    Tensor x = w * 2;
    {
      const Pin pin(x);
      x.mul_(0.5);
    }
    for (int layer = 0; layer < 4; ++layer) x = x.mm(w).tanh();
    x.sum().backward();
    w.mutable_grad().reset();
    step.finish();
  }
  const Bytes least = budget.least().value();
  EXPECT_LT(least, budget.report().peak);
}

TEST_F(LeastBytes, OfAStepWhoseFinishWasRefusedAtFirstAreThoseOfTheStep) {
  const BudgetOptions options{.heuristic = Heuristic::kLru, .plan_repeated_steps = false};
  const auto least_after = [&](Bytes above, bool is_refused) {
    MemoryBudget budget(live_bytes() + above, options);
    auto step = budget.step();
    std::vector<Tensor> held{at::rand({1 << 18}).exp()};
    for (int i = 0; i < 12; ++i) held.push_back(held.back().sin());
    if (is_refused) {
      EXPECT_THROW(step.finish(), BudgetError);
      EXPECT_THROW(step.finish(), BudgetError);
    }
    held.erase(held.begin(), held.end() - 2);
    step.finish();
    return budget.least().value() - live_bytes();
  };
  EXPECT_NEAR(static_cast<double>(least_after(MiB(6), true).count),
              static_cast<double>(least_after(MiB(64), false).count), 1e5);
}

TEST_F(LeastBytes, AreNotKnownBeforeAWholeStep) {
  Trained net = autoencoder();
  MemoryBudget budget(GiB(64));
  EXPECT_FALSE(budget.least());
  try {
    auto step = budget.step();
    take_step(net);
    throw std::runtime_error("the program's own");
  } catch (const std::runtime_error&) {
  }
  EXPECT_FALSE(budget.least());
  take_steps(net, budget, 1);
  EXPECT_TRUE(budget.least());
  MemoryBudget paranoid(GiB(64), testing::paranoid());
  take_steps(net, paranoid, 1);
  EXPECT_FALSE(paranoid.least());
}

// An optimizer makes its state in its first step; a larger batch comes later.
TEST_F(LeastBytes, AreThoseOfTheNewestKindOfStep) {
  Trained net = autoencoder();
  take_step(net);
  MemoryBudget budget(GiB(64));
  take_steps(net, budget, 3);
  const Bytes small = budget.least().value();
  net = testing::convolutions();
  take_steps(net, budget, 2);
  EXPECT_GT(budget.least().value(), small);
}

TEST_F(LeastBytes, AreNamedByARefusalOnceAStepWasWhole) {
  Trained net = autoencoder();
  take_step(net);
  Bytes limit;
  {
    MemoryBudget roomy(GiB(64));
    take_steps(net, roomy, 2);
    limit = roomy.least().value() + KiB(64);
  }
  MemoryBudget budget(limit);
  take_steps(net, budget, 1);
  net.loss = testing::autoencoder(1024).loss;
  const std::string text = refusal_of<BudgetError>([&] { take_steps(net, budget, 1); });
  EXPECT_THAT(text, ::testing::HasSubstr("a recorded step of this budget needs at least "));
  // The limit is above that least, so the text must say why it does not do here.
  EXPECT_THAT(text, ::testing::HasSubstr("and this step needs more"));
  EXPECT_THAT(text,
              ::testing::HasSubstr("(" + std::to_string(budget.least().value().count) + " bytes)"));
}

}  // namespace
}  // namespace reprise
