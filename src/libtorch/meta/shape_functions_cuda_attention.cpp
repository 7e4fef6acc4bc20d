// Shapes of the fused attentions that only CUDA has, and the choice between them as LibTorch makes
// it by default: flash, then memory-efficient, then plain matrix products. cuDNN's, which recent
// devices may take instead of flash, saves the same sizes. No CPU kernel is there to compare with:
// shapes are those that LibTorch's own description of the operators for torch.compile documents.
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/pad.h>
#include <c10/core/GradMode.h>

#include <array>
#include <cmath>
#include <tuple>

#include "core/rounding.h"
#include "libtorch/meta/shape_functions.h"
#include "libtorch/meta/shape_table.h"

namespace reprise::libtorch {
namespace {

using at::Tensor;
using OptionalBias = OptionalTensor;

constexpr std::int64_t kFlashAlignment = 8;
constexpr std::int64_t kLargestFlashHead = 256;
// Rows of the efficient kernel's statistics come in blocks.
constexpr std::int64_t kEfficientRows = 32;
constexpr std::int64_t kBiasAlignment = 16;
constexpr std::int64_t kVectorBytes = 16;

using Flash =
    std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;

Flash flash_shape(const Tensor& q, const Tensor& k, const Tensor&, double, bool, bool,
                  std::optional<double>) {
  return {result_like(q),
          contiguous_result(q, {q.size(0), q.size(1), q.size(2)}, at::kFloat),
          Tensor(),
          Tensor(),
          q.size(2),
          k.size(2),
          contiguous_result(q, {2}, at::kUInt64),
          contiguous_result(q, {}, at::kUInt64),
          contiguous_result(q, {0})};
}

ThreeTensors flash_backward_shape(const Tensor&, const Tensor& q, const Tensor& k, const Tensor& v,
                                  const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                  c10::SymInt, c10::SymInt, double, bool, const Tensor&,
                                  const Tensor&, std::optional<double>) {
  return {result_like(q), result_like(k), result_like(v)};
}

Tensor heads_inward(const Tensor& like, std::int64_t rows, std::int64_t width) {
  return contiguous_result(like, {like.size(0), rows, like.size(1), width}).transpose(1, 2);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_shape(const Tensor& q, const Tensor&,
                                                           const Tensor& v, const OptionalBias&,
                                                           bool with_statistics, double, bool,
                                                           std::optional<double>) {
  const std::int64_t rows = with_statistics ? rounded_up(q.size(2), kEfficientRows) : 0;
  return {heads_inward(q, q.size(2), v.size(3)),
          contiguous_result(q, {q.size(0), q.size(1), rows}, at::kFloat),
          contiguous_result(q, {}, at::kLong), contiguous_result(q, {}, at::kLong)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_backward_shape(
    const Tensor&, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& bias,
    const Tensor&, const Tensor&, const Tensor&, const Tensor&, double, std::array<bool, 4> wanted,
    bool, std::optional<double>) {
  Tensor of_bias;
  if (bias.defined() && wanted[3]) {
    std::vector<std::int64_t> sizes = bias.sizes().vec();
    sizes.back() = rounded_up(sizes.back(), kBiasAlignment);
    of_bias = contiguous_result(bias, sizes).narrow(-1, 0, bias.size(-1));
  }
  return {heads_inward(q, q.size(2), q.size(3)), heads_inward(k, k.size(2), k.size(3)),
          heads_inward(v, v.size(2), v.size(3)), of_bias};
}

// --- the choice

bool are_batches_of_heads(const Tensor& q, const Tensor& k, const Tensor& v) {
  const auto is_plain = [](const Tensor& x) {
    return x.dim() == 4 && x.numel() > 0 && x.stride(3) == 1;
  };
  return is_plain(q) && is_plain(k) && is_plain(v) && q.size(0) == k.size(0) &&
         q.size(0) == v.size(0);
}

bool is_half(const Tensor& x) {
  return x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16;
}

bool takes_flash(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalBias& mask,
                 bool causal, bool grouped) {
  const bool same_heads = q.size(1) == k.size(1) && q.size(1) == v.size(1);
  const bool even_groups = k.size(1) == v.size(1) && q.size(1) % k.size(1) == 0;
  return at::globalContext().userEnabledFlashSDP() && is_half(q) && !is_given(mask) &&
         (grouped ? even_groups : same_heads) && q.size(3) == k.size(3) && q.size(3) == v.size(3) &&
         q.size(3) <= kLargestFlashHead && (!causal || q.size(2) == k.size(2));
}

bool takes_efficient(const Tensor& q, const Tensor& k, const Tensor& v, bool grouped) {
  const std::int64_t alignment = kVectorBytes / static_cast<std::int64_t>(q.element_size());
  return at::globalContext().userEnabledMemEfficientSDP() &&
         (is_half(q) || q.scalar_type() == at::kFloat) && !grouped && q.size(1) == k.size(1) &&
         q.size(1) == v.size(1) && q.size(3) == k.size(3) && q.size(3) % alignment == 0 &&
         v.size(3) % alignment == 0;
}

Tensor padded_head(const Tensor& x) {
  const std::int64_t width = x.size(3);
  const std::int64_t missing = rounded_up(width, kFlashAlignment) - width;
  return missing == 0 ? x : at::pad(x, {0, missing});
}

// The kernel reads whole vectors of the bias: rows that are none are padded, with a view of them.
OptionalBias expanded_bias(const OptionalBias& mask, const Tensor& q, const Tensor& k) {
  if (!is_given(mask)) return std::nullopt;
  const std::int64_t width = mask->size(-1);
  const std::int64_t missing = rounded_up(width, kBiasAlignment) - width;
  const Tensor padded = missing == 0 ? *mask : at::pad(*mask, {0, missing}).narrow(-1, 0, width);
  return padded.expand({q.size(0), q.size(1), q.size(2), k.size(2)});
}

constexpr std::array kCudaAttention = {
    shape_function<&flash_shape>("aten::_scaled_dot_product_flash_attention"),
    shape_function<&flash_backward_shape>("aten::_scaled_dot_product_flash_attention_backward"),
    shape_function<&efficient_shape>("aten::_scaled_dot_product_efficient_attention"),
    shape_function<&efficient_backward_shape>(
        "aten::_scaled_dot_product_efficient_attention_backward"),
};

}  // namespace

ShapeGroup cuda_attention_shapes() { return kCudaAttention; }

Tensor attention_as_on_cuda(const Tensor& q, const Tensor& k, const Tensor& v,
                            const OptionalBias& mask, double p, bool causal,
                            std::optional<double> scale, bool grouped) {
  const bool may_fuse = are_batches_of_heads(q, k, v);
  if (may_fuse && takes_flash(q, k, v, mask, causal, grouped)) {
    // By the width before padding.
    const double by = scale.value_or(1.0 / std::sqrt(static_cast<double>(q.size(3))));
    const Tensor attended = std::get<0>(
        at::_scaled_dot_product_flash_attention(padded_head(q), padded_head(k), padded_head(v), p,
                                                causal, /*return_debug_mask=*/false, by));
    return attended.size(3) == q.size(3) ? attended : attended.narrow(3, 0, q.size(3));
  }
  if (may_fuse && takes_efficient(q, k, v, grouped)) {
    const bool saves = c10::GradMode::is_enabled() &&
                       (q.requires_grad() || k.requires_grad() || v.requires_grad());
    return std::get<0>(at::_scaled_dot_product_efficient_attention(
        q, k, v, expanded_bias(mask, q, k), saves, p, causal, scale));
  }
  return attention_of_products(q, k, v, mask, p, causal, scale, grouped);
}

}  // namespace reprise::libtorch
