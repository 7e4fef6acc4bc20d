// Every strategy leaves the gradients as they are, bit for bit, and costs the memory and the layer
// runs that its description promises.
#include "models/strategy.h"

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <reprise/error.h>
#include <reprise/memory.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <memory>

#include "models/gpt.h"
#include "tests/refusal.h"

namespace reprise::models {
namespace {

std::string strategy_refusal(const std::string& text, std::int64_t layers = 8) {
  return refusal_of([&] { Strategy::parse(text).check(layers); });
}

TEST(Strategy, IsReadFromText) {
  for (const char* text :
       {"none", "every-block", "segments:1", "segments:8", "sqrt", "from-input", "selective:matmul",
        "selective:all-but-cheap", "selective:recompute-attention", "offload:disk=/nowhere",
        "offload:host"}) {
    EXPECT_EQ(strategy_refusal(text), "") << text;
    EXPECT_EQ(Strategy::parse(text).name(), text);
  }
}

TEST(Strategy, RefusesOtherTextsAndListsTheChoices) {
  using testing::HasSubstr;
  const char* choices =
      "choose one of none, every-block, segments:K, sqrt, from-input, "
      "selective:matmul, selective:all-but-cheap, selective:recompute-attention, "
      "offload:disk=DIR, offload:host";
  EXPECT_THAT(strategy_refusal("some"),
              HasSubstr("unknown strategy 'some'; " + std::string(choices)));
  EXPECT_THAT(strategy_refusal(""), HasSubstr("unknown strategy ''"));
  EXPECT_THAT(strategy_refusal("None"), HasSubstr("unknown strategy 'None'"));
  EXPECT_THAT(strategy_refusal("sqrt:3"), HasSubstr("'sqrt:3' takes no parameter; write 'sqrt'"));
  for (const char* text : {"segments", "segments:", "segments:0", "segments:-2", "segments:2x"}) {
    EXPECT_THAT(strategy_refusal(text),
                HasSubstr("needs a number of at least 1, such as 'segments:4'"))
        << text;
  }
  EXPECT_THAT(strategy_refusal("segments:9"),
              HasSubstr("'segments:9' has more segments than the model has layers (8)"));
}

// Runs of each layer while backward runs.
std::int64_t runs_in_backward(const std::string& strategy, std::int64_t count,
                              bool reentrant = false) {
  auto runs = std::make_shared<std::int64_t>(0);
  Layers layers;
  for (std::int64_t i = 0; i < count; ++i) {
    layers.push_back([runs](const at::Tensor& x) {
      ++*runs;
      return x.sin();
    });
  }
  CheckpointOptions options;
  options.reentrant = reentrant;
  const auto x = torch::ones({4}, at::requires_grad());
  const auto sum = Strategy::parse(strategy).run(layers, x, options).sum();
  EXPECT_EQ(*runs, count) << "in forward";
  sum.backward();
  return *runs - count;
}

TEST(Strategy, RecomputesAsManyLayersAsItSays) {
  for (const bool reentrant : {false, true}) {
    EXPECT_EQ(runs_in_backward("none", 8, reentrant), 0);
    EXPECT_EQ(runs_in_backward("every-block", 8, reentrant), 8);
    EXPECT_EQ(runs_in_backward("segments:4", 8, reentrant), 6);
    EXPECT_EQ(runs_in_backward("segments:1", 8, reentrant), 0);
    // Segments of 3, 3 and 2; of 4, 4, 4 and 4.
    EXPECT_EQ(runs_in_backward("sqrt", 8, reentrant), 6);
    EXPECT_EQ(runs_in_backward("sqrt", 16, reentrant), 12);
    EXPECT_EQ(runs_in_backward("sqrt", 1, reentrant), 0);
    EXPECT_EQ(runs_in_backward("from-input", 8, reentrant), 8 * 9 / 2);
  }
}

struct StrategyCase {
  std::string strategy;
  bool reentrant;
  bool fused;
  bool autocast;
};

class StrategyGradients : public testing::TestWithParam<StrategyCase> {};

std::vector<at::Tensor> gradients(const StrategyCase& test, const std::string& strategy) {
  torch::manual_seed(11);
  Gpt model(GptOptions{
      .layers = 5, .width = 32, .heads = 4, .context = 16, .fused_attention = test.fused});
  Layers layers;
  for (const GptBlock& block : model->blocks()) {
    layers.push_back([block = block.ptr()](const at::Tensor& x) { return block->forward(x); });
  }
  CheckpointOptions options;
  options.reentrant = test.reentrant;
  const auto tokens = torch::randint(256, {2, 16}, at::kLong);
  at::autocast::set_autocast_enabled(at::kCPU, test.autocast);
  Strategy chosen = Strategy::parse(strategy);
  chosen.prepare(at::kCPU);
  ContextScope scope = chosen.around_forward();
  const auto x = chosen.run(layers, model->embed(tokens), options);
  const auto loss = next_token_loss(model->head(x), tokens);
  scope.reset();
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  loss.backward();
  std::vector<at::Tensor> result{loss.detach()};
  for (const auto& parameter : model->parameters()) result.push_back(parameter.grad());
  return result;
}

TEST_P(StrategyGradients, AreBitwiseThoseOfThePlainStep) {
  const auto expected = gradients(GetParam(), "none"),
             found = gradients(GetParam(), GetParam().strategy);
  ASSERT_EQ(expected.size(), found.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(torch::equal(expected[i].view(at::kInt), found[i].view(at::kInt))) << i;
  }
}

std::vector<StrategyCase> strategy_cases() {
  std::vector<StrategyCase> cases;
  for (const char* strategy : {"every-block", "segments:2", "sqrt", "from-input"}) {
    for (const bool reentrant : {false, true}) {
      for (const bool fused : {false, true}) {
        for (const bool autocast : {false, true}) {
          cases.push_back({strategy, reentrant, fused, autocast});
        }
      }
    }
  }
  const std::string disk = "offload:disk=" + std::filesystem::temp_directory_path().string();
  for (const std::string& strategy :
       {std::string("selective:matmul"), std::string("selective:all-but-cheap"),
        std::string("selective:recompute-attention"), disk}) {
    for (const bool fused : {false, true}) {
      for (const bool autocast : {false, true}) cases.push_back({strategy, false, fused, autocast});
    }
  }
  return cases;
}

std::string name_of_strategy_case(const testing::TestParamInfo<StrategyCase>& info) {
  std::string name = info.param.strategy + (info.param.reentrant ? "_reentrant" : "") +
                     (info.param.fused ? "_fused" : "_unfused") +
                     (info.param.autocast ? "_autocast" : "");
  std::ranges::replace_if(
      name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, StrategyGradients, testing::ValuesIn(strategy_cases()),
                         name_of_strategy_case);

// Bytes that forward and backward need above the input, with layers that keep 16 KB each.
Bytes activations(const std::string& strategy, std::int64_t count) {
  const Layers layers(count, [](const at::Tensor& x) { return x.sin(); });
  auto x = torch::ones({4096}, at::requires_grad());
  x.mutable_grad() = torch::zeros_like(x);
  const PeakScope scope;
  Strategy::parse(strategy).run(layers, x).sum().backward();
  return scope.peak_above_start();
}

TEST(Strategy, FromInputNeedsTheSameMemoryForAnyDepth) {
  // malloc rounds up by a few bytes more or less.
  EXPECT_NEAR(activations("from-input", 4).megabytes(), activations("from-input", 32).megabytes(),
              1e-3);
  EXPECT_GT(activations("none", 32), activations("none", 4) * 5);
}

// The input of each segment, what one segment keeps, and a gradient.
TEST(Strategy, SquareRootNeedsTwiceTheRootOfTheDepthAndOne) {
  for (const std::int64_t root : {2, 6, 12, 18}) {
    const Bytes needed = activations("sqrt", root * root);
    // malloc rounds up by a few bytes.
    EXPECT_NEAR(static_cast<double>(needed.count) / (4096 * sizeof(float)), 2.0 * root + 1, 0.1);
  }
}

TEST(Strategy, LayersMayGoBeforeBackwardRuns) {
  for (const char* strategy : {"none", "every-block", "segments:2", "sqrt", "from-input"}) {
    auto alive = std::make_shared<int>(0);
    auto x = torch::ones({4}, at::requires_grad());
    at::Tensor y;
    {
      const Layers layers(4, [alive](const at::Tensor& t) { return t.sin(); });
      y = Strategy::parse(strategy).run(layers, x).sum();
    }
    y.backward();
    const auto expected = torch::ones({4}, at::requires_grad());
    expected.sin().sin().sin().sin().sum().backward();
    EXPECT_TRUE(torch::equal(x.grad(), expected.grad())) << strategy;
    y.reset();
    EXPECT_EQ(alive.use_count(), 1) << strategy << " keeps its layers after the graph is gone";
  }
}

TEST(Strategy, OffloadingSaysWhatItNeeds) {
  const auto refusal_to_prepare = [](const char* text, c10::Device device) -> std::string {
    try {
      Strategy::parse(text).prepare(device);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  using testing::HasSubstr;
  EXPECT_THAT(refusal_to_prepare("offload:host", at::kCPU),
              HasSubstr("the device is the CPU; use 'offload:disk=DIR'"));
  EXPECT_THAT(refusal_to_prepare("offload:disk=/tmp", c10::Device(at::kCUDA, 0)),
              HasSubstr("the device is cuda:0; use 'offload:host'"));
  EXPECT_THAT(refusal_to_prepare("offload:disk=/no/such/folder", at::kCPU),
              HasSubstr("/no/such/folder"));
  EXPECT_THAT(strategy_refusal("offload:disk="), HasSubstr("needs a folder, such as"));
  EXPECT_THAT(strategy_refusal("offload:moon"),
              HasSubstr("choose one of offload:disk=DIR, offload:host"));
  EXPECT_THAT(strategy_refusal("selective:all"), HasSubstr("choose one of selective:matmul"));
}

TEST(Strategy, RunsAnEmptyListOnlyPlainly) {
  const auto x = torch::ones({4}, at::requires_grad());
  for (const char* strategy : {"none", "every-block", "sqrt", "from-input"}) {
    EXPECT_TRUE(Strategy::parse(strategy).run({}, x).is_same(x)) << strategy;
  }
  EXPECT_THROW(Strategy::parse("segments:1").run({}, x), UsageError);
}

}  // namespace
}  // namespace reprise::models
