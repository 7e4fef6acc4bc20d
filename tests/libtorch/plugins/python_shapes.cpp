// The shape functions behind a C interface, for a test in a Python process, which has Meta kernels
// of its own.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/native_layer_norm.h>

#include "libtorch/meta/shape_functions.h"

extern "C" {

void shapes_register() { reprise::libtorch::ensure_shape_functions(); }

// Elements of the statistics that C++ gets for a layer norm of [rows, columns] on meta.
long shapes_statistics(long rows, long columns) {
  const at::Tensor x = at::empty({rows, columns}, at::TensorOptions(c10::kMeta));
  return std::get<1>(at::native_layer_norm(x, {columns}, {}, {}, 1e-5)).numel();
}

}  // extern "C"
