// MemoryBudget::least() beside what really runs.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tests/refusal.h"
#include "tests/tape/testing.h"

namespace reprise {
namespace {

namespace nn = torch::nn;
using at::Tensor;

// A model with its data; its loss is of the sizes that make the choice of victims matter.
struct Trained {
  nn::Sequential layers;
  Tensor x, y;

  Tensor loss() {
    const Tensor out = layers->forward(x);
    return y.defined() ? at::cross_entropy_loss(out.mean({2, 3}), y) : at::mse_loss(out, x);
  }
};

Trained convolutions() {
  Trained made;
  for (int i = 0; i < 6; ++i) {
    made.layers->push_back(
        nn::Conv2d(nn::Conv2dOptions(i == 0 ? 3 : 12, 12, 3).padding(1).bias(false)));
    made.layers->push_back(nn::BatchNorm2d(12));
    made.layers->push_back(nn::ReLU(nn::ReLUOptions(true)));
  }
  made.x = at::randn({8, 3, 32, 32});
  made.y = at::randint(12, {8});
  return made;
}

Trained autoencoder() {
  Trained made;
  for (const auto& [from, to] : {std::pair{128, 96}, {96, 48}, {48, 96}, {96, 128}}) {
    made.layers->push_back(nn::Linear(from, to));
    made.layers->push_back(nn::GELU());
  }
  made.x = at::rand({512, 128});
  return made;
}

class LeastBytes : public ::testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }
  void TearDown() override { at::set_num_threads(threads_); }

  const int threads_ = at::get_num_threads();
};

void take_step(Trained& of) {
  of.loss().backward();
  for (Tensor& each : of.layers->parameters()) each.mutable_grad().reset();
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
    of.layers->zero_grad();
    return false;
  }
  return true;
}

std::int64_t least_by_trials(Trained& of, Bytes most, const BudgetOptions& options) {
  std::int64_t works = most.count, fails = 0;
  while (works - fails > works / 500) {
    const std::int64_t middle = fails + (works - fails) / 2;
    (runs(of, Bytes(middle), options) ? works : fails) = middle;
  }
  return works;
}

// lru looks at no seconds, only at an order: each run drops the same.
TEST_F(LeastBytes, AreWithinTwoPercentOfWhatTrialsFindAndWork) {
  for (const bool learn : {false, true}) {
    const BudgetOptions options{.heuristic = "lru", .learn = learn};
    for (Trained (*make)() : {convolutions, autoencoder}) {
      Trained net = make();
      take_step(net);
      MemoryBudget roomy(GiB(64), options);
      take_steps(net, roomy, 2);
      ASSERT_EQ(roomy.report().dropped, 0);
      const Bytes least = roomy.least().value();
      EXPECT_LT(least.count, roomy.report().peak.count * 9 / 10);
      const std::int64_t by_trials = least_by_trials(net, roomy.report().peak, options);
      EXPECT_GE(static_cast<double>(least.count), 0.98 * static_cast<double>(by_trials));
      EXPECT_LE(static_cast<double>(least.count), 1.02 * static_cast<double>(by_trials));
      EXPECT_TRUE(runs(net, least, options, 4));
    }
  }
}

TEST_F(LeastBytes, OfAStepUnderPressureAreThoseOfTheStepWithRoom) {
  const BudgetOptions options{.heuristic = "lru", .learn = false};
  for (Trained (*make)() : {convolutions, autoencoder}) {
    Trained net = make();
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

TEST_F(LeastBytes, WorkWithTheDefaultHeuristicToo) {
  for (const bool learn : {false, true}) {
    for (Trained (*make)() : {convolutions, autoencoder}) {
      Trained net = make();
      take_step(net);
      const BudgetOptions options{.learn = learn, .planning = std::chrono::duration<double>(0.1)};
      MemoryBudget roomy(GiB(64), options);
      take_steps(net, roomy, 2);
      EXPECT_TRUE(runs(net, roomy.least().value(), options, 5));
    }
  }
}

TEST_F(LeastBytes, OfAStepThatWritesToAPinnedTensorAreFound) {
  const Tensor w = at::randn({256, 256}).requires_grad_();
  MemoryBudget budget(GiB(64), {.learn = false});
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
  const BudgetOptions options{.heuristic = "lru", .learn = false};
  const auto least_after = [&](Bytes above, bool is_refused) {
    MemoryBudget budget(live_bytes() + above, options);
    auto step = budget.step();
    std::vector<Tensor> held{at::ones({1 << 18}).exp()};
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
  nn::Sequential deeper = autoencoder().layers;
  for (const auto& layer : *deeper) net.layers->push_back(layer);
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
  net.x = at::rand({1024, 128});
  const std::string text = refusal_of<BudgetError>([&] { take_steps(net, budget, 1); });
  EXPECT_THAT(text, ::testing::HasSubstr("a recorded step of this budget needs at least "));
  EXPECT_THAT(text,
              ::testing::HasSubstr("(" + std::to_string(budget.least().value().count) + " bytes)"));
}

}  // namespace
}  // namespace reprise
