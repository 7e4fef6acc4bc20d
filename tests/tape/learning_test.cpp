// Budgets that learn the step: the plan is followed, gradients stay bitwise the plain ones, the
// peak stays within the limit, and where the step changes nothing is wrong but the plan.
#include <gmock/gmock.h>
#include <reprise/budget.h>
#include <stdlib.h>
#include <torch/torch.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "plan/step/step_script.h"
#include "tape/learning.h"
#include "tape/value.h"
#include "tests/refusal.h"
#include "tests/tape/random_step.h"
#include "tests/tape/testing.h"

namespace reprise {
namespace {

using at::Tensor;
using ::testing::HasSubstr;
using testing::leaf;
using testing::limit_at;
using testing::Tensors;

constexpr std::chrono::duration<double> kQuick{0.5};
constexpr std::chrono::seconds kPatience{60};

// The plan, with another script.
LearnedPlan with_script(const LearnedPlan& plan, std::shared_ptr<const plan::StepScript> script) {
  const LearnedPlan::Figures figures = plan.figures();
  return detail::LearnedPlanAccess::plan_of({.limit = figures.limit,
                                             .slowdown = figures.slowdown,
                                             .bound = figures.bound,
                                             .script = std::move(script)});
}

BudgetOptions quick() { return {.min_bytes = Bytes(1024), .planning_time = kQuick}; }

// Layers that keep much for backward, with dropout masks, an operator in place and a skip.
struct Learner {
  explicit Learner(int width = 64, int depth = 16) : x(leaf({512, width})) {
    for (int i = 0; i < depth; ++i) {
      layers->push_back(torch::nn::Linear(width, width));
      layers->push_back(torch::nn::Tanh());
      layers->push_back(torch::nn::Dropout(0.1));
    }
  }
  Tensors leaves() {
    Tensors all = layers->parameters();
    all.push_back(x);
    return all;
  }
  Tensor operator()() {
    const Tensor out = layers->forward(x);
    return (out + x).mul_(2).relu_();
  }

  torch::nn::Sequential layers;
  Tensor x;
};

template <class F>
void expect_plain(MemoryBudget& budget, const F& forward, const Tensors& leaves) {
  const Tensors plain = testing::plain_gradients(forward, leaves);
  EXPECT_TRUE(testing::same_bits(testing::gradients_under(budget, forward, leaves), plain));
  EXPECT_LE(budget.report().peak, budget.limit());
}

// Steps until there is a plan.
template <class F>
void learn(MemoryBudget& budget, const F& forward, const Tensors& leaves) {
  for (int i = 0; i < 4; ++i) expect_plain(budget, forward, leaves);
  if (!budget.wait_for_plan(kPatience) || !budget.plan()) throw std::runtime_error("no plan");
}

class Learning : public ::testing::Test {
 protected:
  void SetUp() override { before_ = tape::living_records(); }
  void TearDown() override { EXPECT_EQ(tape::living_records(), before_); }

  Learner network_;
  const std::function<Tensor()> forward_ = [this] { return network_(); };
  const Tensors leaves_ = network_.leaves();
  std::optional<LearnedPlan> plan_for(Bytes limit) {
    MemoryBudget budget(limit, quick());
    learn(budget, forward_, leaves_);
    return budget.plan();
  }
  Bytes limit_at_share(double share) {
    return limit_at(share, [&] { testing::plain_gradients(forward_, leaves_); });
  }

