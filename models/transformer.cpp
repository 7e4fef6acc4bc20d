// The block of transformer.h. Attention scales q before the product rather than the scores after
// it: the same result for a time-th of the work, and one temporary of the size of the scores less.
#include "models/transformer.h"

#include <ATen/ops/dropout.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <reprise/error.h>

#include <cmath>
#include <limits>
#include <string>

namespace reprise::models {

namespace {

constexpr std::int64_t kMlpFactor = 4;

// Beyond any model, and small enough that products of two sizes stay within 64 bits.
constexpr std::int64_t kLargestSize = std::int64_t{1} << 20;

torch::nn::LayerNormOptions norm_of(const TransformerOptions& options) {
  return torch::nn::LayerNormOptions({options.width}).eps(options.norm_epsilon);
}

}  // namespace

void check_size(const char* name, std::int64_t value) {
  if (value < 1) throw UsageError(fmt::format("{} is {}; it must be at least 1", name, value));
  if (value > kLargestSize) {
    throw UsageError(fmt::format("{} is {}; it must be at most {}", name, value, kLargestSize));
  }
}

void check_length(std::int64_t time, std::int64_t context) {
  if (time <= context) return;
  throw UsageError(fmt::format(
      "a sequence of {} tokens is longer than the model's context of {}; cut it, or build the "
      "model with a longer context",
      time, context));
}

void check(const TransformerOptions& options) {
  check_size("width", options.width);
  check_size("heads", options.heads);
  if (options.width % options.heads != 0) {
    throw UsageError(fmt::format(
        "{} heads do not divide width {}; choose a width that is a multiple of heads, such as {}",
        options.heads, options.width, (options.width / options.heads + 1) * options.heads));
  }
  if (!(options.dropout >= 0 && options.dropout < 1)) {
    throw UsageError(
        fmt::format("dropout is {}; it must be at least 0 and below 1", options.dropout));
  }
  if (!(options.norm_epsilon > 0 && options.norm_epsilon < 1)) {
    throw UsageError(
        fmt::format("norm_epsilon is {}; it must be above 0 and below 1", options.norm_epsilon));
  }
}

TransformerBlockImpl::TransformerBlockImpl(const TransformerOptions& options)
    : options_((check(options), options)),
      attention_norm_(norm_of(options)),
      mlp_norm_(norm_of(options)),
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

at::Tensor TransformerBlockImpl::forward(const at::Tensor& x) {
  if (options_.norm == NormPlace::kPost) {
    const at::Tensor attended = attention_norm_(x + attention_branch(x));
    return mlp_norm_(attended + mlp_branch(attended));
  }
  const at::Tensor attended = x + attention_branch(attention_norm_(x));
  return attended + mlp_branch(mlp_norm_(attended));
}

at::Tensor TransformerBlockImpl::attention_branch(const at::Tensor& x) {
  return drop(attention_out_(attend(x)));
}

at::Tensor TransformerBlockImpl::mlp_branch(const at::Tensor& x) {
  return drop(mlp_out_(at::gelu(mlp_in_(x), options_.gelu == Gelu::kTanh ? "tanh" : "none")));
}

at::Tensor TransformerBlockImpl::attend(const at::Tensor& x) {
  const auto batch = x.size(0), time = x.size(1), width = x.size(2), heads = options_.heads;
  const auto parts = qkv_(x).view({batch, time, 3, heads, width / heads}).permute({2, 0, 3, 1, 4});
  const auto q = parts.select(0, 0), k = parts.select(0, 1), v = parts.select(0, 2);
  const auto mixed =
      options_.fused_attention ? fused_attention(q, k, v) : unfused_attention(q, k, v);
  return mixed.transpose(1, 2).reshape({batch, time, width});
}

at::Tensor TransformerBlockImpl::fused_attention(const at::Tensor& q, const at::Tensor& k,
                                                 const at::Tensor& v) {
  return at::scaled_dot_product_attention(q, k, v, /*attn_mask=*/std::nullopt,
                                          is_training() ? options_.dropout : 0.0, options_.causal);
}

at::Tensor TransformerBlockImpl::unfused_attention(const at::Tensor& q, const at::Tensor& k,
                                                   const at::Tensor& v) {
  const auto time = q.size(2);
  const double scale = 1.0 / std::sqrt(static_cast<double>(q.size(3)));
  auto scores = at::matmul(q * scale, k.transpose(2, 3));
  if (options_.causal) {
    const auto future = at::ones({time, time}, q.options().dtype(at::kBool)).triu_(1);
    scores.masked_fill_(future, -std::numeric_limits<double>::infinity());
  }
  return at::matmul(drop(at::softmax(scores, -1)), v);
}

at::Tensor TransformerBlockImpl::drop(const at::Tensor& x) const {
  return at::dropout(x, options_.dropout, is_training());
}

void draw_weights(torch::nn::Module& model, double branch_deviation) {
  c10::NoGradGuard no_grad;
  for (const auto& entry : model.named_parameters()) {
    const std::string& name = entry.key();
    const at::Tensor& parameter = entry.value();
    const bool writes_to_stream = name.ends_with("_out.weight");
    if (name.ends_with("bias")) {
      parameter.zero_();
    } else if (parameter.dim() > 1) {
      parameter.normal_(0.0, writes_to_stream ? branch_deviation : kInitialDeviation);
    }
  }
}

std::int64_t parameter_count(const torch::nn::Module& module) {
  std::int64_t count = 0;
  for (const auto& parameter : module.parameters()) count += parameter.numel();
  return count;
}

}  // namespace reprise::models
