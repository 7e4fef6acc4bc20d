// Predicted peaks of single layers, whose kernels keep memory of their own, beside measured ones.
#include <gmock/gmock.h>
#include <reprise/estimate.h>
#include <torch/torch.h>

#include <functional>
#include <string>

#include "tests/estimate/measured.h"

namespace reprise {
namespace {

namespace nn = torch::nn;

using testing::has_wide_blocks;
using testing::kWhySkipped;

void expect_predicted(nn::Module& module, const std::function<at::Tensor()>& loss) {
  testing::expect_near(estimate_step(module, loss), testing::measured_peak(module, loss));
}

struct LstmCase {
  std::int64_t steps, batch, input, hidden;
};

class PredictedLstmPeak : public ::testing::TestWithParam<LstmCase> {};

TEST_P(PredictedLstmPeak, IsThatOfTheRealStep) {
  if (!has_wide_blocks()) GTEST_SKIP() << kWhySkipped;
  const LstmCase& given = GetParam();
  nn::LSTM lstm(given.input, given.hidden);
  const auto x = at::rand({given.steps, given.batch, given.input});
  expect_predicted(*lstm, [&] { return std::get<0>(lstm(x)).sum(); });
}

// Below and above a batch of 128, from which a step's gates are a product of their own; rows that
// end on cache lines and that do not; rows that are lengthened for being a multiple of 256.
INSTANTIATE_TEST_SUITE_P(All, PredictedLstmPeak,
                         ::testing::Values(LstmCase{10, 8, 24, 24}, LstmCase{10, 8, 256, 256},
                                           LstmCase{10, 128, 24, 24}, LstmCase{10, 128, 48, 256},
                                           LstmCase{10, 200, 24, 24}, LstmCase{10, 200, 256, 256},
                                           LstmCase{25, 8, 48, 24}, LstmCase{25, 200, 24, 256}),
                         [](const auto& info) {
                           const LstmCase& of = info.param;
                           return "Steps" + std::to_string(of.steps) + "Batch" +
                                  std::to_string(of.batch) + "Input" + std::to_string(of.input) +
                                  "Hidden" + std::to_string(of.hidden);
                         });

struct SequenceCase {
  std::string name;
  nn::Conv1dOptions options;
  std::vector<std::int64_t> input;
};

class PredictedConv1dPeak : public ::testing::TestWithParam<SequenceCase> {};

// Kernels see an image of one row.
TEST_P(PredictedConv1dPeak, IsThatOfTheRealStep) {
  if (!has_wide_blocks()) GTEST_SKIP() << kWhySkipped;
  nn::Conv1d layer(GetParam().options);
  const auto x = at::rand(GetParam().input);
  expect_predicted(*layer, [&] { return layer(x.clone().requires_grad_()).sum(); });
}

INSTANTIATE_TEST_SUITE_P(
    All, PredictedConv1dPeak,
    ::testing::Values(
        SequenceCase{"PartsOfBlocks", nn::Conv1dOptions(24, 40, 3).padding(1), {8, 24, 512}},
        SequenceCase{"WithStride", nn::Conv1dOptions(32, 64, 3).stride(2), {8, 32, 512}},
        SequenceCase{"ByPatches", nn::Conv1dOptions(20, 20, 3).padding(1), {1, 20, 512}}),
    [](const auto& info) { return info.param.name; });

// --- workspaces of other types than f32, and of gradients that nobody wants

TEST(PredictedLayerNormPeak, IsThatOfTheTypeAndOfTheGradientsWanted) {
  constexpr std::int64_t kWide = 1 << 16;
  struct Types {
    at::ScalarType input, parameters;
  };
  for (const auto& [dtype, parameters] :
       {Types{at::kFloat, at::kFloat}, Types{at::kDouble, at::kDouble},
        Types{at::kBFloat16, at::kBFloat16}, Types{at::kBFloat16, at::kFloat}}) {
    for (const bool trains : {true, false}) {
      nn::LayerNorm norm(nn::LayerNormOptions({kWide}));
      norm->to(parameters);
      norm->weight.requires_grad_(trains);
      norm->bias.requires_grad_(trains);
      const auto x = at::rand({2, kWide}, dtype);
      SCOPED_TRACE(c10::str(dtype, " by ", parameters, trains ? "" : ", frozen"));
      expect_predicted(*norm, [&] { return norm(x.clone().requires_grad_()).sum(); });
    }
  }
}

TEST(PredictedAttentionPeak, IsThatOfTheType) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    nn::Module holder;
    const auto q = holder.register_parameter("q", at::rand({1, 1, 800, 8}, dtype));
    expect_predicted(holder, [&] { return at::scaled_dot_product_attention(q, q, q).sum(); });
  }
}

