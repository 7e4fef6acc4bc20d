#include "models/bert.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <reprise/error.h>

namespace reprise::models {

namespace {

constexpr double kBertEpsilon = 1e-12;

TransformerOptions bert_block_options(const BertOptions& options) {
  return {.width = options.width,
          .heads = options.heads,
          .dropout = options.dropout,
          .causal = false,
          .norm = NormPlace::kPost,
          .norm_epsilon = kBertEpsilon,
          .gelu = Gelu::kExact,
          .fused_attention = options.fused_attention};
}

torch::nn::LayerNormOptions bert_norm(const BertOptions& options) {
  return torch::nn::LayerNormOptions({options.width}).eps(kBertEpsilon);
}

}  // namespace

BertOptions bert_base() {
  return {.layers = 12, .width = 768, .heads = 12, .context = 512, .vocabulary = 30522};
}

void check(const BertOptions& options) {
  check_size("layers", options.layers);
  check_size("context", options.context);
  check_size("vocabulary", options.vocabulary);
  check_size("segments", options.segments);
  check(bert_block_options(options));
  if (options.classes == 0) return;
  if (options.classes == 1) {
    throw UsageError("classes is 1; it must be at least 2, or 0 for the head for masked words");
  }
  check_size("classes", options.classes);
}

BertImpl::BertImpl(const BertOptions& options)
    : options_((check(options), options)),
      token_embedding_(options.vocabulary, options.width),
      position_embedding_(options.context, options.width),
      segment_embedding_(options.segments, options.width),
      embedding_norm_(bert_norm(options)),
      head_dense_(options.width, options.width) {
  register_module("token_embedding", token_embedding_);
  register_module("position_embedding", position_embedding_);
  register_module("segment_embedding", segment_embedding_);
  register_module("embedding_norm", embedding_norm_);
  for (std::int64_t layer = 0; layer < options.layers; ++layer) {
    blocks_.push_back(register_module(fmt::format("block{}", layer),
                                      TransformerBlock(bert_block_options(options))));
  }
  register_module("head_dense", head_dense_);
  if (options.classes > 0) {
    classifier_ = register_module("classifier", torch::nn::Linear(options.width, options.classes));
  } else {
    head_norm_ = register_module("head_norm", torch::nn::LayerNorm(bert_norm(options)));
    if (!options.tied_head) {
      own_head_ = register_module(
          "head", torch::nn::Linear(
                      torch::nn::LinearOptions(options.width, options.vocabulary).bias(false)));
    }
    vocabulary_bias_ = register_parameter("vocabulary_bias", at::zeros({options.vocabulary}));
  }
  draw_weights(*this);
}

at::Tensor BertImpl::embed(const at::Tensor& tokens, const at::Tensor& segments) {
  const auto time = tokens.size(1);
  check_length(time, options_.context);
  const auto positions = at::arange(time, tokens.options());
  const auto kinds = segments.defined() ? segments : at::zeros_like(tokens);
  const auto sum =
      token_embedding_(tokens) + position_embedding_(positions) + segment_embedding_(kinds);
  return at::dropout(embedding_norm_(sum), options_.dropout, is_training());
}

at::Tensor BertImpl::head(const at::Tensor& x) {
  if (classifier_) {
    const auto pooled = head_dense_(x.select(1, 0)).tanh();
    return classifier_(at::dropout(pooled, options_.dropout, is_training()));
  }
  const auto guessed = head_norm_(at::gelu(head_dense_(x), "none"));
  const at::Tensor& words = own_head_ ? own_head_->weight : token_embedding_->weight;
  return at::linear(guessed, words, vocabulary_bias_);
}

at::Tensor BertImpl::head_loss(const at::Tensor& x, const at::Tensor& targets) {
  if (classifier_) return at::cross_entropy_loss(head(x), targets);
  const auto words = targets.flatten();
  const auto masked = words.ne(kNotMasked).nonzero().flatten();
  if (masked.numel() == 0) {
    throw UsageError("no place of the batch is masked; mask at least one word of it");
  }
  return at::cross_entropy_loss(head(x.flatten(0, 1).index_select(0, masked)),
                                words.index_select(0, masked));
}

at::Tensor BertImpl::forward(const at::Tensor& tokens, const at::Tensor& segments) {
  auto x = embed(tokens, segments);
  for (const TransformerBlock& block : blocks_) x = block.ptr()->forward(x);
  return head(x);
}

}  // namespace reprise::models
