// FLOPs and bytes by operator, as literature counts them.
#include <gmock/gmock.h>
#include <reprise/estimate.h>
#include <torch/torch.h>

namespace reprise {
namespace {

namespace nn = torch::nn;

// Of forward and backward together: f gives what depends on w.
double flops_of(const at::Tensor& w, const std::function<at::Tensor(const at::Tensor&)>& f) {
  nn::Module holder;
  const auto held = holder.register_parameter("w", w);
  // Below: sum's forward, and nothing else that is linear in the elements.
  return estimate_step(holder, [&] { return f(held).sum(); }).flops;
}

constexpr double kSlack = 0.03;  // for what is elementwise beside it

TEST(OperatorCost, OfProductsIsTwoForEachMultiplicationAndAddition) {
  const auto x = at::ones({256, 384});
  // Forward, and backward to w alone.
  const double product = 2.0 * 256 * 384 * 512;
  EXPECT_NEAR(flops_of(at::ones({384, 512}), [&](auto& w) { return at::mm(x, w); }) / product, 2,
              kSlack);
  const auto bias = at::ones({512});
  EXPECT_NEAR(
      flops_of(at::ones({384, 512}), [&](auto& w) { return at::addmm(bias, x, w); }) / product, 2,
      kSlack);
  const auto batches = at::ones({4, 256, 384});
  EXPECT_NEAR(flops_of(at::ones({4, 384, 512}), [&](auto& w) { return at::bmm(batches, w); }) /
                  (4 * product),
              2, kSlack);
}

// In place they do as much, and their gradient for w is one product more.
TEST(OperatorCost, OfProductsInPlaceIsThatOfProducts) {
  const auto x = at::ones({256, 384}), batches = at::ones({4, 256, 384});
  const double product = 2.0 * 256 * 384 * 512;
  const auto sum = [](std::int64_t batch) { return at::zeros({batch, 256, 512}); };
  const auto w = at::ones({384, 512});
  EXPECT_NEAR(flops_of(w, [&](auto& v) { return sum(1)[0].addmm_(x, v); }) / product, 2, kSlack);
  const auto all = at::ones({4, 384, 512});
  EXPECT_NEAR(flops_of(all, [&](auto& v) { return sum(4).baddbmm_(batches, v); }) / (4 * product),
              2, kSlack);
  EXPECT_NEAR(flops_of(all, [&](auto& v) { return sum(1)[0].addbmm_(batches, v); }) / (4 * product),
              2, kSlack);
  // A matrix times a vector and, for the vector's gradient, its transpose.
  EXPECT_NEAR(flops_of(at::ones({384}), [&](auto& v) { return at::zeros({256}).addmv_(x, v); }) /
                  (2.0 * 256 * 384),
              2, kSlack);
  const double dot = 2.0 * (1 << 16);
  EXPECT_NEAR(
      flops_of(at::ones({1 << 16}), [&](auto& v) { return at::vdot(at::ones({1 << 16}), v); }) -
          flops_of(at::ones({1 << 16}), [&](auto& v) { return at::dot(at::ones({1 << 16}), v); }),
      0, kSlack * dot);
}

TEST(OperatorCost, OfConvolutionsCountsEachWeightOfAChannel) {
  const auto x = at::ones({2, 16, 32, 32});
  const double one = 2.0 * 2 * 24 * 32 * 32 * 16 * 9;
  EXPECT_NEAR(
      flops_of(at::ones({24, 16, 3, 3}), [&](auto& w) { return at::conv2d(x, w, {}, 1, 1); }) / one,
      2, kSlack);
  // Four groups: a quarter.
  EXPECT_NEAR(
      flops_of(at::ones({24, 4, 3, 3}), [&](auto& w) { return at::conv2d(x, w, {}, 1, 1, 1, 4); }) /
          one,
      0.5, kSlack);
  // Each of the input's 16 x 32 x 32 elements goes to 24 channels, 2 x 2 each.
  const double spread = 2.0 * 2 * 16 * 32 * 32 * 24 * 4;
  EXPECT_NEAR(flops_of(at::ones({16, 24, 2, 2}),
                       [&](auto& w) { return at::conv_transpose2d(x, w, {}, 2); }) /
                  spread,
              2, 0.1);
}

TEST(OperatorCost, OfAnLstmIsThatOfItsGatesProducts) {
  nn::LSTM lstm(nn::LSTMOptions(128, 256).num_layers(2));
  const auto x = at::ones({12, 8, 128});
  const double products = 2.0 * 12 * 8 * 4 * 256 * ((128 + 256) + (256 + 256));
  const double flops =
      estimate_step(*lstm, [&] { return std::get<0>(lstm->forward(x)).sum(); }).flops;
  EXPECT_NEAR(flops / products, 3, kSlack);
}

TEST(OperatorCost, OfFusedAttentionIsTwoProductsAndFiveInBackward) {
  const auto k = at::ones({2, 4, 128, 32}), v = at::ones({2, 4, 128, 32});
  const double product = 2.0 * 2 * 4 * 128 * 128 * 32;
  EXPECT_NEAR(flops_of(at::ones({2, 4, 128, 32}),
                       [&](auto& q) { return at::scaled_dot_product_attention(q, k, v); }) /
                  product,
              2 + 5, kSlack);
}

TEST(OperatorCost, OfElementwiseOperatorsIsOneAnElementAndOfViewsNothing) {
  const double elements = 64 * 64;
  // sum and its expanded gradient: one pass and a view; sin: forward, and cos and mul behind.
  EXPECT_DOUBLE_EQ(flops_of(at::ones({64, 64}), [](auto& w) { return w.sin(); }),
                   elements * (1 + 1 + 2) + 1);
  EXPECT_DOUBLE_EQ(flops_of(at::ones({64, 64}), [](auto& w) { return w.t().unsqueeze(0); }) -
                       flops_of(at::ones({64, 64}), [](auto& w) { return w; }),
                   0);
}

}  // namespace
}  // namespace reprise
