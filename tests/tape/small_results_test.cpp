// Losses with a reduction are scalars on memory as large as their input: the tape keeps the scalar.

#include <torch/torch.h>

#include "tests/tape/testing.h"

namespace reprise {
namespace {

using at::Tensor;
using testing::leaf;
using testing::Tensors;

Tensor mse(const Tensor& x, const Tensor& y) { return at::mse_loss(x, y); }
Tensor smooth_l1(const Tensor& x, const Tensor& y) {
  return at::smooth_l1_loss(x, y, at::Reduction::Sum);
}

class Losses : public ::testing::TestWithParam<Tensor (*)(const Tensor&, const Tensor&)> {
 protected:
  Tensor forward() const {
    Tensor h = x_;
    for (const Tensor& weight : weights_) h = at::tanh(at::matmul(h, weight));
    return GetParam()(h, x_);
  }
  Tensors gradients() const {
    for (const Tensor& weight : weights_) weight.mutable_grad() = Tensor();
    forward().backward();
    return testing::take_gradients(weights_);
  }

  const Tensors weights_{leaf({64, 64}), leaf({64, 64}), leaf({64, 64}), leaf({64, 64})};
  const Tensor x_ = at::randn({512, 64});
};

INSTANTIATE_TEST_SUITE_P(Reduced, Losses, ::testing::Values(mse, smooth_l1));

TEST_P(Losses, HaveMemoryOfTheirOwnSize) {
  MemoryBudget budget(GiB(64));
  // In the second step the call is known to make little.
  for (int i = 0; i < 2; ++i) {
    const Tensor plain = forward();
    ASSERT_EQ(plain.storage().nbytes(), x_.nbytes());
    auto step = budget.step();
    const Tensor loss = forward();
    EXPECT_EQ(loss.storage().nbytes(), sizeof(float));
    EXPECT_TRUE(loss.equal(plain));
    step.finish();
    EXPECT_TRUE(loss.equal(plain));
  }
}

TEST_P(Losses, AreReadAfterBackwardWithoutAReplay) {
  const Tensors plain = gradients();
  const float expected = forward().item<float>();
  MemoryBudget budget(testing::limit_at(0.7, [&] { gradients(); }), {.plan_repeated_steps = false});
  for (int i = 0; i < 3; ++i) {
    auto step = budget.step();
    const Tensor loss = forward();
    loss.backward();
    const std::int64_t before = budget.report().replayed;
    EXPECT_GT(before, 0);
    EXPECT_EQ(loss.item<float>(), expected);
    step.finish();
    EXPECT_EQ(budget.report().replayed, before);
    EXPECT_TRUE(testing::same_bits(testing::take_gradients(weights_), plain));
  }
}

TEST_P(Losses, MayBeMadeLargerAndWrittenToAfterwards) {
  EXPECT_TRUE(testing::does_the_same_when_all_is_dropped([&] {
    const at::NoGradGuard no_grad;
    Tensor loss = GetParam()(x_.exp(), x_.sin());
    loss.add_(1);
    loss.resize_({8});
    loss.slice(0, 1).fill_(2);
    return Tensors{loss.exp()};
  }));
}

TEST(SmallResults, OfOutArgumentsKeepTheProgramsMemory) {
  MemoryBudget budget(GiB(64));
  auto step = budget.step();
  const at::NoGradGuard no_grad;
  const Tensor x = at::randn({512, 64});
  Tensor out = at::empty({512, 64});
  out.resize_({});
  at::mse_loss_out(out, x, x.sin());
  EXPECT_EQ(out.storage().nbytes(), x.nbytes());
  step.finish();
}

}  // namespace
}  // namespace reprise
