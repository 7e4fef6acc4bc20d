// Operators whose results cannot simply be made again by a call with the same arguments: each was
// found by the sweep over all operators (operator_sweep_test.py), or is one of its kind.
#include <ATen/ops/_foreach_add.h>
#include <torch/torch.h>

#include "tests/tape/testing.h"

namespace reprise {
namespace {

using at::Tensor;
using testing::leaf;
using testing::Tensors;

// As is_right_when_all_is_dropped(), with a look at what comes back.
template <class F>
::testing::AssertionResult is_right_and_verified(const F& forward, const Tensors& leaves) {
  const Tensors plain = testing::plain_gradients(forward, leaves);
  BudgetOptions options = testing::paranoid();
  options.verify = true;
  MemoryBudget budget(GiB(64), options);
  const Tensors mine = testing::gradients_under(budget, forward, leaves);
  if (budget.report().replayed == 0) return ::testing::AssertionFailure() << "nothing was replayed";
  return testing::same_bits(mine, plain);
}

bool is_dropped(const Tensor& tensor) {
  try {
    return tensor.const_data_ptr() == nullptr;
  } catch (const c10::Error&) {
    return true;
  }
}

TEST(ReplayedOperators, ReadsOfTensorsWithoutElementsThatDied) {
  const Tensor x = leaf({4, 6});
  EXPECT_TRUE(is_right_and_verified(
      [&] {
        return at::cat({x.narrow(0, 0, 0).exp(), x.sin()}).exp();
      },
      {x}));
}

TEST(ReplayedOperators, RunningStatisticsThatTheStepHasMade) {
  const Tensor x = leaf({8, 6});
  EXPECT_TRUE(is_right_and_verified(
      [&] {
        const Tensor mean = x.detach().mean(0).mul(3);
        const Tensor variance = x.detach().var(0).exp();
        const Tensor y = at::batch_norm(x.sin(), {}, {}, mean, variance, true, 0.1, 1e-5, false);
        return y.exp() * mean * variance;
      },
      {x}));
}

TEST(ReplayedOperators, ArgumentsWithoutStrides) {
  const Tensor x = leaf({4, 4});
  const Tensor sparse = at::eye(4).to_sparse_csr();
  EXPECT_TRUE(is_right_and_verified([&] { return at::mm(sparse, x.sin()).exp(); }, {x}));
}

TEST(ReplayedOperators, NoiseThatAnOperatorWritesWhileItComputes) {
  const Tensor x = leaf({8, 6});
  EXPECT_TRUE(is_right_and_verified(
      [&] { return at::rrelu(at::rrelu(x.sin(), 0.1, 0.3, true).mul(2), 0.1, 0.3, true); }, {x}));
}

TEST(ReplayedOperators, ARootThatIsChangedByAnOperatorWithOtherResults) {
  const Tensor x = leaf({8, 6});
  EXPECT_TRUE(is_right_and_verified(
      [&] {
        Tensor mean = at::zeros({6}), variance = at::ones({6});
        const Tensor y = std::get<0>(
            at::_native_batch_norm_legit(x.sin(), {}, {}, mean, variance, true, 0.1, 1e-5));
        return y.exp() * mean + variance;
      },
      {x}));
}

TEST(ReplayedOperators, ARootThatIsReadAndIsTheOut) {
  const Tensor x = leaf({4, 6});
  EXPECT_TRUE(is_right_and_verified(
      [&] {
        Tensor most = at::zeros({4, 6});
        at::maximum_out(most, most, x.detach());
        return x.exp() * most.mul(2);
      },
      {x}));
}

TEST(ReplayedOperators, WritesThroughSeveralArgumentsIntoOneTensor) {
  const Tensor x = leaf({4, 6});
  EXPECT_TRUE(is_right_and_verified(
      [&] {
        const Tensor rows = x.detach().exp();
        at::_foreach_add_({rows.narrow(0, 0, 2), rows.narrow(0, 2, 2)}, 1);
        return x.sin() * rows;
      },
      {x}));
}

TEST(ReplayedOperators, ResultsWithRoomBehindThem) {
  const Tensor x = leaf({8, 6}), target = at::randn({8, 6});
  EXPECT_TRUE(is_right_and_verified([&] { return at::mse_loss(x.sin(), target).exp(); }, {x}));
  EXPECT_TRUE(is_right_and_verified([&] { return at::smooth_l1_loss(x.sin(), target); }, {x}));
}

TEST(ReplayedOperators, ResultsOfWhichBytesStayUnset) {
  const Tensor x = leaf({12, 3, 5});
  const Tensor targets = at::randint(1, 5, {3, 6});
  const std::vector<std::int64_t> inputs = {12, 12, 12}, lengths = {6, 2, 4};
  EXPECT_TRUE(is_right_and_verified(
      [&] { return at::ctc_loss(at::log_softmax(x.sin(), 2), targets, inputs, lengths).exp(); },
      {x}));
  const Tensor words = leaf({5, 2, 6});
  torch::nn::LSTM lstm(6, 7);
  EXPECT_TRUE(is_right_and_verified([&] { return std::get<0>(lstm->forward(words.sin())).exp(); },
                                    {words}));
}

TEST(ReplayedOperators, ResultsThatAreGivenAsEmptyTensors) {
  const Tensor x = leaf({4, 6});
  EXPECT_TRUE(is_right_and_verified(
      [&] {
        Tensor grows = at::empty({0}), shrinks = x.detach().cos();
        at::log_sigmoid_out(grows, x.detach());
        const Tensor whole = shrinks.view({24});
        at::sin_out(shrinks, x.detach().narrow(0, 0, 2));
        return x.exp() * grows * whole.view({4, 6});
      },
      {x}));
}

TEST(ReplayedOperators, ChangesOfShapeInPlaceLeaveAResultDroppable) {
  const Tensor x = leaf({4, 6});
  MemoryBudget budget(GiB(64), testing::paranoid());
  auto step = budget.step();
  const Tensor y = x.detach().exp();
  y.t_().unsqueeze_(0);
  EXPECT_TRUE(is_dropped(y));
  step.finish();
  EXPECT_TRUE(y.equal(x.detach().exp().t().unsqueeze(0)));
}

}  // namespace
}  // namespace reprise
