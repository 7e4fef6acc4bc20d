// Weights of values: what they change, which is the order in which values go, and what they do not.
#include <gtest/gtest.h>
#include <reprise/budget_extensions.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tape/value.h"
#include "tests/refusal.h"
#include "tests/tape/random_weights.h"
#include "tests/tape/testing.h"

namespace reprise {
namespace {

using at::Tensor;
using testing::leaf;
using testing::paranoid;
using testing::RandomWeights;
using testing::same_bits;
using testing::Tensors;

// Weights as a function says, and what comes for them.
struct Told final : ValueWeights {
  struct Look {
    std::string name;
    std::int64_t number;
    Tensor value, gradient;
  };
  struct OneStep final : Step {
    explicit OneStep(Told& all) : told(all) {}
    double weight(const Call& call) override {
      told.calls.emplace_back(call.name);
      told.kinds.push_back(call.kind);
      told.are_in_order = told.are_in_order && call.number == next++;
      return told.weight ? told.weight(call) : 1;
    }
    void gradient(const Call& call, const Tensor& value, const Tensor& gradient) override {
      if (told.look) told.look();
      told.looks.push_back(
          {std::string(call.name), call.number, value.clone(), gradient.detach().clone()});
    }
    void ended(bool is_whole) noexcept override { ++(is_whole ? told.whole : told.broken); }
    Told& told;
    std::int64_t next = 0;
  };
  std::unique_ptr<Step> step() override { return std::make_unique<OneStep>(*this); }

  std::function<double(const Call&)> weight;
  std::function<void()> look;
  std::vector<std::string> calls;
  std::vector<std::uint64_t> kinds;
  std::vector<Look> looks;
  int whole = 0, broken = 0;
  bool are_in_order = true;
};

struct Makers : BudgetObserver {
  void dropped(const Value& value) noexcept override { ++dropped_of[std::string(value.maker)]; }
  std::map<std::string, int> dropped_of;
};

TEST(TapeWeights, LightValuesGoFirstUnderEveryHeuristic) {
  const Tensor x = at::randn({128, 128});
  for (const std::string heuristic :
       {"h_up", "h_dtr", "h_eq", "h_local", "lru", "largest", "random"}) {
    for (const std::string light : {"aten::sin", "aten::cos"}) {
      const auto weights = std::make_shared<Told>();
      weights->weight = [&](const ValueWeights::Call& call) {
        return call.name == light ? 1e-9 : 1e9;
      };
      const auto makers = std::make_shared<Makers>();
      // Of sixteen results eleven fit.
      MemoryBudget budget(
          live_bytes() + KiB(64 * 11 + 32),
          {.heuristic = parse_heuristic(heuristic), .weights = weights, .observer = makers});
      auto step = budget.step();
      Tensors held;
      for (int i = 0; i < 8; ++i) {
        held.push_back(x.sin());
        held.push_back(x.cos());
      }
      EXPECT_EQ(makers->dropped_of[light], 5) << heuristic;
      EXPECT_EQ(makers->dropped_of.size(), 1U) << heuristic;
      held.clear();
      step.finish();
    }
  }
}

class TapeWeightsTold : public ::testing::Test {
 protected:
  std::shared_ptr<Told> told = std::make_shared<Told>();
  MemoryBudget budget{GiB(64), {.min_bytes = Bytes(1), .weights = told}};
  Tensor x = leaf({6, 5}), w = leaf({5, 5});

