// Predicted peaks within two percent of measured ones, above what is live before the step.
#include <gmock/gmock.h>
#include <reprise/estimate.h>
#include <torch/torch.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "models/gpt.h"
#include "models/strategy.h"
#include "tests/estimate/measured.h"
#include "tests/tape/networks/networks.h"

namespace reprise {
namespace {

using testing::expect_near;
using testing::has_wide_blocks;
using testing::kWhySkipped;
using testing::measured_peak;

struct GptCase {
  std::string strategy;
  bool fused;
  double dropout;
};

class PredictedGptPeak : public ::testing::TestWithParam<GptCase> {};

TEST_P(PredictedGptPeak, IsThatOfTheRealStep) {
  const GptCase& gpt = GetParam();
  models::Gpt model(models::GptOptions{.layers = 6,
                                       .width = 96,
                                       .heads = 4,
                                       .context = 48,
                                       .vocabulary = 128,
                                       .dropout = gpt.dropout,
                                       .fused_attention = gpt.fused});
  const auto tokens = at::randint(128, {4, 48}), targets = at::randint(128, {4, 48});
  models::Layers layers;
  for (const models::GptBlock& block : model->blocks()) {
    layers.push_back([block = block.ptr()](const at::Tensor& x) { return block->forward(x); });
  }
  const auto strategy = models::Strategy::parse(gpt.strategy);
  const auto loss = [&] {
    return models::next_token_loss(model->head(strategy.run(layers, model->embed(tokens))),
                                   targets);
  };
  expect_near(estimate_step(*model, loss), measured_peak(*model, loss));
}

std::vector<GptCase> gpt_cases() {
  std::vector<GptCase> cases;
  for (const char* strategy :
       {"none", "every-block", "sqrt", "segments:2", "from-input", "selective:matmul",
        "selective:all-but-cheap", "selective:recompute-attention"}) {
    cases.push_back({strategy, true, 0});
    cases.push_back({strategy, true, 0.1});
    cases.push_back({strategy, false, 0.1});
  }
  return cases;
}

std::string name_of_gpt_case(const ::testing::TestParamInfo<GptCase>& info) {
  std::string name = info.param.strategy + (info.param.fused ? "_fused" : "_unfused") +
                     (info.param.dropout > 0 ? "_dropout" : "");
  std::ranges::replace_if(
      name, [](char c) { return c == '-' || c == ':'; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, PredictedGptPeak, ::testing::ValuesIn(gpt_cases()), name_of_gpt_case);

class PredictedNetworkPeak : public ::testing::TestWithParam<testing::NetworkKind> {};

// Built once for real and once without memory: their data are members that only an estimate of
// real data would put on the meta device one by one.
TEST_P(PredictedNetworkPeak, IsThatOfTheRealStep) {
  const bool convolves = GetParam().name == "ResNet" || GetParam().name == "UNet";
  if (convolves && !has_wide_blocks()) GTEST_SKIP() << kWhySkipped;
  const auto real = GetParam().make();
  std::shared_ptr<testing::Network> unallocated;
  {
    const MetaTensorsScope meta;
    unallocated = GetParam().make();
  }
  expect_near(estimate_step(*unallocated, [&] { return unallocated->loss(0); }),
              measured_peak(*real, [&] { return real->loss(0); }));
}

std::vector<testing::NetworkKind> estimable_networks() {
  std::vector<testing::NetworkKind> all = testing::static_networks();
  for (testing::NetworkKind& each : testing::dynamic_networks()) all.push_back(std::move(each));
  std::erase_if(all, &testing::NetworkKind::reads_values);
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, PredictedNetworkPeak, ::testing::ValuesIn(estimable_networks()),
                         [](const auto& info) { return info.param.name; });

struct ConvolutionCase {
  std::string name;
  torch::nn::Conv2dOptions options;
  std::vector<std::int64_t> input;
  at::MemoryFormat format = at::MemoryFormat::Contiguous;
};

class PredictedConvolutionPeak : public ::testing::TestWithParam<ConvolutionCase> {};

// With what oneDNN copies.
TEST_P(PredictedConvolutionPeak, IsThatOfTheRealStep) {
  if (!has_wide_blocks()) GTEST_SKIP() << kWhySkipped;
  const ConvolutionCase& given = GetParam();
  torch::nn::Conv2d layer(given.options);
  layer->to(at::kFloat);
  for (at::Tensor& each : layer->parameters()) {
    if (each.dim() == 4) each.set_data(each.contiguous(given.format));
  }
  const auto x = at::rand(given.input).contiguous(given.format);
  const auto loss = [&] { return layer->forward(x.clone().requires_grad_()).sum(); };
  expect_near(estimate_step(*layer, loss), measured_peak(*layer, loss));
}

torch::nn::Conv2dOptions convolution_of(std::int64_t from, std::int64_t to, std::int64_t size,
                                        std::int64_t stride = 1, std::int64_t groups = 1) {
  return torch::nn::Conv2dOptions(from, to, size).stride(stride).padding(size / 2).groups(groups);
}

INSTANTIATE_TEST_SUITE_P(
    All, PredictedConvolutionPeak,
    ::testing::Values(
        ConvolutionCase{"OfColours", convolution_of(3, 16, 3), {8, 3, 32, 32}},
        ConvolutionCase{"WholeBlocks", convolution_of(32, 32, 3), {8, 32, 24, 24}},
        ConvolutionCase{"PartsOfBlocks", convolution_of(24, 40, 3), {8, 24, 24, 24}},
        ConvolutionCase{"WithStride", convolution_of(32, 64, 3, 2), {8, 32, 24, 24}},
        ConvolutionCase{"OfPixels", convolution_of(64, 64, 1), {16, 64, 16, 16}},
        ConvolutionCase{"OfPixelsByLibTorch", convolution_of(64, 64, 1), {4, 64, 16, 16}},
        ConvolutionCase{"ByPatches", convolution_of(20, 20, 3), {1, 20, 16, 16}},
        ConvolutionCase{"ByChannel", convolution_of(64, 64, 3, 1, 64), {4, 64, 24, 24}},
        ConvolutionCase{"InGroups", convolution_of(64, 64, 3, 1, 4), {4, 64, 24, 24}},
        ConvolutionCase{"ChannelsLast",
                        convolution_of(32, 48, 3),
                        {8, 32, 24, 24},
                        at::MemoryFormat::ChannelsLast}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace reprise
