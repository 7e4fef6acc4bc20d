#include "estimate/kernel_copies.h"

#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/result_type_native.h>

namespace reprise::estimate {

namespace {

std::int64_t size_of_copy(const at::Tensor& tensor) {
  return static_cast<std::int64_t>(tensor.nbytes());
}

std::int64_t contiguous_copy(const at::Tensor& tensor) {
  return tensor.is_contiguous() ? 0 : size_of_copy(tensor);
}

// Of numbers without dimensions there is next to nothing.
std::int64_t casts(Values arguments, at::ScalarType to) {
  std::int64_t bytes = 0;
  for (const c10::IValue& each : arguments) {
    if (!each.isTensor()) continue;
    const at::Tensor& tensor = each.toTensor();
    if (!tensor.defined() || tensor.dim() == 0 || tensor.scalar_type() == to) continue;
    bytes += tensor.numel() * static_cast<std::int64_t>(c10::elementSize(to));
  }
  return bytes;
}

}  // namespace

std::int64_t cast_to_result(Values arguments, Values results) {
  return casts(arguments, results[0].toTensor().scalar_type());
}

std::int64_t cast_to_common(Values arguments, Values) {
  if (!arguments[1].isTensor()) return 0;
  return casts(arguments,
               at::native::result_type(arguments[0].toTensor(), arguments[1].toTensor()));
}

std::int64_t first_contiguous(Values arguments, Values) {
  return contiguous_copy(arguments[0].toTensor());
}

std::int64_t first_two_contiguous(Values arguments, Values results) {
  return first_contiguous(arguments, results) + contiguous_copy(arguments[1].toTensor());
}

std::int64_t sorted_values(Values arguments, Values) {
  const at::Tensor& values = arguments[0].toTensor();
  return size_of_copy(values) + values.numel() * static_cast<std::int64_t>(sizeof(std::int64_t));
}

// Before it is reduced.
std::int64_t soft_margin(Values arguments, Values) {
  const bool is_reduced = arguments[2].toInt() != at::Reduction::None;
  return is_reduced ? size_of_copy(arguments[0].toTensor()) : 0;
}

// exp(-target * input), from the inside out, before the result is there.
std::int64_t soft_margin_backward(Values arguments, Values) {
  return 2 * size_of_copy(arguments[1].toTensor());
}

}  // namespace reprise::estimate
