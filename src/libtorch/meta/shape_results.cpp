// How shape functions make results, each way once.
#include <ATen/TensorIterator.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "libtorch/meta/shape_functions.h"
#include "libtorch/meta/shape_table.h"

namespace reprise::libtorch {

at::Tensor result_like(const at::Tensor& like, std::optional<at::ScalarType> dtype) {
  return at::empty_like(like, like.options().dtype(dtype.value_or(like.scalar_type())));
}

at::Tensor contiguous_result(const at::Tensor& like, at::IntArrayRef sizes,
                             std::optional<at::ScalarType> dtype) {
  return at::empty(sizes, like.options().dtype(dtype.value_or(like.scalar_type())));
}

at::Tensor formatted_result(const at::Tensor& like, at::IntArrayRef sizes,
                            std::optional<at::ScalarType> dtype) {
  return at::empty(sizes, like.options().dtype(dtype.value_or(like.scalar_type())),
                   like.suggest_memory_format());
}

at::Tensor elementwise_result(at::TensorList inputs, std::optional<at::ScalarType> dtype) {
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(false)
      .allow_cpu_scalars(true)
      .check_all_same_dtype(false)
      .add_owned_output(at::Tensor());
  for (const at::Tensor& input : inputs) config.add_owned_const_input(input);
  if (dtype) {
    config.declare_static_dtype_and_device(*dtype, c10::kMeta);
  } else {
    config.promote_inputs_to_common_dtype(true).declare_static_device(c10::kMeta);
  }
  return config.build().output();
}

at::Tensor& resized_to(at::Tensor& out, const at::Tensor& made) {
  if (out.sizes() != made.sizes()) {
    out.resize_(made.sizes());
    // An `out` without elements is the operator's own: what made it lets it have any strides.
    if (out.strides() != made.strides()) out.as_strided_(made.sizes(), made.strides());
  }
  return out;
}

at::ScalarType sum_dtype(at::ScalarType dtype) {
  return dtype == at::kHalf || dtype == at::kBFloat16 ? at::kFloat : dtype;
}

}  // namespace reprise::libtorch
