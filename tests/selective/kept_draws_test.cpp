// Dropout masks that a region keeps as bits: they are not drawn again, and are what they were.
#include <reprise/budget.h>

#include <cstdlib>
#include <string_view>

#include "tests/selective/testing.h"

namespace reprise {
namespace {

using testing::gradients_of;
using testing::leaf;
using testing::OperatorCounts;
using testing::same_bits;
using testing::Tensors;
using testing::with_policy;

using Function = std::function<at::Tensor(const at::Tensor&)>;

// A few more elements than a mask must have to be kept.
constexpr std::int64_t kSide = 200;

class KeptDraws : public ::testing::Test {
 protected:
  // Gradients under the policy are the plain ones; how often bernoulli_ ran.
  int draws_of(const Function& f, const CheckpointOptions& options) {
    const Tensors plain = gradients_of([&] { return f(x_); }, {x_});
    const OperatorCounts counts;
    EXPECT_TRUE(same_bits(gradients_of([&] { return checkpoint(options, f, x_); }, {x_}), plain));
    return counts["bernoulli_"];
  }

  const at::Tensor x_ = leaf({kSide, kSide});
  const CheckpointOptions options_ = with_policy(recompute_attention());
};

at::Tensor masked(const at::Tensor& x) { return at::dropout(x.sin(), 0.3, true).exp(); }

TEST_F(KeptDraws, AMaskIsDrawnOnceAndTakesABitAnElement) {
  EXPECT_EQ(draws_of(masked, options_), 1);
  EXPECT_EQ(draws_of(masked, with_policy(save_matmuls())), 2);
  const Bytes before = live_bytes();
  const auto f = [](const at::Tensor& x) { return x * at::empty_like(x).bernoulli_(0.5); };
  const at::Tensor y = checkpoint(options_, f, x_).sum();
  EXPECT_LT((live_bytes() - before).count, kSide * kSide / 8 + 1024);
}

TEST_F(KeptDraws, WhatIsDrawnAfterAMaskIsTheSameAgain) {
  const auto f = [](const at::Tensor& x) {
    return masked(x) * at::rand({kSide}) + at::dropout(x.sin(), 0.5, true).exp();
  };
  EXPECT_EQ(draws_of(f, options_), 2);
}

TEST_F(KeptDraws, WhatABitCannotHoldIsDrawnAgain) {
  const auto small = [](const at::Tensor& x) { return masked(x.slice(0, 0, 100)); };
  EXPECT_EQ(draws_of(small, options_), 2);
  const auto strided = [](const at::Tensor& x) {
    return (x.sin() * at::empty({kSide, 2 * kSide}).slice(1, 0, kSide).bernoulli_(0.5)).exp();
  };
  EXPECT_EQ(draws_of(strided, options_), 2);
  // Its elements are of more than two kinds.
  const auto normal = [](const at::Tensor& x) { return (x * at::empty_like(x).normal_()).exp(); };
  EXPECT_EQ(draws_of(normal, options_), 0);
}

TEST_F(KeptDraws, AMaskOfEveryWidthIsKept) {
  for (const auto type : {at::kBool, at::kHalf, at::kFloat, at::kDouble}) {
    const auto f = [type](const at::Tensor& x) {
      return (x.sin() * at::empty(x.sizes(), type).bernoulli_(0.25)).exp();
    };
    EXPECT_EQ(draws_of(f, options_), 1) << type;
  }
}

TEST_F(KeptDraws, AMaskThatIsChangedAfterwardsIsChangedAgain) {
  const auto f = [](const at::Tensor& x) {
    return (x.sin() * at::empty_like(x).bernoulli_(0.5).div_(0.5).add_(x.detach())).exp();
  };
  EXPECT_EQ(draws_of(f, options_), 1);
}

TEST_F(KeptDraws, ABufferOfTheProgramIsDrawnIntoAndTurnedBack) {
  const at::Tensor buffer = at::zeros({kSide, kSide});
  const auto f = [&](const at::Tensor& x) {
    return (x.sin() * buffer.bernoulli_(0.5).clone()).exp();
  };
  EXPECT_EQ(draws_of(f, options_), 1);
  const at::Tensor y = checkpoint(options_, f, x_).sum();
  buffer.fill_(7);
  y.backward();
  EXPECT_TRUE(buffer.eq(7).all().item<bool>());
}

TEST_F(KeptDraws, WithReuseAMaskServesSeveralBackwards) {
  const CheckpointOptions options = with_policy(recompute_attention(), {.reuse = true});
  torch::manual_seed(3);
  const OperatorCounts counts;
  const at::Tensor y = checkpoint(options, masked, x_).sum();
  const auto first = torch::autograd::grad({y}, {x_}, {}, /*retain_graph=*/true);
  EXPECT_TRUE(same_bits(torch::autograd::grad({y}, {x_}), first));
  EXPECT_EQ(counts["bernoulli_"], 1);
}

TEST_F(KeptDraws, UnderAByteBudgetGradientsAreThePlainOnes) {
  const char* const forced = std::getenv("REPRISE_INTERCEPTOR");
  if (forced != nullptr && std::string_view(forced) == "generic") {
    GTEST_SKIP() << "a byte budget refuses the generic interceptor";
  }
  const auto f = [&](const at::Tensor& x) {
    return masked(masked(checkpoint(options_, masked, checkpoint(options_, masked, x))));
  };
  const Tensors plain = gradients_of([&] { return f(x_); }, {x_});
  const BudgetOptions dropping_all{.min_bytes = Bytes(1), .paranoid = true};
  const BudgetOptions dropping_some{.min_bytes = Bytes(1)};
  for (const auto& [limit, options] :
       {std::pair(GiB(64), dropping_all),
        std::pair(live_bytes() + Bytes(9 * kSide * kSide * 4), dropping_some)}) {
    MemoryBudget budget(limit, options);
    const auto step = [&] {
      const auto scope = budget.step();
      return gradients_of([&] { return f(x_); }, {x_});
    };
    EXPECT_TRUE(same_bits(step(), plain)) << to_string(limit);
    EXPECT_GT(budget.report().replayed, 0) << to_string(limit);
  }
}

}  // namespace
}  // namespace reprise
