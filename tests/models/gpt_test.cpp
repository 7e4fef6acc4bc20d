// The GPT computes what it should: causal, the same with either attention, GPT-2's initial weights,
// and clear refusals of what cannot be built.
#include "models/gpt.h"
#include "tests/refusal.h"

#include <gmock/gmock.h>
#include <reprise/error.h>

#include <cmath>

namespace reprise::models {
namespace {

constexpr GptOptions kSmall{.layers = 2, .width = 32, .heads = 4, .context = 16};

at::Tensor random_tokens(std::int64_t batch, std::int64_t time) {
  return torch::randint(256, {batch, time}, at::kLong);
}

std::string refusal(const GptOptions& options) {
  return refusal_of([&] { Gpt model(options); });
}

TEST(Gpt, AFreshModelIsAsUnsureAsItCanBe) {
  torch::manual_seed(1);
  Gpt model(kSmall);
  const double loss = model->loss(random_tokens(8, 16), random_tokens(8, 16)).item<double>();
  EXPECT_NEAR(loss, std::log(256.0), 0.05);
}

TEST(Gpt, LaterTokensDoNotChangeEarlierLogits) {
  for (const bool fused : {true, false}) {
    torch::manual_seed(2);
    GptOptions options = kSmall;
    options.fused_attention = fused;
    Gpt model(options);
    model->eval();
    const auto tokens = random_tokens(2, 16);
    auto changed = tokens.clone();
    changed.slice(1, 10).fill_(7);
    const auto before = model->forward(tokens), after = model->forward(changed);
    EXPECT_TRUE(torch::allclose(before.slice(1, 0, 10), after.slice(1, 0, 10), 1e-5, 1e-6))
        << fused;
    EXPECT_FALSE(torch::allclose(before.slice(1, 10), after.slice(1, 10), 1e-3, 1e-3)) << fused;
  }
}

TEST(Gpt, FusedAndUnfusedAttentionComputeTheSame) {
  GptOptions options = kSmall;
  options.dropout = 0;
  torch::manual_seed(3);
  Gpt fused(options);
  options.fused_attention = false;
  torch::manual_seed(3);
  Gpt unfused(options);
  const auto tokens = random_tokens(2, 16), targets = random_tokens(2, 16);
  fused->loss(tokens, targets).backward();
  unfused->loss(tokens, targets).backward();
  const auto expected = fused->parameters(), found = unfused->parameters();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(torch::allclose(expected[i].grad(), found[i].grad(), 1e-4, 1e-6)) << i;
  }
}

TEST(Gpt, BlocksRunOneByOneGiveWhatForwardGives) {
  torch::manual_seed(4);
  Gpt model(kSmall);
  model->eval();
  const auto tokens = random_tokens(2, 16);
  auto x = model->embed(tokens);
  for (const GptBlock& block : model->blocks()) x = block.ptr()->forward(x);
  EXPECT_TRUE(torch::equal(model->head(x), model->forward(tokens)));
}

TEST(Gpt, DropoutActsInTrainingAlone) {
  torch::manual_seed(5);
  Gpt model(kSmall);
  const auto tokens = random_tokens(2, 16);
  EXPECT_FALSE(torch::equal(model->forward(tokens), model->forward(tokens)));
  model->eval();
  EXPECT_TRUE(torch::equal(model->forward(tokens), model->forward(tokens)));
}

TEST(Gpt, WeightsStartAsThoseOfGpt2) {
  torch::manual_seed(6);
  Gpt model(GptOptions{.layers = 8, .width = 128, .heads = 4, .context = 64});
  const auto parameters = model->named_parameters();
  const auto deviation = [&](const char* name) { return parameters[name].std().item<double>(); };
  EXPECT_NEAR(deviation("token_embedding.weight"), 0.02, 0.001);
  EXPECT_NEAR(deviation("block0.qkv.weight"), 0.02, 0.001);
  EXPECT_NEAR(deviation("block3.mlp_out.weight"), 0.02 / 4, 0.0003);
  EXPECT_NEAR(deviation("block3.attention_out.weight"), 0.02 / 4, 0.0003);
  EXPECT_TRUE(torch::all(parameters["block0.qkv.bias"] == 0).item<bool>());
  EXPECT_TRUE(torch::all(parameters["final_norm.weight"] == 1).item<bool>());
}

TEST(Gpt, ATiedHeadAddsNoParameters) {
  const std::int64_t c = 32, block = 12 * c * c + 13 * c;
  GptOptions options = kSmall;
  EXPECT_EQ(parameter_count(*Gpt(options)), 256 * c + 16 * c + 2 * block + 2 * c);
  options.tied_head = false;
  EXPECT_EQ(parameter_count(*Gpt(options)), 2 * 256 * c + 16 * c + 2 * block + 2 * c);
}

TEST(Gpt, LearnsARepeatedText) {
  torch::manual_seed(7);
  GptOptions options = kSmall;
  options.dropout = 0;
  Gpt model(options);
  const auto tokens = torch::arange(17).repeat({4, 1});
  const auto inputs = tokens.slice(1, 0, 16), targets = tokens.slice(1, 1, 17);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3e-3));
  for (int step = 0; step < 60; ++step) {
    optimizer.zero_grad();
    model->loss(inputs, targets).backward();
    optimizer.step();
  }
  EXPECT_LT(model->loss(inputs, targets).item<double>(), 0.5);
}

TEST(Gpt, RefusesSizesThatCannotBeBuilt) {
  using testing::HasSubstr;
  EXPECT_THAT(
      refusal({.width = 256, .heads = 3}),
      HasSubstr("3 heads do not divide width 256; choose a width that is a multiple of heads, "
                "such as 258"));
  EXPECT_THAT(refusal({.layers = 0}), HasSubstr("layers is 0; it must be at least 1"));
  EXPECT_THAT(refusal({.width = -8}), HasSubstr("width is -8"));
  EXPECT_THAT(refusal({.heads = 0}), HasSubstr("heads is 0"));
  EXPECT_THAT(refusal({.context = 0}), HasSubstr("context is 0"));
  EXPECT_THAT(refusal({.vocabulary = 0}), HasSubstr("vocabulary is 0"));
  EXPECT_THAT(refusal({.dropout = 1}),
              HasSubstr("dropout is 1; it must be at least 0 and below 1"));
  EXPECT_THAT(refusal({.dropout = std::nan("")}), HasSubstr("dropout is nan"));
}

TEST(Gpt, RefusesASequenceLongerThanItsContext) {
  Gpt model(kSmall);
  try {
    model->forward(random_tokens(1, 17));
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(),
                testing::HasSubstr("17 tokens is longer than the model's context of 16"));
  }
}

}  // namespace
}  // namespace reprise::models
