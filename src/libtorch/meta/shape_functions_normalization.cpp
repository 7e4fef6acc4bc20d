// Shapes of the normalizations and their statistics.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_group_norm.h>

#include <algorithm>
#include <array>
#include <tuple>

#include "libtorch/meta/shape_functions.h"
#include "libtorch/meta/shape_table.h"

namespace reprise::libtorch {
namespace {

using at::Tensor;

Tensor contiguous_like(const Tensor& like) {
  return at::empty_like(like, at::MemoryFormat::Contiguous);
}

// The CPU's kernels keep statistics in the parameters' dtype where that is wider than the input's,
// CUDA's always in the dtype that they add up in.
at::ScalarType statistics_dtype(const Tensor& x, const OptionalTensor& weight) {
  if (shapes_device() == c10::kCUDA) return sum_dtype(x.scalar_type());
  return is_given(weight) && weight->scalar_type() != x.scalar_type() ? at::kFloat
                                                                      : x.scalar_type();
}

ThreeTensors layer_norm_shape(const Tensor& x, at::IntArrayRef normalized,
                              const OptionalTensor& weight, const OptionalTensor& bias, double) {
  const auto rank = static_cast<std::size_t>(x.dim());
  TORCH_CHECK(!normalized.empty() && normalized.size() <= rank &&
                  x.sizes().slice(rank - normalized.size()) == normalized,
              "layer_norm: normalized_shape is ", normalized,
              "; it must be the last sizes of the input, ", x.sizes());
  check_sizes("layer_norm", "weight", weight, normalized);
  check_sizes("layer_norm", "bias", bias, normalized);
  std::vector<std::int64_t> sizes = x.sizes().vec();
  std::fill(sizes.end() - static_cast<std::ptrdiff_t>(normalized.size()), sizes.end(), 1);
  const at::ScalarType dtype = statistics_dtype(x, weight);
  return {contiguous_like(x), contiguous_result(x, sizes, dtype),
          contiguous_result(x, sizes, dtype)};
}

ThreeTensors layer_norm_backward_shape(const Tensor&, const Tensor& x, at::IntArrayRef,
                                       const Tensor&, const Tensor&, const OptionalTensor& weight,
                                       const OptionalTensor& bias, std::array<bool, 3> wanted) {
  ThreeTensors grads;
  if (wanted[0]) std::get<0>(grads) = contiguous_like(x);
  if (wanted[1] && is_given(weight)) std::get<1>(grads) = contiguous_like(*weight);
  if (wanted[2] && is_given(bias)) std::get<2>(grads) = contiguous_like(*bias);
  return grads;
}

// --- batch norm

bool has_given(const std::vector<OptionalTensor>& tensors, at::ScalarType dtype) {
  return std::ranges::any_of(tensors, [&](const OptionalTensor& tensor) {
    return is_given(tensor) && tensor->scalar_type() == dtype;
  });
}

at::ScalarType batch_statistics_dtype(const Tensor& x, const std::vector<OptionalTensor>& others) {
  if (shapes_device() == c10::kCUDA) return sum_dtype(x.scalar_type());
  return has_given(others, at::kFloat) ? at::kFloat : x.scalar_type();
}

ThreeTensors batch_norm_shape(const Tensor& x, const OptionalTensor& weight,
                              const OptionalTensor& bias, const OptionalTensor& mean,
                              const OptionalTensor& variance, bool training, double, double) {
  TORCH_CHECK(x.dim() >= 2, "batch_norm: the input's sizes are ", x.sizes(),
              "; there must be at least 2, and the second is the channels");
  check_sizes("batch_norm", "weight", weight, {x.size(1)});
  check_sizes("batch_norm", "bias", bias, {x.size(1)});
  check_sizes("batch_norm", "running_mean", mean, {x.size(1)});
  check_sizes("batch_norm", "running_var", variance, {x.size(1)});
  const at::ScalarType dtype = batch_statistics_dtype(x, {weight, bias, mean, variance});
  const std::int64_t kept = training ? x.size(1) : 0;
  return {formatted_result(x, x.sizes()), contiguous_result(x, {kept}, dtype),
          contiguous_result(x, {kept}, dtype)};
}

ThreeTensors batch_norm_legit_shape(const Tensor& x, const OptionalTensor& weight,
                                    const OptionalTensor& bias, Tensor& mean, Tensor& variance,
                                    bool training, double momentum, double eps) {
  return batch_norm_shape(x, weight, bias, mean, variance, training, momentum, eps);
}

ThreeTensors batch_norm_no_stats_shape(const Tensor& x, const OptionalTensor& weight,
                                       const OptionalTensor& bias, bool training, double momentum,
                                       double eps) {
  return batch_norm_shape(x, weight, bias, {}, {}, training, momentum, eps);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> batch_norm_update_shape(const Tensor& x,
                                                                   const OptionalTensor& weight,
                                                                   const OptionalTensor& bias,
                                                                   Tensor& mean, Tensor& variance,
                                                                   double momentum, double eps) {
  auto [y, kept_mean, kept_deviation] =
      batch_norm_shape(x, weight, bias, mean, variance, true, momentum, eps);
  return {y, kept_mean, kept_deviation, contiguous_result(x, {0}, at::kByte)};
}

ThreeTensors batch_norm_backward_shape(const Tensor&, const Tensor& x, const OptionalTensor& weight,
                                       const OptionalTensor& mean, const OptionalTensor& variance,
                                       const OptionalTensor& kept_mean,
                                       const OptionalTensor& kept_deviation, bool, double,
                                       std::array<bool, 3> wanted) {
  const at::ScalarType dtype =
      is_given(weight) ? weight->scalar_type()
                       : batch_statistics_dtype(x, {mean, variance, kept_mean, kept_deviation});
  ThreeTensors grads;
  if (wanted[0]) std::get<0>(grads) = formatted_result(x, x.sizes());
  if (wanted[1]) std::get<1>(grads) = contiguous_result(x, {x.size(1)}, dtype);
  if (wanted[2]) std::get<2>(grads) = contiguous_result(x, {x.size(1)}, dtype);
  return grads;
}

// --- group norm

Tensor group_norm_choice(const Tensor& x, std::int64_t groups, const OptionalTensor& weight,
                         const OptionalTensor& bias, double eps, bool) {
  TORCH_CHECK(x.dim() >= 2, "group_norm: the input's sizes are ", x.sizes(),
              "; there must be at least 2, and the second is the channels");
  // Channels last stays so only on the CPU.
  const Tensor in_order =
      shapes_device() == c10::kCPU ? x.contiguous(x.suggest_memory_format()) : x.contiguous();
  const auto in_rows = [](const OptionalTensor& tensor) {
    return is_given(tensor) ? OptionalTensor(tensor->contiguous()) : std::nullopt;
  };
  const std::int64_t batch = x.size(0), channels = x.size(1);
  const std::int64_t pixels = c10::multiply_integers(x.sizes().slice(2));
  return std::get<0>(at::native_group_norm(in_order, in_rows(weight), in_rows(bias), batch,
                                           channels, pixels, groups, eps));
}

ThreeTensors group_norm_shape(const Tensor& x, const OptionalTensor& weight,
                              const OptionalTensor& bias, std::int64_t batch, std::int64_t channels,
                              std::int64_t, std::int64_t groups, double) {
  TORCH_CHECK(groups > 0 && channels % groups == 0, "group_norm: num_groups is ", groups,
              "; it must divide the channels, ", channels);
  check_sizes("group_norm", "weight", weight, {channels});
  check_sizes("group_norm", "bias", bias, {channels});
  const at::ScalarType dtype =
      shapes_device() == c10::kCUDA ? x.scalar_type() : statistics_dtype(x, weight);
  return {formatted_result(x, x.sizes()), contiguous_result(x, {batch, groups}, dtype),
          contiguous_result(x, {batch, groups}, dtype)};
}

ThreeTensors group_norm_backward_shape(const Tensor&, const Tensor& x, const Tensor&, const Tensor&,
                                       const OptionalTensor& weight, std::int64_t, std::int64_t,
                                       std::int64_t, std::int64_t, std::array<bool, 3> wanted) {
  ThreeTensors grads;
  if (wanted[0]) std::get<0>(grads) = formatted_result(x, x.sizes());
  if (wanted[1]) std::get<1>(grads) = contiguous_like(*weight);
  if (wanted[2]) std::get<2>(grads) = contiguous_like(*weight);
  return grads;
}

// --- weight norm

std::tuple<Tensor, Tensor> weight_norm_shape(const Tensor& v, const Tensor& g, std::int64_t) {
  return {result_like(v), contiguous_result(g, g.sizes(), sum_dtype(g.scalar_type()))};
}

std::tuple<Tensor, Tensor> weight_norm_backward_shape(const Tensor&, const Tensor& v,
                                                      const Tensor& g, const Tensor&,
                                                      std::int64_t) {
  return {contiguous_like(v), contiguous_like(g)};
}

constexpr std::array kNormalization = {
    shape_function<&layer_norm_shape>("aten::native_layer_norm"),
    shape_function<&layer_norm_backward_shape>("aten::native_layer_norm_backward"),
    shape_function<&batch_norm_shape>("aten::native_batch_norm"),
    shape_function<&batch_norm_legit_shape>("aten::_native_batch_norm_legit"),
    shape_function<&batch_norm_no_stats_shape>("aten::_native_batch_norm_legit.no_stats"),
    shape_function<&batch_norm_update_shape>("aten::_batch_norm_with_update"),
    shape_function<&batch_norm_backward_shape>("aten::native_batch_norm_backward"),
    choice_by_device<&group_norm_choice>("aten::group_norm"),
    shape_function<&group_norm_shape>("aten::native_group_norm"),
    shape_function<&group_norm_backward_shape>("aten::native_group_norm_backward"),
    shape_function<&weight_norm_shape>("aten::_weight_norm_interface"),
    shape_function<&weight_norm_backward_shape>("aten::_weight_norm_interface_backward"),
};

}  // namespace

ShapeGroup normalization_shapes() { return kNormalization; }

}  // namespace reprise::libtorch