 private:
  std::int64_t before_ = 0;
};

TEST_F(Learning, AStepThatComesAgainFollowsItsPlan) {
  for (const double share : {0.75, 0.6}) {
    MemoryBudget budget(limit_at_share(share), quick());
    expect_plain(budget, forward_, leaves_);
    EXPECT_EQ(budget.report().followed, 0);
    EXPECT_FALSE(budget.plan().has_value());
    learn(budget, forward_, leaves_);
    const auto plan = budget.plan();
    ASSERT_TRUE(plan.has_value());
    EXPECT_EQ(plan->figures().limit, budget.limit());
    EXPECT_GE(plan->figures().slowdown, plan->figures().bound);
    for (int i = 0; i < 3; ++i) {
      expect_plain(budget, forward_, leaves_);
      EXPECT_EQ(budget.report().followed, plan->operators());
      EXPECT_GT(budget.report().dropped + budget.report().packed, 0);
    }
  }
}

TEST_F(Learning, NothingIsPlannedWhereNothingIsDropped) {
  MemoryBudget budget(GiB(64), quick());
  for (int i = 0; i < 5; ++i) expect_plain(budget, forward_, leaves_);
  EXPECT_TRUE(budget.wait_for_plan(kPatience));
  EXPECT_FALSE(budget.plan().has_value());
}

TEST_F(Learning, IsLeftOutWhereTheOptionsSaySo) {
  BudgetOptions options = quick();
  options.plan_repeated_steps = false;
  MemoryBudget budget(limit_at_share(0.7), options);
  for (int i = 0; i < 5; ++i) expect_plain(budget, forward_, leaves_);
  EXPECT_TRUE(budget.wait_for_plan(kPatience));
  EXPECT_FALSE(budget.plan().has_value());
}

TEST_F(Learning, AStepThatBecomesAnotherOneGoesOnWithoutThePlan) {
  MemoryBudget budget(limit_at_share(0.7), quick());
  learn(budget, forward_, leaves_);
  const std::int64_t operators = budget.plan()->operators();
  const auto other = [&] {
    Tensor x = network_.x;
    int i = 0;
    for (auto& layer : *network_.layers) {
      x = layer.forward<Tensor>(Tensor(x));
      // Half way there is something else.
      if (++i == 24) x = x.sin().cos();
    }
    return x;
  };
  expect_plain(budget, other, leaves_);
  EXPECT_GT(budget.report().followed, 0);
  EXPECT_LT(budget.report().followed, operators);
  expect_plain(budget, forward_, leaves_);
  EXPECT_EQ(budget.report().followed, operators) << "it is remembered";
  learn(budget, other, leaves_);
  EXPECT_NE(budget.plan()->operators(), operators);
  expect_plain(budget, other, leaves_);
  EXPECT_EQ(budget.report().followed, budget.plan()->operators());
  expect_plain(budget, forward_, leaves_);
  EXPECT_EQ(budget.report().followed, operators) << "both are";
}

TEST_F(Learning, StepsOfTwoKindsInTurnAreBothLearned) {
  Learner other(64, 15);
  const std::function<Tensor()> forward = [&] { return other(); };
  MemoryBudget budget(limit_at_share(0.7), quick());
  for (int i = 0; i < 8; ++i) {
    expect_plain(budget, forward_, leaves_);
    expect_plain(budget, forward, other.leaves());
    ASSERT_TRUE(budget.wait_for_plan(kPatience));
  }
  const std::int64_t followed = budget.report().followed;
  EXPECT_EQ(followed, budget.plan()->operators());
  expect_plain(budget, forward_, leaves_);
  EXPECT_GT(budget.report().followed, 0);
  EXPECT_NE(budget.report().followed, followed);
}

TEST_F(Learning, AJobCanBeginWithThePlanOfAnother) {
  const Bytes limit = limit_at_share(0.7);
  std::string folder = (std::filesystem::temp_directory_path() / "reprise-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::filesystem::path file = std::filesystem::path(folder) / "plan.json";
  plan_for(limit)->write(file);
  MemoryBudget budget(limit, quick());
  budget.use(LearnedPlan::read(file));
  std::filesystem::remove_all(folder);
  for (int i = 0; i < 3; ++i) {
    expect_plain(budget, forward_, leaves_);
    EXPECT_EQ(budget.report().followed, budget.plan()->operators()) << "step " << i;
  }
}

TEST_F(Learning, ThePlanOfAnotherStepIsAnErrorWhenTheStepIsOver) {
  const Bytes limit = limit_at_share(0.7);
  const std::optional<LearnedPlan> plan = plan_for(limit);
  Learner other(48);
  const std::function<Tensor()> forward = [&] { return other(); };
  MemoryBudget budget(limit, quick());
  budget.use(*plan);
  const Tensors plain = testing::plain_gradients(forward, other.leaves());
  const std::string text = testing::error_of<PlanError>(
      [&] { testing::gradients_under(budget, forward, other.leaves()); });
  EXPECT_THAT(text, HasSubstr("the plan is of another step: it has " +
                              std::to_string(plan->operators()) + " operators"));
  EXPECT_THAT(text, HasSubstr("OnOtherStep::kLearn"));
  EXPECT_TRUE(testing::same_bits(testing::take_gradients(other.leaves()), plain))
      << "the step was complete";
  expect_plain(budget, forward, other.leaves());
  budget.use(*plan, MemoryBudget::OnOtherStep::kLearn);
  expect_plain(budget, forward, other.leaves());
}

TEST_F(Learning, APlanForMoreBytesOrForABudgetThatCannotUseItIsRefused) {
  const Bytes limit = limit_at_share(0.7);
  MemoryBudget budget(limit, quick());
  learn(budget, forward_, leaves_);
  const LearnedPlan plan = *budget.plan();
  MemoryBudget smaller(limit - Bytes(1), quick());
  EXPECT_THAT(refusal_of([&] { smaller.use(plan); }),
              HasSubstr("made for " + to_string(limit) + " (" + std::to_string(limit.count) +
                        " bytes), and the limit is"));
  BudgetOptions options = quick();
  options.plan_repeated_steps = false;
  MemoryBudget deaf(limit, options);
  EXPECT_THAT(refusal_of([&] { deaf.use(plan); }), HasSubstr("plan_repeated_steps = false"));
  options = quick();
  options.planning_time = std::chrono::duration<double>(0);
  EXPECT_THAT(refusal_of([&] { MemoryBudget(limit, options); }), HasSubstr("must be above 0"));
}

TEST_F(Learning, ABudgetMayGoWhileItPlans) {
  BudgetOptions options = quick();
  options.planning_time = std::chrono::hours(1);
  MemoryBudget budget(limit_at_share(0.6), options);
  for (int i = 0; i < 4; ++i) expect_plain(budget, forward_, leaves_);
  EXPECT_FALSE(budget.wait_for_plan(std::chrono::seconds(0)));
}

TEST_F(Learning, AnExceptionInAStepIsForgotten) {
  MemoryBudget budget(limit_at_share(0.7), quick());
  learn(budget, forward_, leaves_);
  for (const int at : {1, 20, 60}) {
    try {
      auto step = budget.step();
      Tensor x = network_.x;
      for (int i = 0; i < at; ++i) x = x.tanh();
      x.mm(at::ones({3, 3}));
      ADD_FAILURE() << "no error";
    } catch (const c10::Error&) {
    }
    expect_plain(budget, forward_, leaves_);
    EXPECT_EQ(budget.report().followed, budget.plan()->operators());
  }
}

TEST_F(Learning, DoubleBackwardAndRetainedGraphsAreFollowed) {
  const auto twice = [&] {
    const Tensor out = network_();
    const auto slopes = torch::autograd::grad({out.sum()}, {network_.x}, {}, /*retain_graph=*/true,
                                              /*create_graph=*/true);
    return out.sum() + slopes[0].tanh().sum();
  };
  MemoryBudget budget(limit_at(0.8, [&] { testing::plain_gradients(twice, leaves_); }), quick());
  learn(budget, twice, leaves_);
  for (int i = 0; i < 2; ++i) expect_plain(budget, twice, leaves_);
  EXPECT_EQ(budget.report().followed, budget.plan()->operators());
}

// Each thread's own step does not fit, and neither's plan knows the other.
TEST_F(Learning, OnTwoThreadsAtOnceBothGiveThePlainGradientsWithinTheLimit) {
  constexpr int kThreads = 2, kSteps = 8;
  Learner other;
  std::array<Learner*, kThreads> networks{&network_, &other};
  std::array<Tensors, kThreads> leaves, plain;
  std::array<std::function<Tensor()>, kThreads> forwards;
  for (int i = 0; i < kThreads; ++i) {
    // No draws: the threads would take them from one generator, in any order.
    networks[i]->layers->eval();
    leaves[i] = networks[i]->leaves();
    forwards[i] = [network = networks[i]] { return (*network)(); };
    plain[i] = testing::plain_gradients(forwards[i], leaves[i]);
  }
  const Bytes limit = limit_at_share(0.9);
  MemoryBudget first(limit, quick()), second(limit, quick());
  std::array<MemoryBudget*, kThreads> budgets{&first, &second};
  for (int i = 0; i < kThreads; ++i) learn(*budgets[i], forwards[i], leaves[i]);
  std::atomic<std::int64_t> dropped{0}, refused{0};
  testing::on_threads(kThreads, [&](int i) {
    for (int step = 0; step < kSteps; ++step) {
      try {
        for (const Tensor& leaf : leaves[i]) leaf.mutable_grad() = Tensor();
        auto under = budgets[i]->step();
        forwards[i]().sum().backward();
        under.finish();
        // Not copied: nobody refuses what a thread allocates between its steps.
        Tensors mine;
        for (const Tensor& leaf : leaves[i]) mine.push_back(leaf.grad());
        EXPECT_TRUE(testing::same_bits(mine, plain[i])) << "thread " << i << ", step " << step;
        EXPECT_GT(budgets[i]->report().followed, 0);
      } catch (const BudgetError&) {  // both use more than the limit at one moment
        ++refused;
      }
      EXPECT_LE(budgets[i]->report().peak, limit);
      dropped += budgets[i]->report().dropped;
    }
  });
  // One step's values may be dropped for the other's. Alone either drops some.
  EXPECT_GT(dropped, 0);
  EXPECT_LE(refused, kSteps);
}

// It decides only the order of drops.
TEST_F(Learning, APlanWithoutSenseIsFollowedToThePlainGradients) {
  const Bytes limit = limit_at_share(0.7);
  const std::optional<LearnedPlan> plan = plan_for(limit);
  std::mt19937_64 random(11);
  std::int64_t followed = 0;
  for (int round = 0; round < 12; ++round) {
    auto script = std::make_shared<plan::StepScript>(*detail::LearnedPlanAccess::script_of(*plan));
    for (plan::StepScript::Action& action : script->actions) {
      if (random() % 3 != 0) continue;
      action.what = static_cast<plan::StepScript::Do>(random() % 3);
      if (random() % 2 == 0) action.value = static_cast<plan::ValueNumber>(random() % 300);
    }
    script->note_named();
    MemoryBudget budget(limit, quick());
    budget.use(with_script(*plan, script), MemoryBudget::OnOtherStep::kLearn);
    for (int i = 0; i < 2; ++i) expect_plain(budget, forward_, leaves_);
    followed += budget.report().followed;
  }
  EXPECT_GT(followed, 0);
}

TEST_F(Learning, WhatIsMadeTooEarlyIsLeftToWhoReadsIt) {
  const Bytes limit = limit_at_share(0.7);
  const std::optional<LearnedPlan> plan = plan_for(limit);
  // Everything at once is more than there is room for.
  const auto script =
      std::make_shared<plan::StepScript>(*detail::LearnedPlanAccess::script_of(*plan));
  const std::size_t middle = script->calls() / 2;
  std::vector<plan::StepScript::Action> all;
  for (plan::ValueNumber value = 0; value < 300; ++value) {
    all.push_back({plan::StepScript::Do::kMake, value});
  }
  for (const std::size_t part : {2 * middle + 3, 2 * middle}) {
    const std::uint32_t at = script->begins[part];
    script->actions.insert(script->actions.begin() + at, all.begin(), all.end());
    for (std::size_t i = part + 1; i < script->begins.size(); ++i) {
      script->begins[i] += static_cast<std::uint32_t>(all.size());
    }
  }
  script->note_named();
  MemoryBudget budget(limit, quick());
  budget.use(with_script(*plan, script), MemoryBudget::OnOtherStep::kLearn);
  for (int i = 0; i < 2; ++i) expect_plain(budget, forward_, leaves_);
  EXPECT_GT(budget.report().followed, 0);
}

}  // namespace
}  // namespace reprise
