// Shapes of element-wise operators. Most share a kernel that reads the operator's arguments off the
// stack: their results differ in nothing but dtype.
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/result_type.h>

#include <array>

#include "libtorch/meta/shape_functions.h"
#include "libtorch/meta/shape_table.h"

namespace reprise::libtorch {
namespace {

using at::Tensor;
using torch::jit::Stack;

// The tensors among the first arguments of a call, and what is to be written to apart.
struct Elements {
  std::vector<Tensor> read, written;
};

Elements elements_of(const c10::FunctionSchema& schema, const Stack& stack) {
  Elements elements;
  const std::size_t count = schema.arguments().size();
  for (std::size_t i = 0; i < count; ++i) {
    const c10::IValue& value = torch::jit::peek(stack, i, count);
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    (schema.arguments()[i].is_out() ? elements.written : elements.read).push_back(value.toTensor());
  }
  return elements;
}

template <std::optional<at::ScalarType> (*kDtype)(const Elements&)>
void elementwise_boxed(const c10::OperatorHandle& op, Stack* stack) {
  const Elements elements = elements_of(op.schema(), *stack);
  Tensor made = elementwise_result(elements.read, kDtype(elements));
  torch::jit::drop(*stack, op.schema().arguments().size());
  torch::jit::push(*stack, std::move(made));
}

// Of operators that make their result before they look at its strides.
void like_first_boxed(const c10::OperatorHandle& op, Stack* stack) {
  Tensor made = result_like(elements_of(op.schema(), *stack).read.front());
  torch::jit::drop(*stack, op.schema().arguments().size());
  torch::jit::push(*stack, std::move(made));
}

Tensor reversed_difference_shape(const Tensor& x, const Tensor& y, const at::Scalar&) {
  return elementwise_result({y, x});
}

std::optional<at::ScalarType> promoted(const Elements&) { return std::nullopt; }
std::optional<at::ScalarType> of_first(const Elements& elements) {
  return elements.read.front().scalar_type();
}
std::optional<at::ScalarType> boolean(const Elements&) { return at::kBool; }
std::optional<at::ScalarType> of_numbers(const Elements& elements) {
  const Tensor& first = elements.read.front();
  const bool whole = at::isIntegralType(first.scalar_type(), /*includeBool=*/true);
  return whole ? at::typeMetaToScalarType(at::get_default_dtype()) : first.scalar_type();
}

void elementwise_out_boxed(const c10::OperatorHandle& op, Stack* stack) {
  Elements elements = elements_of(op.schema(), *stack);
  torch::jit::drop(*stack, op.schema().arguments().size());
  for (Tensor& out : elements.written) {
    torch::jit::push(*stack, resized_to(out, elementwise_result(elements.read, out.scalar_type())));
  }
}

Tensor where_shape(const Tensor& condition, const Tensor& x, const Tensor& y) {
  return elementwise_result({condition, x, y}, at::result_type(x, y));
}

Tensor& where_out_shape(const Tensor& condition, const Tensor& x, const Tensor& y, Tensor& out) {
  return resized_to(out, where_shape(condition, x, y));
}

std::tuple<Tensor, Tensor> prelu_backward_shape(const Tensor& grad, const Tensor& x,
                                                const Tensor& weight) {
  return {elementwise_result({x, weight, grad}, x.scalar_type()),
          elementwise_result({x, weight, grad}, weight.scalar_type())};
}

// CUDA works out anew what the CPU keeps in the buffer.
std::tuple<Tensor, Tensor> log_sigmoid_shape(const Tensor& x) {
  const bool keeps = shapes_device() == c10::kCPU;
  return {contiguous_result(x, x.sizes()),
          keeps ? contiguous_result(x, x.sizes()) : contiguous_result(x, {0})};
}

Tensor log_sigmoid_backward_shape(const Tensor& grad, const Tensor&, const Tensor&) {
  return result_like(grad);
}

Tensor glu_backward_shape(const Tensor&, const Tensor& x, std::int64_t) {
  return contiguous_result(x, x.sizes());
}

constexpr std::array kPointwise = {
    boxed_shape_function<&elementwise_boxed<&of_first>>("aten::relu"),
    boxed_shape_function<&elementwise_boxed<&of_first>>("aten::hardswish"),
    boxed_shape_function<&elementwise_out_boxed>("aten::hardswish.out"),
    boxed_shape_function<&elementwise_boxed<&of_first>>("aten::hardswish_backward"),
    boxed_shape_function<&like_first_boxed>("aten::hardtanh"),
    boxed_shape_function<&elementwise_out_boxed>("aten::hardtanh.out"),
    boxed_shape_function<&elementwise_boxed<&of_first>>("aten::hardtanh_backward"),
    boxed_shape_function<&elementwise_boxed<&of_numbers>>("aten::logit"),
    boxed_shape_function<&elementwise_out_boxed>("aten::logit.out"),
    boxed_shape_function<&elementwise_boxed<&boolean>>("aten::isnan"),
    boxed_shape_function<&elementwise_boxed<&promoted>>("aten::floor_divide"),
    boxed_shape_function<&elementwise_out_boxed>("aten::floor_divide.out"),
    shape_function<&reversed_difference_shape>("aten::rsub.Tensor"),
    boxed_shape_function<&elementwise_boxed<&promoted>>("aten::__lshift__.Tensor"),
    boxed_shape_function<&elementwise_boxed<&promoted>>("aten::__rshift__.Tensor"),
    boxed_shape_function<&elementwise_out_boxed>("aten::abs.out"),
    boxed_shape_function<&elementwise_out_boxed>("aten::angle.out"),
    boxed_shape_function<&elementwise_out_boxed>("aten::complex.out"),
    boxed_shape_function<&elementwise_out_boxed>("aten::conj_physical.out"),
    boxed_shape_function<&elementwise_out_boxed>("aten::logical_and.out"),
    boxed_shape_function<&elementwise_out_boxed>("aten::logical_not.out"),
    boxed_shape_function<&elementwise_out_boxed>("aten::logical_or.out"),
    boxed_shape_function<&elementwise_out_boxed>("aten::logical_xor.out"),
    boxed_shape_function<&elementwise_out_boxed>("aten::nan_to_num.out"),
    boxed_shape_function<&elementwise_out_boxed>("aten::polar.out"),
    shape_function<&where_shape>("aten::where.self"),
    shape_function<&where_out_shape>("aten::where.self_out"),
    boxed_shape_function<&like_first_boxed>("aten::_prelu_kernel"),
    shape_function<&prelu_backward_shape>("aten::_prelu_kernel_backward"),
    shape_function<&log_sigmoid_shape>("aten::log_sigmoid_forward"),
    shape_function<&log_sigmoid_backward_shape>("aten::log_sigmoid_backward"),
    shape_function<&glu_backward_shape>("aten::glu_backward"),
};

}  // namespace

ShapeGroup pointwise_shapes() { return kPointwise; }

}  // namespace reprise::libtorch
