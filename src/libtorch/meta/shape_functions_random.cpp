// Shapes of dropout and of drawn tensors. On meta nothing is drawn: generators stay as they are.
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/dropout_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/native_dropout.h>

#include <array>
#include <tuple>

#include "libtorch/meta/shape_functions.h"
#include "libtorch/meta/shape_table.h"

namespace reprise::libtorch {
namespace {

using at::Tensor;

std::tuple<Tensor, Tensor> native_dropout_shape(const Tensor& x, double,
                                                std::optional<bool> train) {
  const Tensor mask = result_like(x, at::kBool);
  return {train.value_or(true) ? elementwise_result({x, mask}, x.scalar_type()) : result_like(x),
          mask};
}

Tensor native_dropout_backward_shape(const Tensor& grad, const Tensor& mask, double) {
  return elementwise_result({grad, mask}, grad.scalar_type());
}

// CUDA has one kernel that makes the result and a mask of booleans; the CPU draws a mask of the
// input's dtype.
Tensor dropout_choice(const Tensor& x, double p, bool train) {
  const bool fused = shapes_device() == c10::kCUDA && p > 0 && p < 1 && x.numel() > 0;
  if (fused && train) return std::get<0>(at::native_dropout(x, p, train));
  return at::compositeimplicitautograd::dropout(x, p, train);
}

Tensor& bernoulli_shape(const Tensor& x, std::optional<at::Generator>, Tensor& out) {
  return resized_to(out, contiguous_result(x, x.sizes()));
}

Tensor drawn_by_element_shape(const Tensor& x, std::optional<at::Generator>) {
  return contiguous_result(x, x.sizes());
}

Tensor rrelu_shape(const Tensor& x, Tensor&, const at::Scalar&, const at::Scalar&, bool,
                   std::optional<at::Generator>) {
  return contiguous_result(x, x.sizes());
}

Tensor multinomial_shape(const Tensor& weights, std::int64_t draws, bool,
                         std::optional<at::Generator>) {
  check_dims("multinomial", weights, 1, 2);
  TORCH_CHECK(draws > 0, "multinomial: num_samples is ", draws, "; it must be at least 1");
  std::vector<std::int64_t> sizes = weights.sizes().vec();
  sizes.back() = draws;
  return contiguous_result(weights, sizes, at::kLong);
}

Tensor& randperm_shape(std::int64_t count, std::optional<at::Generator>, Tensor& out) {
  out.resize_({count});
  return out;
}

constexpr std::array kRandom = {
    shape_function<&native_dropout_shape>("aten::native_dropout"),
    shape_function<&native_dropout_backward_shape>("aten::native_dropout_backward"),
    shape_function<&bernoulli_shape>("aten::bernoulli.out"),
    shape_function<&drawn_by_element_shape>("aten::poisson"),
    shape_function<&drawn_by_element_shape>("aten::_standard_gamma"),
    shape_function<&rrelu_shape>("aten::rrelu_with_noise"),
    shape_function<&multinomial_shape>("aten::multinomial"),
    shape_function<&randperm_shape>("aten::randperm.generator_out"),
    choice_by_device<&dropout_choice>("aten::dropout"),
};

}  // namespace

ShapeGroup random_shapes() { return kRandom; }

}  // namespace reprise::libtorch
