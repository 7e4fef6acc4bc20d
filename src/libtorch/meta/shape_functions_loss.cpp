// Shapes of losses.
#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>

#include <array>

#include "libtorch/meta/shape_functions.h"
#include "libtorch/meta/shape_table.h"

namespace reprise::libtorch {
namespace {

using at::Tensor;

// One number, or one of each element.
Tensor reduced_loss(const Tensor& elementwise, std::int64_t reduction) {
  return reduction == at::Reduction::None ? elementwise : contiguous_result(elementwise, {});
}

Tensor huber_shape(const Tensor& x, const Tensor& target, std::int64_t reduction, double) {
  const bool same = x.sizes() == target.sizes() && x.scalar_type() == target.scalar_type();
  return reduced_loss(same ? result_like(x) : elementwise_result({x, target}), reduction);
}

Tensor& huber_backward_shape(const Tensor& grad, const Tensor& x, const Tensor& target,
                             std::int64_t, double, Tensor& out) {
  return resized_to(out, elementwise_result({x, target, grad}, out.scalar_type()));
}

Tensor& smooth_l1_backward_shape(const Tensor& grad, const Tensor& x, const Tensor& target,
                                 std::int64_t, double, Tensor& out) {
  return resized_to(out, elementwise_result({x, target, grad}, out.scalar_type()));
}

Tensor mse_backward_shape(const Tensor&, const Tensor& x, const Tensor&, std::int64_t) {
  return at::empty_like(x, at::MemoryFormat::Contiguous);
}

Tensor cross_entropy_of_two_shape(const Tensor& x, const Tensor& target, const OptionalTensor&,
                                  std::int64_t reduction) {
  check_sizes("binary_cross_entropy", "target", target, x.sizes());
  // What held each element's part stays the memory of the sum.
  Tensor loss = result_like(x);
  if (reduction != at::Reduction::None) loss.resize_({});
  return loss;
}

Tensor cross_entropy_of_two_backward_shape(const Tensor&, const Tensor& x, const Tensor&,
                                           const OptionalTensor&, std::int64_t) {
  return result_like(x);
}

std::tuple<Tensor, Tensor> nll_loss2d_shape(const Tensor& x, const Tensor& target,
                                            const OptionalTensor&, std::int64_t reduction,
                                            std::int64_t) {
  check_dims("nll_loss2d", x, 4, 4);
  check_sizes("nll_loss2d", "target", target, {x.size(0), x.size(2), x.size(3)});
  const bool each = reduction == at::Reduction::None;
  return {each ? contiguous_result(x, {x.size(0), x.size(2), x.size(3)}) : contiguous_result(x, {}),
          contiguous_result(x, {})};
}

Tensor nll_loss2d_backward_shape(const Tensor&, const Tensor& x, const Tensor&,
                                 const OptionalTensor&, std::int64_t, std::int64_t, const Tensor&) {
  return at::empty_like(x, at::MemoryFormat::Contiguous);
}

Tensor multi_margin_shape(const Tensor& x, const Tensor&, const at::Scalar&, const at::Scalar&,
                          const OptionalTensor&, std::int64_t reduction) {
  const bool each = reduction == at::Reduction::None && x.dim() == 2;
  return each ? contiguous_result(x, {x.size(0)}) : contiguous_result(x, {});
}

Tensor multi_margin_backward_shape(const Tensor&, const Tensor& x, const Tensor&, const at::Scalar&,
                                   const at::Scalar&, const OptionalTensor&, std::int64_t) {
  return contiguous_result(x, x.sizes());
}

std::tuple<Tensor, Tensor> multilabel_margin_shape(const Tensor& x, const Tensor& target,
                                                   std::int64_t reduction) {
  const bool each = reduction == at::Reduction::None && x.dim() == 2;
  return {each ? contiguous_result(x, {x.size(0)}) : contiguous_result(x, {}),
          contiguous_result(x, target.sizes())};
}

Tensor multilabel_margin_backward_shape(const Tensor&, const Tensor& x, const Tensor&, std::int64_t,
                                        const Tensor&) {
  return contiguous_result(x, x.sizes());
}

constexpr std::array kLoss = {
    shape_function<&huber_shape>("aten::huber_loss"),
    shape_function<&huber_backward_shape>("aten::huber_loss_backward.out"),
    shape_function<&smooth_l1_backward_shape>("aten::smooth_l1_loss_backward.grad_input"),
    shape_function<&mse_backward_shape>("aten::mse_loss_backward"),
    shape_function<&cross_entropy_of_two_shape>("aten::binary_cross_entropy"),
    shape_function<&cross_entropy_of_two_backward_shape>("aten::binary_cross_entropy_backward"),
    shape_function<&nll_loss2d_shape>("aten::nll_loss2d_forward"),
    shape_function<&nll_loss2d_backward_shape>("aten::nll_loss2d_backward"),
    shape_function<&multi_margin_shape>("aten::multi_margin_loss"),
    shape_function<&multi_margin_backward_shape>("aten::multi_margin_loss_backward"),
    shape_function<&multilabel_margin_shape>("aten::multilabel_margin_loss_forward"),
    shape_function<&multilabel_margin_backward_shape>("aten::multilabel_margin_loss_backward"),
};

}  // namespace

ShapeGroup loss_shapes() { return kLoss; }

}  // namespace reprise::libtorch