// --- copies that kernels make of their arguments

struct CopiesCase {
  std::string name;
  std::function<at::Tensor(const at::Tensor& h)> loss;
};

class PredictedCopiesPeak : public ::testing::TestWithParam<CopiesCase> {};

TEST_P(PredictedCopiesPeak, IsThatOfTheRealStep) {
  nn::Linear layer(256, 256);
  const auto x = at::rand({256, 256});
  expect_predicted(*layer, [&] { return GetParam().loss(layer(x)); });
}

std::vector<CopiesCase> copies_cases() {
  using at::Tensor;
  return {
      {"ProductByAMask", [](const Tensor& h) { return (h * (h > 0.1)).square().sum(); }},
      {"ProductByWholeNumbers",
       [](const Tensor& h) {
         return (h * at::randint(5, {256, 256})).square().sum();
       }},
      {"DifferenceToDoubles",
       [](const Tensor& h) {
         return (h - at::rand({256, 256}, at::kDouble)).square().mean();
       }},
      {"ComparedWithDoubles",
       [](const Tensor& h) {
         const auto larger = h > at::rand({256, 256}, at::kDouble);
         return h.sum() + 0 * larger.sum();
       }},
      {"OfComplexNumbers", [](const Tensor& h) { return at::complex(h, h).abs().sum(); }},
      {"LargestOfRows", [](const Tensor& h) { return h.amax(1).sum(); }},
      {"SoftmaxInDoubles", [](const Tensor& h) { return h.softmax(1, at::kDouble).sum(); }},
      {"SoftmaxOfColumns", [](const Tensor& h) { return h.t().softmax(1).square().sum(); }},
      {"ThirdOfRows", [](const Tensor& h) { return std::get<0>(h.kthvalue(3, 1)).sum(); }},
      {"SoftMargin",
       [](const Tensor& h) {
         return at::soft_margin_loss(h, at::ones({256, 256}));
       }},
      {"SoftMarginOfEach",
       [](const Tensor& h) {
         return at::soft_margin_loss(h, at::ones({256, 256}), at::Reduction::None).sum();
       }},
  };
}

INSTANTIATE_TEST_SUITE_P(All, PredictedCopiesPeak, ::testing::ValuesIn(copies_cases()),
                         [](const auto& info) { return info.param.name; });

// --- nothing to do

TEST(EstimateStep, OfEmptyConvolutionsNeedsNoWorkspace) {
  nn::Module holder;
  const auto weight = holder.register_parameter("weight", at::rand({4, 3, 3, 3}));
  for (const std::vector<std::int64_t>& sizes :
       {std::vector<std::int64_t>{0, 3, 8, 8}, std::vector<std::int64_t>{0, 3, 1, 8}}) {
    const auto x = at::rand(sizes);
    const Estimate found =
        estimate_step(holder, [&] { return at::conv2d(x, weight, {}, 1, 1).sum() + weight.sum(); });
    EXPECT_GT(found.peak, Bytes(0));
  }
}

}  // namespace
}  // namespace reprise
