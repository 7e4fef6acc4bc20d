// Shapes of the fused attentions, and which of them scaled_dot_product_attention takes.
#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_sdp_choice_cpu_dispatch.h>
#include <ATen/ops/_safe_softmax.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>

#include <array>
#include <cmath>
#include <limits>
#include <tuple>

#include "libtorch/meta/shape_functions.h"
#include "libtorch/meta/shape_table.h"

namespace reprise::libtorch {
namespace {

using at::Tensor;
using OptionalMask = std::optional<at::Tensor>;

// Of sizes [a, b, c, d], with b and c the other way round in memory.
Tensor heads_inside(const Tensor& like, at::IntArrayRef sizes,
                    std::optional<at::ScalarType> dtype = std::nullopt) {
  std::vector<std::int64_t> in_memory = sizes.vec();
  std::swap(in_memory[1], in_memory[2]);
  return contiguous_result(like, in_memory, dtype).transpose(1, 2);
}

std::tuple<Tensor, Tensor> flash_for_cpu_shape(const Tensor& q, const Tensor& k, const Tensor& v,
                                               double, bool, const OptionalMask&,
                                               std::optional<double>) {
  check_dims("scaled_dot_product_attention", q, 4, 4);
  check_sizes("scaled_dot_product_attention", "value", v, k.sizes());
  TORCH_CHECK(k.dim() == 4 && k.size(3) == q.size(3), "scaled_dot_product_attention: the key's ",
              "sizes are ", k.sizes(), "; the last must be that of the query's, ", q.sizes());
  return {result_like(q),
          heads_inside(q, {q.size(0), q.size(1), q.size(2)}, sum_dtype(q.scalar_type()))};
}

std::tuple<Tensor, Tensor, Tensor> flash_for_cpu_backward_shape(const Tensor&, const Tensor& q,
                                                                const Tensor& k, const Tensor& v,
                                                                const Tensor&, const Tensor&,
                                                                double, bool, const OptionalMask&,
                                                                std::optional<double>) {
  return {heads_inside(q, q.sizes()), heads_inside(k, k.sizes()), heads_inside(v, v.sizes())};
}

// As LibTorch adds a mask of booleans to the scores.
OptionalMask added_mask(const OptionalMask& mask, const Tensor& q) {
  if (!is_given(mask)) return std::nullopt;
  if (mask->scalar_type() != at::kBool) return mask;
  const auto never = at::scalar_tensor(-std::numeric_limits<double>::infinity(), q.options());
  return at::where(*mask, 0.0, never);
}

// The CPU's own choice, which looks at sizes, strides, dtypes and requires_grad only.
Tensor attention_choice(const Tensor& q, const Tensor& k, const Tensor& v,
                        const OptionalMask& given, double p, bool causal,
                        std::optional<double> scale, bool grouped) {
  const OptionalMask mask = is_given(given) ? given : std::nullopt;
  const OptionalMask added = added_mask(mask, q);
  if (shapes_device() == c10::kCUDA) {
    return attention_as_on_cuda(q, k, v, added, p, causal, scale, grouped);
  }
  const auto choice = at::cpu::_fused_sdp_choice(q, k, v, mask, p, causal, scale, grouped);
  if (choice == static_cast<std::int64_t>(at::SDPBackend::flash_attention)) {
    return std::get<0>(
        at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, p, causal, added, scale));
  }
  return attention_of_products(q, k, v, added, p, causal, scale, grouped);
}

constexpr std::array kAttention = {
    shape_function<&flash_for_cpu_shape>("aten::_scaled_dot_product_flash_attention_for_cpu"),
    shape_function<&flash_for_cpu_backward_shape>(
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward"),
    choice_by_device<&attention_choice>("aten::scaled_dot_product_attention"),
};

}  // namespace

ShapeGroup attention_shapes() { return kAttention; }

// The plain products, as LibTorch makes them: its own function adds the mask out of place on meta,
// which takes scores' memory once more.
Tensor attention_of_products(const Tensor& given_q, const Tensor& given_k, const Tensor& given_v,
                             OptionalMask mask, double p, bool causal, std::optional<double> scale,
                             bool grouped) {
  const at::ScalarType dtype = given_q.scalar_type();
  const bool narrow = dtype == at::kHalf || dtype == at::kBFloat16;
  const bool widens = narrow && !at::globalContext().allowFP16BF16ReductionMathSDP();
  const auto wide = [&](const Tensor& x) { return widens ? x.to(at::kFloat) : x; };
  const Tensor q = wide(given_q);
  const double by = scale.value_or(1.0 / std::sqrt(static_cast<double>(q.size(-1))));
  const double factor = std::sqrt(std::abs(by));
  const Tensor scaled_q = q * (by < 0 ? -factor : factor);
  if (causal) {
    const auto lower =
        at::ones({q.size(-2), given_k.size(-2)}, q.options().dtype(at::kBool)).tril();
    mask = added_mask(lower, q);
  }
  Tensor k = wide(given_k), v = wide(given_v);
  if (grouped) {
    k = k.repeat_interleave(q.size(-3) / k.size(-3), -3);
    v = v.repeat_interleave(q.size(-3) / v.size(-3), -3);
  }
  Tensor scores = at::matmul(scaled_q, k.transpose(-2, -1) * factor);
  if (is_given(mask)) scores.add_(wide(*mask));
  scores = at::_safe_softmax(scores, -1);
  if (p > 0) scores = at::dropout(scores, p, true);
  return at::matmul(scores, v).to(dtype);
}

}  // namespace reprise::libtorch