  const Told::Look& look_at(const std::string& name) {
    const auto found = std::ranges::find(told->looks, name, &Told::Look::name);
    if (found == told->looks.end()) throw std::out_of_range(name);
    return *found;
  }
};

TEST_F(TapeWeightsTold, CallsComeInOrderAndAreTheSameInTheNextStep) {
  const auto run = [&] {
    auto step = budget.step();
    Tensor y = x.mm(w).tanh().mm(w);
    {
      const at::NoGradGuard no_grad;
      y.exp();
    }
    y.sum().backward();
    step.finish();
  };
  run();
  const std::vector<std::string> expected{"aten::mm", "aten::tanh", "aten::mm", "aten::sum"};
  EXPECT_EQ(told->calls, expected);
  const auto kinds = std::exchange(told->kinds, {});
  EXPECT_EQ(kinds[0], kinds[2]);
  EXPECT_NE(kinds[0], kinds[1]);
  run();
  EXPECT_EQ(told->kinds, kinds);
  EXPECT_TRUE(told->are_in_order);
  EXPECT_EQ(told->whole, 2);
  EXPECT_EQ(told->broken, 0);
}

TEST_F(TapeWeightsTold, ValuesComeWithTheSumOfTheirGradients) {
  auto step = budget.step();
  const Tensor y = x.mm(w);
  y.retain_grad();
  (y.sin() + y * y).sum().backward();
  EXPECT_TRUE(same_bits(look_at("aten::mm").value, y.detach()));
  EXPECT_TRUE(same_bits(look_at("aten::mm").gradient, y.grad()));
  EXPECT_EQ(look_at("aten::mm").number, 0);
  EXPECT_FALSE(look_at("aten::mm").value.requires_grad());
  step.finish();
}

// A layer's product is reshaped past autograd's views, and its bias added in place: neither the
// tensor that the operator made nor its contents are there when the next one begins.
TEST_F(TapeWeightsTold, ValuesComeWhereTheirTensorHasGoneBehindAView) {
  const Tensor wide = leaf({2, 3, 5}), bias = leaf({5});
  auto step = budget.step();
  Tensor product = wide.matmul(w);
  Tensor y = product.tanh();
  y.sum().backward();
  EXPECT_TRUE(same_bits(look_at("aten::mm").value.view({2, 3, 5}), product.detach()));
  told->looks.clear();
  product = wide.matmul(w);
  product += bias;
  const Tensor after = product.detach().clone();
  product.tanh().sum().backward();
  EXPECT_TRUE(same_bits(look_at("aten::add_").value, after));
  EXPECT_THROW(look_at("aten::mm"), std::out_of_range);
  step.finish();
}

TEST_F(TapeWeightsTold, EachBackwardOverAGraphIsLookedAt) {
  auto step = budget.step();
  const Tensor y = x.mm(w), loss = y.tanh().sum();
  loss.backward({}, /*retain_graph=*/true);
  EXPECT_EQ(told->looks.size(), 3U);
  // With a graph of the gradients.
  torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true);
  EXPECT_EQ(told->looks.size(), 6U);
  loss.backward();
  EXPECT_EQ(told->looks.size(), 9U);
  step.finish();
}

TEST_F(TapeWeightsTold, WhatNobodyHoldsIsNotKeptForALook) {
  auto step = budget.step();
  // Backward reads what tanh() has made, and not what it was given.
  const Tensor y = x.mm(w).tanh();
  y.sum().backward();
  EXPECT_EQ(look_at("aten::tanh").number, 1);
  EXPECT_THROW(look_at("aten::mm"), std::out_of_range);
  step.finish();
}

// The node that saved it has let go of it by the time that its gradient is complete.
TEST_F(TapeWeightsTold, WhatOnlyItsReaderHasSavedIsLookedAt) {
  auto step = budget.step();
  at::gelu(x.mm(w)).sum().backward();
  EXPECT_EQ(look_at("aten::mm").number, 0);
  step.finish();
}

TEST_F(TapeWeightsTold, AGraphOutlivesItsStep) {
  Tensor loss;
  {
    auto step = budget.step();
    loss = x.mm(w).tanh().sum();
    step.finish();
  }
  const Tensors plain = testing::plain_gradients([&] { return x.mm(w).tanh(); }, {x, w});
  loss.backward();
  EXPECT_TRUE(same_bits(testing::take_gradients({x, w}), plain));
  EXPECT_TRUE(told->looks.empty());
  EXPECT_EQ(tape::living_records(), 0);
}

TEST_F(TapeWeightsTold, OperatorsCalledForALookAreNotRecorded) {
  const auto operators = [&] {
    testing::gradients_under(budget, [&] { return x.mm(w).tanh(); }, {x, w});
    return budget.report().operators;
  };
  const std::int64_t alone = operators();
  told->look = [&] { (x.detach() * 2).exp().sum(); };
  EXPECT_EQ(operators(), alone);
}

// What is held for a look goes as everything else does.
TEST(TapeWeights, WhatIsDroppedIsNotBroughtBackForALook) {
  const Tensor x = leaf({64, 64}), w = leaf({64, 64});
  constexpr std::int64_t kValue = 64 * 64 * 4;
  const auto forward = [&] { return x.mm(w).tanh().mm(w).sin().exp(); };
  MemoryBudget plain(GiB(64), paranoid());
  testing::gradients_under(plain, forward, {x, w});
  BudgetOptions options = paranoid();
  const auto told = std::make_shared<Told>();
  options.weights = told;
  MemoryBudget weighed(GiB(64), options);
  testing::gradients_under(weighed, forward, {x, w});
  EXPECT_GE(weighed.report().dropped, plain.report().dropped);
  // Blocks of malloc may be a little too large.
  EXPECT_LT((weighed.report().peak - plain.report().peak).count, kValue / 2);
  EXPECT_EQ(told->calls.size(), 6U);
  EXPECT_TRUE(told->looks.empty());
}

TEST(TapeWeights, OutOfBoundsAreRefusedAndTheStepGoesOn) {
  const Tensor x = leaf({12, 12});
  const Tensors plain = testing::plain_gradients([&] { return x.sin().exp(); }, {x});
  for (const double wrong : {0.0, -1.0, 1e31, 1e-31, std::numeric_limits<double>::quiet_NaN()}) {
    const auto told = std::make_shared<Told>();
    MemoryBudget budget(GiB(64), {.min_bytes = Bytes(1), .weights = told});
    auto step = budget.step();
    told->weight = [&](const ValueWeights::Call&) { return wrong; };
    const std::string text = refusal_of<UsageError>([&] { x.cos(); });
    EXPECT_NE(text.find("the weight of call 0 of the step, aten::cos, is "), std::string::npos)
        << text;
    EXPECT_NE(text.find("it must be from 1e-30 to 1e30"), std::string::npos) << text;
    told->weight = nullptr;
    x.sin().exp().sum().backward();
    EXPECT_TRUE(same_bits(testing::take_gradients({x}), plain));
    step.finish();
    EXPECT_EQ(told->whole, 1);
  }
  EXPECT_EQ(tape::living_records(), 0);
}

TEST(TapeWeights, WhatTheyThrowLeavesNothingBehind) {
  const Tensor x = leaf({12, 12});
  const auto forward = [&] { return x.sin().exp().tanh(); };
  const Tensors plain = testing::plain_gradients(forward, {x});
  const Bytes before = live_bytes();
  const auto told = std::make_shared<Told>();
  {
    MemoryBudget budget(GiB(64), {.min_bytes = Bytes(1), .weights = told});
    const auto fails = [&] {
      EXPECT_THROW(testing::gradients_under(budget, forward, {x}), std::domain_error);
      testing::take_gradients({x});
      EXPECT_EQ(tape::living_records(), 0);
    };
    told->weight = [](const ValueWeights::Call& call) -> double {
      if (call.number == 1) throw std::domain_error("weight");
      return 1;
    };
    fails();
    told->weight = nullptr;
    told->look = [] { throw std::domain_error("look"); };
    fails();
    EXPECT_EQ(told->broken, 2);
    told->look = nullptr;
    EXPECT_TRUE(same_bits(testing::gradients_under(budget, forward, {x}), plain));
    EXPECT_EQ(told->whole, 1);
  }
  told->looks.clear();
  EXPECT_EQ(live_bytes(), before);
}

TEST(TapeWeights, ManyStepsLeaveNothing) {
  const Tensor x = leaf({8, 8}), w = leaf({8, 8});
  const auto weights = std::make_shared<RandomWeights>(1);
  BudgetOptions options{.min_bytes = Bytes(1), .weights = weights};
  MemoryBudget budget(GiB(64), options);
  const auto step = [&] {
    testing::gradients_under(budget, [&] { return x.mm(w).tanh().mm(w); }, {x, w});
  };
  step();
  const Bytes before = live_bytes();
  for (int i = 0; i < 300; ++i) step();
  EXPECT_EQ(live_bytes(), before);
  EXPECT_EQ(tape::living_records(), 0);
  EXPECT_EQ(weights->looks, 301 * 3);  // the first product is gone before backward
}

TEST(TapeWeights, StepsOfSeveralThreadsShareThem) {
  constexpr int kThreads = 3;
  // Made before the threads begin: while a step of another thread is on its way, what is made
  // outside of a step counts, and may be refused.
  std::vector<Tensor> inputs, plain;
  const auto gradient = [&](int number) {
    const Tensor& x = inputs[number];
    Tensor y = x;
    for (int i = 0; i < 8; ++i) y = (y.mm(x).tanh() * x).sin();
    return torch::autograd::grad({y.sum()}, {x})[0];
  };
  for (int number = 0; number < kThreads; ++number) {
    inputs.push_back(at::full({32, 32}, 0.1 * (number + 1)).requires_grad_());
    plain.push_back(gradient(number));
  }
  const auto weights = std::make_shared<RandomWeights>(2);
  MemoryBudget budget(live_bytes() + KiB(200), {.min_bytes = Bytes(1), .weights = weights});
  std::atomic<int> wrong{0}, refused{0};
  testing::on_threads(kThreads, [&](int number) {
    for (int i = 0; i < 20; ++i) {
      try {
        auto step = budget.step();
        const Tensor mine = gradient(number);
        step.finish();
        wrong += !same_bits(mine, plain[number]);
      } catch (const BudgetError&) {
        ++refused;
      }
    }
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_LT(refused, kThreads * 20);
  EXPECT_GT(weights->looks, 0);
}

}  // namespace
}  // namespace reprise
