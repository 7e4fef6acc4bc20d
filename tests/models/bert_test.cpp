// The BERT computes what it should: places that see each other, a loss of masked words alone, the
// published number of parameters, and clear refusals of what cannot be built.
#include "models/bert.h"
#include "tests/refusal.h"

#include <gmock/gmock.h>
#include <reprise/estimate.h>

#include <cmath>

namespace reprise::models {
namespace {

using testing::HasSubstr;

constexpr BertOptions kSmallBert{
    .layers = 2, .width = 32, .heads = 4, .context = 16, .vocabulary = 64};

at::Tensor random_words(std::int64_t batch, std::int64_t time) {
  return torch::randint(kSmallBert.vocabulary, {batch, time}, at::kLong);
}

// Every third word is to be guessed.
at::Tensor third_words(const at::Tensor& words) {
  auto targets = torch::full_like(words, BertImpl::kNotMasked);
  targets.slice(1, 0, std::nullopt, 3).copy_(words.slice(1, 0, std::nullopt, 3));
  return targets;
}

at::Tensor encode(Bert& model, const at::Tensor& words, const at::Tensor& segments = {}) {
  auto x = model->embed(words, segments);
  for (const TransformerBlock& block : model->blocks()) x = block.ptr()->forward(x);
  return x;
}

std::int64_t count_of(const BertOptions& options) {
  const MetaTensorsScope unallocated;
  return parameter_count(*Bert(options));
}

std::string bert_refusal(BertOptions options) {
  return refusal_of([&] { Bert model(options); });
}

TEST(Bert, HasThePublishedNumbersOfParameters) {
  BertOptions options = bert_base();
  EXPECT_EQ(count_of(options), 109'514'298);
  options.classes = 2;
  EXPECT_EQ(count_of(options), 109'483'778);
}

TEST(Bert, AHeadOfItsOwnIsAMatrixMore) {
  BertOptions options = kSmallBert;
  options.tied_head = false;
  EXPECT_EQ(count_of(options), count_of(kSmallBert) + kSmallBert.vocabulary * kSmallBert.width);
  Bert model(options);
  model->forward(random_words(2, 8)).sum().backward();
  EXPECT_TRUE(model->named_parameters()["head.weight"].grad().defined());
}

TEST(Bert, GivesAWordOrAClassForEachPlaceOrText) {
  Bert words(kSmallBert);
  EXPECT_EQ(words->forward(random_words(3, 10)).sizes(), (std::vector<std::int64_t>{3, 10, 64}));
  BertOptions options = kSmallBert;
  options.classes = 5;
  Bert classes(options);
  EXPECT_EQ(classes->forward(random_words(3, 10)).sizes(), (std::vector<std::int64_t>{3, 5}));
}

TEST(Bert, AFreshModelIsAsUnsureAsItCanBe) {
  torch::manual_seed(1);
  Bert model(kSmallBert);
  const auto words = random_words(8, 16);
  EXPECT_NEAR(model->head_loss(encode(model, words), third_words(words)).item<double>(),
              std::log(64.0), 0.05);
}

TEST(Bert, EarlierPlacesSeeLaterOnes) {
  for (const bool fused : {true, false}) {
    torch::manual_seed(2);
    BertOptions options = kSmallBert;
    options.fused_attention = fused;
    Bert model(options);
    model->eval();
    const auto words = random_words(2, 16);
    auto changed = words.clone();
    changed.slice(1, 10).fill_(7);
    const auto before = encode(model, words), after = encode(model, changed);
    EXPECT_FALSE(torch::allclose(before.slice(1, 0, 10), after.slice(1, 0, 10), 1e-4, 1e-5))
        << fused;
  }
}

TEST(Bert, FusedAndUnfusedAttentionComputeTheSame) {
  BertOptions options = kSmallBert;
  options.dropout = 0;
  torch::manual_seed(3);
  Bert unfused(options);
  options.fused_attention = true;
  torch::manual_seed(3);
  Bert fused(options);
  const auto words = random_words(2, 16);
  EXPECT_TRUE(torch::allclose(encode(fused, words), encode(unfused, words), 1e-4, 1e-5));
}

TEST(Bert, BlocksEndWithANorm) {
  torch::manual_seed(4);
  Bert model(kSmallBert);
  const auto x = encode(model, random_words(2, 16));
  EXPECT_TRUE(torch::allclose(x.mean(-1), torch::zeros({2, 16}), 0, 1e-5));
  EXPECT_TRUE(torch::allclose(x.var(-1, /*unbiased=*/false), torch::ones({2, 16}), 1e-3));
}

TEST(Bert, SegmentsAreToldApart) {
  torch::manual_seed(5);
  Bert model(kSmallBert);
  model->eval();
  const auto words = random_words(2, 16);
  const auto first = torch::zeros_like(words);
  auto both = first.clone();
  both.slice(1, 8).fill_(1);
  EXPECT_TRUE(torch::equal(encode(model, words), encode(model, words, first)));
  EXPECT_FALSE(torch::allclose(encode(model, words, both), encode(model, words, first)));
}

TEST(Bert, TheLossIsThatOfMaskedPlacesAlone) {
  torch::manual_seed(6);
  Bert model(kSmallBert);
  model->eval();
  const auto words = random_words(4, 16), targets = third_words(words);
  const auto x = encode(model, words);
  const auto of_all = at::cross_entropy_loss(model->head(x).flatten(0, 1), targets.flatten(), {},
                                             at::Reduction::Mean, BertImpl::kNotMasked);
  EXPECT_TRUE(torch::allclose(model->head_loss(x, targets), of_all));
  EXPECT_THAT(
      refusal_of([&] { model->head_loss(x, torch::full_like(words, BertImpl::kNotMasked)); }),
      HasSubstr("no place of the batch is masked; mask at least one word of it"));
}

TEST(Bert, LearnsWhatIsMasked) {
  torch::manual_seed(7);
  BertOptions options = kSmallBert;
  options.dropout = 0;
  Bert model(options);
  const auto words = torch::arange(16).repeat({4, 1}), targets = third_words(words);
  auto hidden = words.clone();
  hidden.masked_fill_(targets.ne(BertImpl::kNotMasked), 63);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3e-3));
  for (int step = 0; step < 40; ++step) {
    optimizer.zero_grad();
    model->head_loss(encode(model, hidden), targets).backward();
    optimizer.step();
  }
  EXPECT_LT(model->head_loss(encode(model, hidden), targets).item<double>(), 0.5);
}

