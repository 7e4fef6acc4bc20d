#include "models/vit.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <reprise/error.h>
#include <torch/nn/init.h>

#include <cmath>

namespace reprise::models {

namespace {

constexpr double kVitEpsilon = 1e-6;

TransformerOptions vit_block_options(const VitOptions& options) {
  return {.width = options.width,
          .heads = options.heads,
          .dropout = options.dropout,
          .causal = false,
          .norm_epsilon = kVitEpsilon,
          .gelu = Gelu::kExact,
          .fused_attention = options.fused_attention};
}

std::int64_t patch_count(const VitOptions& options) {
  const std::int64_t in_a_row = options.image / options.patch;
  return in_a_row * in_a_row;
}

}  // namespace

VitOptions vit_base() {
  return {.layers = 12,
          .width = 768,
          .heads = 12,
          .image = 224,
          .channels = 3,
          .patch = 16,
          .classes = 1000};
}

void check(const VitOptions& options) {
  check_size("layers", options.layers);
  check_size("image", options.image);
  check_size("channels", options.channels);
  check_size("patch", options.patch);
  check_size("classes", options.classes);
  check(vit_block_options(options));
  if (options.image % options.patch != 0) {
    throw UsageError(fmt::format(
        "patch {} does not divide image {}; choose an image that is a multiple of patch, such as "
        "{}",
        options.patch, options.image, (options.image / options.patch + 1) * options.patch));
  }
  if (options.classes == 1) throw UsageError("classes is 1; it must be at least 2");
}

VitImpl::VitImpl(const VitOptions& options)
    : options_((check(options), options)),
      patches_(torch::nn::Conv2dOptions(options.channels, options.width, options.patch)
                   .stride(options.patch)),
      final_norm_(torch::nn::LayerNormOptions({options.width}).eps(kVitEpsilon)),
      head_(options.width, options.classes) {
  register_module("patches", patches_);
  class_token_ = register_parameter("class_token", at::empty({1, 1, options.width}));
  positions_ =
      register_parameter("positions", at::empty({1, 1 + patch_count(options), options.width}));
  for (std::int64_t layer = 0; layer < options.layers; ++layer) {
    blocks_.push_back(register_module(fmt::format("block{}", layer),
                                      TransformerBlock(vit_block_options(options))));
  }
  register_module("final_norm", final_norm_);
  register_module("head", head_);
  initialise();
}

void VitImpl::initialise() {
  c10::NoGradGuard no_grad;
  for (const auto& entry : named_parameters()) {
    if (entry.key().ends_with("bias")) {
      entry.value().zero_();
    } else if (entry.value().dim() == 2) {
      torch::nn::init::xavier_uniform_(entry.value());
    }
  }
  const auto inputs = static_cast<double>(options_.channels * options_.patch * options_.patch);
  patches_->weight.normal_(0.0, 1.0 / std::sqrt(inputs));
  class_token_.zero_();
  positions_.normal_(0.0, kInitialDeviation);
}

at::Tensor VitImpl::embed(const at::Tensor& images) {
  if (images.dim() != 4 || images.size(1) != options_.channels ||
      images.size(2) != options_.image || images.size(3) != options_.image) {
    throw UsageError(fmt::format(
        "images of shape [{}] do not fit the model's [batch, {}, {}, {}]; resize them, or build "
        "the model for them",
        fmt::join(images.sizes(), ", "), options_.channels, options_.image, options_.image));
  }
  const auto vectors = patches_(images).flatten(2).transpose(1, 2);
  const auto first = class_token_.expand({images.size(0), 1, options_.width});
  return at::dropout(at::cat({first, vectors}, 1) + positions_, options_.dropout, is_training());
}

at::Tensor VitImpl::head(const at::Tensor& x) { return head_(final_norm_(x.select(1, 0))); }

at::Tensor VitImpl::forward(const at::Tensor& images) {
  auto x = embed(images);
  for (const TransformerBlock& block : blocks_) x = block.ptr()->forward(x);
  return head(x);
}

}  // namespace reprise::models
