// Averages of influence as weights: their arithmetic, and what a budget makes of them.
#include <gtest/gtest.h>
#include <reprise/budget.h>
#include <reprise/budget_extensions.h>
#include <reprise/experimental/pgac.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/influence/testing.h"
#include "tests/refusal.h"

namespace reprise {
namespace {

using at::Tensor;

// One call's kind, and the influence that it has in a step; none: no gradient comes.
struct Scored {
  std::uint64_t kind;
  std::optional<double> influence;
};

// The weights that the calls of a step have, told as a tape tells them.
std::vector<double> weights_in_step(ValueWeights& weights, const std::vector<Scored>& calls,
                                    bool is_whole = true) {
  const auto step = weights.step();
  std::vector<double> all;
  std::vector<ValueWeights::Call> told;
  for (const Scored& each : calls) {
    told.push_back(
        {.name = "aten::mm", .kind = each.kind, .number = static_cast<std::int64_t>(told.size())});
    all.push_back(step->weight(told.back()));
  }
  for (std::size_t i = calls.size(); i-- > 0;) {
    if (!calls[i].influence) continue;
    step->gradient(told[i], at::ones({1}, at::kDouble),
                   at::full({1}, *calls[i].influence, at::kDouble));
  }
  step->ended(is_whole);
  return all;
}

using Weights = std::vector<double>;

TEST(InfluenceWeights, AreAveragesOverTheirMean) {
  const auto weights = influence_weights({.alpha = 0.5});
  EXPECT_EQ(weights_in_step(*weights, {{1, 3}, {2, 1}}), (Weights{1, 1}));
  EXPECT_EQ(weights_in_step(*weights, {{1, 1}, {2, 5}}), (Weights{1.5, 0.5}));
  // 3 and 1 became 2 and 3.
  EXPECT_EQ(weights_in_step(*weights, {{1, 0}, {2, 0}}), (Weights{0.8, 1.2}));
}

TEST(InfluenceWeights, GoByThePlaceAmongCallsOfAKind) {
  const auto weights = influence_weights();
  weights_in_step(*weights, {{1, 3}, {2, 2}, {1, 1}});
  // Another call before, between and behind.
  EXPECT_EQ(weights_in_step(*weights, {{9, {}}, {2, {}}, {1, {}}, {9, {}}, {1, {}}, {1, {}}}),
            (Weights{1, 1, 1.5, 1, 0.5, 1}));
}

TEST(InfluenceWeights, AStepOfAnotherFormLeavesTheAverages) {
  const auto weights = influence_weights();
  weights_in_step(*weights, {{1, 3}, {2, 1}});
  EXPECT_EQ(weights_in_step(*weights, {{5, {}}, {6, {}}, {7, {}}}), (Weights{1, 1, 1}));
  EXPECT_EQ(weights_in_step(*weights, {{1, {}}, {2, {}}}), (Weights{1.5, 0.5}));
}

TEST(InfluenceWeights, WithoutAScoreKeepTheAverageAndWeighOneBeforeAny) {
  const auto weights = influence_weights({.alpha = 0});
  weights_in_step(*weights, {{1, 3}, {2, 1}, {3, {}}});
  EXPECT_EQ(weights_in_step(*weights, {{1, {}}, {2, 3}, {3, {}}}), (Weights{1.5, 0.5, 1}));
  EXPECT_EQ(weights_in_step(*weights, {{1, {}}, {2, {}}, {3, {}}}), (Weights{1, 1, 1}));
}

TEST(InfluenceWeights, AddTheSquaresOfSeveralGradientsOfACall) {
  const auto weights = influence_weights();
  const auto step = weights->step();
  const ValueWeights::Call first{.name = "aten::mm", .kind = 1, .number = 0};
  const ValueWeights::Call second{.name = "aten::mm", .kind = 2, .number = 1};
  step->weight(first), step->weight(second);
  const Tensor one = at::ones({1});
  step->gradient(first, one, one * 3);
  step->gradient(first, one, one * 4);
  step->gradient(second, one, one * 15);
  step->ended(true);
  EXPECT_EQ(weights_in_step(*weights, {{1, {}}, {2, {}}}), (Weights{0.5, 1.5}));
}

TEST(InfluenceWeights, AreAtLeastTheSmallest) {
  const auto weights = influence_weights({.min_weight = 0.25});
  weights_in_step(*weights, {{1, 0}, {2, 2}});
  EXPECT_EQ(weights_in_step(*weights, {{1, {}}, {2, {}}}), (Weights{0.25, 2}));
  const auto without = influence_weights();
  weights_in_step(*without, {{1, 0}, {2, 0}});
  EXPECT_EQ(weights_in_step(*without, {{1, {}}, {2, {}}}), (Weights{1, 1}));
}

TEST(InfluenceWeights, LearnNothingFromAStepThatFailedNorFromScoresThatAreNoNumbers) {
  const auto weights = influence_weights();
  weights_in_step(*weights, {{1, 3}, {2, 1}}, /*is_whole=*/false);
  EXPECT_EQ(weights_in_step(*weights, {{1, 1}, {2, 3}}), (Weights{1, 1}));
  EXPECT_EQ(weights_in_step(*weights, {{1, std::numeric_limits<double>::infinity()},
                                       {2, std::numeric_limits<double>::quiet_NaN()}}),
            (Weights{0.5, 1.5}));
  EXPECT_EQ(weights_in_step(*weights, {{1, {}}, {2, {}}}), (Weights{0.5, 1.5}));
}

TEST(InfluenceWeights, ForgetCallsThatDoNotComeAgain) {
  const auto weights = influence_weights();
  weights_in_step(*weights, {{1, 3}, {2, 1}});
  for (int i = 0; i < 60; ++i) weights_in_step(*weights, {{2, {}}});
  EXPECT_EQ(weights_in_step(*weights, {{2, {}}}), (Weights{0.5}));
  for (int i = 0; i < 10; ++i) weights_in_step(*weights, {{2, {}}});
  EXPECT_EQ(weights_in_step(*weights, {{1, {}}, {2, {}}}), (Weights{1, 1}));
}

TEST(InfluenceWeights, StepsMayOverlap) {
  const auto weights = influence_weights({.alpha = 0});
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 50; ++k) weights_in_step(*weights, {{1, 3}, {2, 1}});
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(weights_in_step(*weights, {{1, {}}, {2, {}}}), (Weights{1.5, 0.5}));
}

TEST(InfluenceWeights, RefuseOptionsOutOfBounds) {
  EXPECT_EQ(refusal_of([] { influence_weights({.alpha = 1}); }),
            "influence_weights(): alpha is 1; it must be at least 0, which keeps the last score "
            "alone, and below 1");
  EXPECT_EQ(refusal_of([] { influence_weights({.min_weight = 0}); }),
            "influence_weights(): min_weight is 0; it must be from 1e-6 to 1: the least weight, "
            "where the mean is 1");
  EXPECT_EQ(refusal_of([] { influence_weights({.stride = 0}); }),
            "influence_weights(): stride is 0; it must be at least 1, at which every element is "
            "looked at");
  EXPECT_NE(refusal_of([] { influence_weights({.alpha = std::nan("")}); }), "");
  EXPECT_NE(refusal_of([] { influence_weights({.min_weight = 2}); }), "");
}

// Passes on what it is told, and notes the weights of the step that ended last.
struct Noting final : ValueWeights {
  struct OneStep final : Step {
    OneStep(Noting& all, std::unique_ptr<Step> one) : noting(all), inner(std::move(one)) {}
    double weight(const Call& call) override {
      return noting.weights[std::string(call.name)] = inner->weight(call);
    }
    void gradient(const Call& call, const Tensor& value, const Tensor& gradient) override {
      inner->gradient(call, value, gradient);
    }
    void ended(bool is_whole) noexcept override { inner->ended(is_whole); }
    Noting& noting;
    std::unique_ptr<Step> inner;
  };
  std::unique_ptr<Step> step() override { return std::make_unique<OneStep>(*this, of->step()); }
  std::shared_ptr<ValueWeights> of = influence_weights();
  std::map<std::string, double> weights;
};

TEST(InfluenceWeights, UnderABudgetAreThoseOfThePlainStep) {
  const Tensor x = at::randn({64, 64}).requires_grad_();
  Tensor sine, product, tangent;
  const auto forward = [&] {
    sine = x.sin();
    product = sine.mm(x);
    tangent = product.tanh();
    return (tangent * tangent).sum() + sine.sum();
  };
  const Tensor loss = forward();
  const auto gradients = torch::autograd::grad({loss}, {sine, product, tangent});
  const double of_sine = testing::plain_influence(gradients[0], sine);
  const double of_product = testing::plain_influence(gradients[1], product);
  const double of_tangent = testing::plain_influence(gradients[2], tangent);
  const auto noting = std::make_shared<Noting>();
  MemoryBudget budget(GiB(64), {.min_bytes = KiB(8), .weights = noting});
  for (int i = 0; i < 3; ++i) {
    auto step = budget.step();
    forward().backward();
    step.finish();
    x.mutable_grad().reset();
  }
  const auto& weights = noting->weights;
  EXPECT_NEAR(weights.at("aten::sin") / weights.at("aten::mm"), of_sine / of_product, 1e-5);
  EXPECT_NEAR(weights.at("aten::tanh") / weights.at("aten::mm"), of_tangent / of_product, 1e-5);
}

struct Dropped : BudgetObserver {
  void dropped(const Value& value) noexcept override { ++by_maker[std::string(value.maker)]; }
  std::map<std::string, int> by_maker;
};

// Both branches cost, take and wait the same; one is multiplied by next to nothing.
TEST(InfluenceWeights, WhatMattersLittleGoesFirst) {
  const Tensor x = at::randn({128, 128}).requires_grad_();
  for (const bool is_sine_little : {true, false}) {
    const auto dropped = std::make_shared<Dropped>();
    const auto step_in = [&](MemoryBudget& budget) {
      auto step = budget.step();
      Tensor sum = at::zeros({});
      std::vector<Tensor> held;
      for (int i = 0; i < 6; ++i) {
        held.push_back(x.sin()), held.push_back(x.cos());
      }
      for (std::size_t i = 0; i < held.size(); ++i) {
        const bool is_little = (i % 2 == 0) == is_sine_little;
        sum = sum + (held[i] * held[i]).sum() * (is_little ? 1e-6 : 1);
      }
      sum.backward();
      held.clear();
      step.finish();
      x.mutable_grad().reset();
    };
    const auto weights = influence_weights({.min_weight = 1e-6});
    MemoryBudget ample(GiB(64), {.weights = weights});
    step_in(ample);
    // Costs are measured; sizes are what they are.
    MemoryBudget narrow(live_bytes() + KiB(64 * 10), {.heuristic = Heuristic::kLargest,
                                                      .weights = weights,
                                                      .plan_repeated_steps = false,
                                                      .observer = dropped});
    step_in(narrow);
    const int sines = dropped->by_maker["aten::sin"], cosines = dropped->by_maker["aten::cos"];
    EXPECT_GT(is_sine_little ? sines : cosines, 0);
    EXPECT_GT((is_sine_little ? sines : cosines), (is_sine_little ? cosines : sines));
  }
}

TEST(InfluenceWeights, GradientsAreThePlainOnesDownToTheLeastBudget) {
  auto model = testing::six_layers();
  const Tensor sample = testing::sample_of();
  const auto run = [&](const Tensor& x) { return model->forward(x); };
  const auto plain = testing::step_of(model, sample, run);
  const PeakScope scope;
  testing::step_of(model, sample, run);
  const Bytes above = scope.peak_above_start();
  int fitted = 0, dropped = 0;
  for (int percent = 40; percent <= 100; percent += 5) {
    MemoryBudget budget(live_bytes() + Bytes(above.count * percent / 100),
                        {.heuristic = Heuristic::kHDtr,
                         .min_bytes = Bytes(256),
                         .weights = influence_weights(),
                         .plan_repeated_steps = percent % 2 == 0});
    for (int i = 0; i < 4; ++i) {
      testing::Tensors mine;
      try {
        auto step = budget.step();
        mine = testing::step_of(model, sample, run);
        step.finish();
      } catch (const BudgetError&) {
        break;
      }
      EXPECT_TRUE(testing::same_bits(mine, plain)) << percent;
      ++fitted;
      dropped += budget.report().dropped > 0;
    }
  }
  EXPECT_GT(fitted, 8);
  EXPECT_GT(dropped, 0);
}

}  // namespace
}  // namespace reprise
