// Operators that change tensors in place and make none: fused optimizers, and what mixed-precision
// training checks gradients with.
#include <ATen/core/stack.h>

#include <array>

#include "libtorch/meta/shape_table.h"

namespace reprise::libtorch {
namespace {

void nothing_made(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  torch::jit::drop(*stack, op.schema().arguments().size());
}

constexpr std::array kOptimizer = {
    boxed_shape_function<&nothing_made>("aten::_fused_adagrad_"),
    boxed_shape_function<&nothing_made>("aten::_fused_adagrad_.tensor_lr"),
    boxed_shape_function<&nothing_made>("aten::_fused_adam_"),
    boxed_shape_function<&nothing_made>("aten::_fused_adam_.tensor_lr"),
    boxed_shape_function<&nothing_made>("aten::_fused_adamw_"),
    boxed_shape_function<&nothing_made>("aten::_fused_adamw_.tensor_lr"),
    boxed_shape_function<&nothing_made>("aten::_fused_sgd_"),
    boxed_shape_function<&nothing_made>("aten::_fused_sgd_.tensor_lr"),
    boxed_shape_function<&nothing_made>("aten::_amp_foreach_non_finite_check_and_unscale_"),
};

}  // namespace

ShapeGroup optimizer_shapes() { return kOptimizer; }

}  // namespace reprise::libtorch
