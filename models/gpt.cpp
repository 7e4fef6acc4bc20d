#include "models/gpt.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/linear.h>
#include <fmt/format.h>

#include <cmath>

namespace reprise::models {

GptOptions gpt2_medium() {
  return {.layers = 24, .width = 1024, .heads = 16, .context = 1024, .vocabulary = 50257};
}

TransformerOptions block_options(const GptOptions& options) {
  return {.width = options.width,
          .heads = options.heads,
          .dropout = options.dropout,
          .fused_attention = options.fused_attention};
}

void check(const GptOptions& options) {
  check_size("layers", options.layers);
  check_size("context", options.context);
  check_size("vocabulary", options.vocabulary);
  check(block_options(options));
}

GptImpl::GptImpl(const GptOptions& options)
    : options_((check(options), options)),
      token_embedding_(options.vocabulary, options.width),
      position_embedding_(options.context, options.width),
      final_norm_(torch::nn::LayerNormOptions({options.width})) {
  register_module("token_embedding", token_embedding_);
  register_module("position_embedding", position_embedding_);
  for (std::int64_t layer = 0; layer < options.layers; ++layer) {
    blocks_.push_back(
        register_module(fmt::format("block{}", layer), GptBlock(block_options(options))));
  }
  register_module("final_norm", final_norm_);
  if (!options.tied_head) {
    own_head_ = register_module(
        "head",
        torch::nn::Linear(torch::nn::LinearOptions(options.width, options.vocabulary).bias(false)));
  }
  // As GPT-2: what writes to the residual stream is scaled down by the number of times it is
  // written to, so that its variance does not grow with depth.
  draw_weights(*this, kInitialDeviation / std::sqrt(2.0 * static_cast<double>(options.layers)));
}

at::Tensor GptImpl::embed(const at::Tensor& tokens) {
  const auto time = tokens.size(1);
  check_length(time, options_.context);
  const auto positions = at::arange(time, tokens.options());
  return at::dropout(token_embedding_(tokens) + position_embedding_(positions), options_.dropout,
                     is_training());
}

at::Tensor GptImpl::head(const at::Tensor& x) {
  const auto normed = final_norm_(x);
  return own_head_ ? own_head_(normed) : at::linear(normed, token_embedding_->weight);
}

at::Tensor GptImpl::forward(const at::Tensor& tokens) {
  auto x = embed(tokens);
  for (const GptBlock& block : blocks_) x = block.ptr()->forward(x);
  return head(x);
}

at::Tensor GptImpl::loss(const at::Tensor& tokens, const at::Tensor& targets) {
  return next_token_loss(forward(tokens), targets);
}

at::Tensor next_token_loss(const at::Tensor& logits, const at::Tensor& targets) {
  return at::cross_entropy_loss(logits.flatten(0, 1), targets.flatten());
}

}  // namespace reprise::models
