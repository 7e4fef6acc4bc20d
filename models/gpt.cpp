// The GPT of gpt.h. Attention scales q before the product rather than the scores after it: the same
// result for a context-th of the work, and one temporary of the size of the scores less.
#include "models/gpt.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <reprise/error.h>

#include <cmath>
#include <limits>

namespace reprise::models {

namespace {

constexpr std::int64_t kMlpFactor = 4;
constexpr double kInitialDeviation = 0.02;

// Beyond any model, and small enough that products of two sizes stay within 64 bits.
constexpr std::int64_t kLargestSize = std::int64_t{1} << 20;

void check_size(const char* name, std::int64_t value) {
  if (value < 1) throw UsageError(fmt::format("{} is {}; it must be at least 1", name, value));
  if (value > kLargestSize) {
    throw UsageError(fmt::format("{} is {}; it must be at most {}", name, value, kLargestSize));
  }
}

}  // namespace

void check(const GptOptions& options) {
  check_size("layers", options.layers);
  check_size("width", options.width);
  check_size("heads", options.heads);
  check_size("context", options.context);
  check_size("vocabulary", options.vocabulary);
  if (options.width % options.heads != 0) {
    throw UsageError(fmt::format(
        "{} heads do not divide width {}; choose a width that is a multiple of heads, such as {}",
        options.heads, options.width, (options.width / options.heads + 1) * options.heads));
  }
  if (!(options.dropout >= 0 && options.dropout < 1)) {
    throw UsageError(
        fmt::format("dropout is {}; it must be at least 0 and below 1", options.dropout));
  }
}

GptBlockImpl::GptBlockImpl(const GptOptions& options)
    : heads_(options.heads),
      dropout_(options.dropout),
      fused_(options.fused_attention),
      attention_norm_(torch::nn::LayerNormOptions({options.width})),
      mlp_norm_(torch::nn::LayerNormOptions({options.width})),
      qkv_(options.width, 3 * options.width),
      attention_out_(options.width, options.width),
      mlp_in_(options.width, kMlpFactor * options.width),
      mlp_out_(kMlpFactor * options.width, options.width) {
  register_module("attention_norm", attention_norm_);
  register_module("qkv", qkv_);
  register_module("attention_out", attention_out_);
  register_module("mlp_norm", mlp_norm_);
  register_module("mlp_in", mlp_in_);
  register_module("mlp_out", mlp_out_);
}

at::Tensor GptBlockImpl::forward(const at::Tensor& x) {
  const at::Tensor attended = x + drop(attention_out_(attend(attention_norm_(x))));
  const at::Tensor widened = at::gelu(mlp_in_(mlp_norm_(attended)), "tanh");
  return attended + drop(mlp_out_(widened));
}

at::Tensor GptBlockImpl::attend(const at::Tensor& x) {
  const auto batch = x.size(0), time = x.size(1), width = x.size(2);
  const auto parts =
      qkv_(x).view({batch, time, 3, heads_, width / heads_}).permute({2, 0, 3, 1, 4});
  const auto q = parts.select(0, 0), k = parts.select(0, 1), v = parts.select(0, 2);
  const auto mixed = fused_ ? fused_attention(q, k, v) : unfused_attention(q, k, v);
  return mixed.transpose(1, 2).reshape({batch, time, width});
}

at::Tensor GptBlockImpl::fused_attention(const at::Tensor& q, const at::Tensor& k,
                                         const at::Tensor& v) {
  return at::scaled_dot_product_attention(q, k, v, /*attn_mask=*/std::nullopt,
                                          is_training() ? dropout_ : 0.0, /*is_causal=*/true);
}

at::Tensor GptBlockImpl::unfused_attention(const at::Tensor& q, const at::Tensor& k,
                                           const at::Tensor& v) {
  const auto time = q.size(2);
  const double scale = 1.0 / std::sqrt(static_cast<double>(q.size(3)));
  const auto future = at::ones({time, time}, q.options().dtype(at::kBool)).triu_(1);
  auto scores = at::matmul(q * scale, k.transpose(2, 3));
  scores.masked_fill_(future, -std::numeric_limits<double>::infinity());
  return at::matmul(drop(at::softmax(scores, -1)), v);
}

at::Tensor GptBlockImpl::drop(const at::Tensor& x) const {
  return at::dropout(x, dropout_, is_training());
}

GptImpl::GptImpl(const GptOptions& options)
    : options_((check(options), options)),
      token_embedding_(options.vocabulary, options.width),
      position_embedding_(options.context, options.width),
      final_norm_(torch::nn::LayerNormOptions({options.width})) {
  register_module("token_embedding", token_embedding_);
  register_module("position_embedding", position_embedding_);
  for (std::int64_t layer = 0; layer < options.layers; ++layer) {
    blocks_.push_back(register_module(fmt::format("block{}", layer), GptBlock(options)));
  }
  register_module("final_norm", final_norm_);
  if (!options.tied_head) {
    own_head_ = register_module(
        "head",
        torch::nn::Linear(torch::nn::LinearOptions(options.width, options.vocabulary).bias(false)));
  }
  initialise();
}

// As GPT-2: N(0, 0.02), biases zero, and the matrices that write to the residual stream scaled down
// by the number of times it is written to, so that its variance does not grow with depth.
void GptImpl::initialise() {
  c10::NoGradGuard no_grad;
  const double residual_deviation =
      kInitialDeviation / std::sqrt(2.0 * static_cast<double>(options_.layers));
  for (const auto& entry : named_parameters()) {
    const std::string& name = entry.key();
    const at::Tensor& parameter = entry.value();
    const bool writes_to_stream = name.ends_with("_out.weight");
    if (name.ends_with("bias")) {
      parameter.zero_();
    } else if (parameter.dim() > 1) {
      parameter.normal_(0.0, writes_to_stream ? residual_deviation : kInitialDeviation);
    }
  }
}

at::Tensor GptImpl::embed(const at::Tensor& tokens) {
  const auto time = tokens.size(1);
  if (time > options_.context) {
    throw UsageError(fmt::format(
        "a sequence of {} tokens is longer than the model's context of {}; cut it, or build the "
        "model with a longer context",
        time, options_.context));
  }
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

std::int64_t parameter_count(const torch::nn::Module& module) {
  std::int64_t count = 0;
  for (const auto& parameter : module.parameters()) count += parameter.numel();
  return count;
}

}  // namespace reprise::models