TEST(Bert, LearnsClasses) {
  torch::manual_seed(8);
  BertOptions options = kSmallBert;
  options.dropout = 0;
  options.classes = 2;
  Bert model(options);
  const auto words = random_words(8, 16), targets = torch::arange(8) % 2;
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3e-3));
  for (int step = 0; step < 40; ++step) {
    optimizer.zero_grad();
    model->head_loss(encode(model, words), targets).backward();
    optimizer.step();
  }
  EXPECT_LT(model->head_loss(encode(model, words), targets).item<double>(), 0.2);
}

TEST(Bert, RefusesWhatCannotBeBuilt) {
  const auto with = [](auto change) {
    BertOptions options = kSmallBert;
    change(options);
    return bert_refusal(options);
  };
  EXPECT_THAT(with([](auto& o) { o.layers = 0; }), HasSubstr("layers is 0"));
  EXPECT_THAT(with([](auto& o) { o.context = 0; }), HasSubstr("context is 0"));
  EXPECT_THAT(with([](auto& o) { o.vocabulary = -1; }), HasSubstr("vocabulary is -1"));
  EXPECT_THAT(with([](auto& o) { o.segments = 0; }), HasSubstr("segments is 0"));
  EXPECT_THAT(with([](auto& o) { o.heads = 5; }), HasSubstr("5 heads do not divide width 32"));
  EXPECT_THAT(with([](auto& o) { o.dropout = 1; }), HasSubstr("dropout is 1"));
  EXPECT_THAT(with([](auto& o) { o.classes = 1; }), HasSubstr("classes is 1; it must be at least "
                                                              "2, or 0 for the head for masked"));
  EXPECT_THAT(with([](auto& o) { o.classes = -2; }), HasSubstr("classes is -2"));
  EXPECT_THAT(refusal_of([] { Bert(kSmallBert)->embed(random_words(1, 17)); }),
              HasSubstr("17 tokens is longer than the model's context of 16"));
}

}  // namespace
}  // namespace reprise::models
