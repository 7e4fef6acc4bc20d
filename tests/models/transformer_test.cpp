// The block that the models share: the parts of each model run as regions with the gradients of the
// plain step, whatever the block's options, and the parameters keep the names that checkpoints of
// training runs go by.
#include "models/transformer.h"
#include "tests/refusal.h"

#include <gmock/gmock.h>
#include <reprise/checkpoint.h>
#include <reprise/estimate.h>

#include <string>
#include <vector>

#include "models/bert.h"
#include "models/gpt.h"
#include "models/strategy.h"
#include "models/vit.h"

namespace reprise::models {
namespace {

using testing::HasSubstr;

// A model's parameters, its blocks as layers, and what surrounds them.
struct Parts {
  std::shared_ptr<torch::nn::Module> module;
  Layers blocks;
  std::function<at::Tensor()> embed;
  std::function<at::Tensor(const at::Tensor&)> loss;
};

template <class Model>
Parts parts_of(const Model& model) {
  Parts parts{.module = model.ptr(), .blocks = {}, .embed = {}, .loss = {}};
  for (const TransformerBlock& block : model->blocks()) {
    parts.blocks.push_back(
        [block = block.ptr()](const at::Tensor& x) { return block->forward(x); });
  }
  return parts;
}

Parts make_gpt(bool fused) {
  Gpt model(
      GptOptions{.layers = 4, .width = 32, .heads = 4, .context = 16, .fused_attention = fused});
  const auto tokens = torch::randint(256, {2, 16}, at::kLong);
  Parts parts = parts_of(model);
  parts.embed = [=]() mutable { return model->embed(tokens); };
  parts.loss = [=](const at::Tensor& x) mutable {
    return next_token_loss(model->head(x), tokens.roll(-1, 1));
  };
  return parts;
}

Parts make_bert(bool fused) {
  Bert model(BertOptions{.layers = 4,
                         .width = 32,
                         .heads = 4,
                         .context = 16,
                         .vocabulary = 256,
                         .fused_attention = fused});
  const auto tokens = torch::randint(256, {2, 16}, at::kLong);
  Parts parts = parts_of(model);
  parts.embed = [=]() mutable { return model->embed(tokens); };
  parts.loss = [=](const at::Tensor& x) mutable { return model->head_loss(x, tokens); };
  return parts;
}

Parts make_vit(bool fused) {
  Vit model(VitOptions{
      .layers = 4, .width = 32, .heads = 4, .image = 8, .patch = 2, .fused_attention = fused});
  const auto images = torch::randn({2, 1, 8, 8});
  Parts parts = parts_of(model);
  parts.embed = [=]() mutable { return model->embed(images); };
  parts.loss = [=](const at::Tensor& x) mutable {
    return at::cross_entropy_loss(model->head(x), torch::arange(2));
  };
  return parts;
}

struct PartsCase {
  const char* name;
  Parts (*make)(bool fused);
  bool fused;
};

std::vector<at::Tensor> gradients_of(const PartsCase& test, const std::string& strategy) {
  torch::manual_seed(21);
  const Parts parts = test.make(test.fused);
  parts.loss(Strategy::parse(strategy).run(parts.blocks, parts.embed())).backward();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parts.module->parameters()) {
    gradients.push_back(parameter.grad());
  }
  gradients.push_back(at::rand({4}));  // the random state that the step leaves
  return gradients;
}

class ModelsInRegions : public testing::TestWithParam<PartsCase> {};

TEST_P(ModelsInRegions, HaveTheGradientsOfThePlainStep) {
  const auto expected = gradients_of(GetParam(), "none");
  for (const char* strategy : {"every-block", "segments:2", "from-input"}) {
    const auto found = gradients_of(GetParam(), strategy);
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_TRUE(expected[i].defined()) << i;
      EXPECT_TRUE(torch::equal(expected[i].view(at::kInt), found[i].view(at::kInt)))
          << strategy << ", parameter " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, ModelsInRegions,
    testing::Values(PartsCase{"gpt", make_gpt, false}, PartsCase{"gpt_fused", make_gpt, true},
                    PartsCase{"bert", make_bert, false}, PartsCase{"bert_fused", make_bert, true},
                    PartsCase{"vit", make_vit, false}, PartsCase{"vit_fused", make_vit, true}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(TransformerBlock, NamesItsParametersAsCheckpointsOfTrainingRunsDo) {
  std::vector<std::string> names;
  for (const auto& entry : Gpt(GptOptions{.layers = 1})->named_parameters()) {
    names.push_back(entry.key());
  }
  EXPECT_THAT(
      names,
      testing::ElementsAre(
          "token_embedding.weight", "position_embedding.weight", "block0.attention_norm.weight",
          "block0.attention_norm.bias", "block0.qkv.weight", "block0.qkv.bias",
          "block0.attention_out.weight", "block0.attention_out.bias", "block0.mlp_norm.weight",
          "block0.mlp_norm.bias", "block0.mlp_in.weight", "block0.mlp_in.bias",
          "block0.mlp_out.weight", "block0.mlp_out.bias", "final_norm.weight", "final_norm.bias"));
}

TEST(TransformerBlock, ThePublishedNumberOfParametersOfGpt2Medium) {
  const MetaTensorsScope unallocated;
  EXPECT_EQ(parameter_count(*Gpt(gpt2_medium())), 354'823'168);
}

TEST(TransformerBlock, FormsOfGeluDiffer) {
  const auto x = torch::randn({1, 4, 32});
  TransformerOptions options{.width = 32, .heads = 4, .dropout = 0};
  torch::manual_seed(1);
  TransformerBlock approximate(options);
  options.gelu = Gelu::kExact;
  torch::manual_seed(1);
  TransformerBlock exact(options);
  EXPECT_FALSE(torch::equal(approximate(x), exact(x)));
  EXPECT_TRUE(torch::allclose(approximate(x), exact(x), 1e-2, 1e-3));
}

TEST(TransformerBlock, RefusesANormWithoutAnEpsilon) {
  EXPECT_THAT(refusal_of([] { TransformerBlock block(TransformerOptions{.norm_epsilon = 0}); }),
              HasSubstr("norm_epsilon is 0; it must be above 0 and below 1"));
}

}  // namespace
}  // namespace reprise::models
