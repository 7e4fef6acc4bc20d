// A history for a tensor that takes part in a recomputation without having been computed there:
// what is computed from it is recorded by autograd, but nobody runs backward through it.
#pragma once

#include <ATen/core/Tensor.h>

namespace reprise::libtorch {

// `tensor`, which has no history and does not require grad, as a result that requires grad. A
// backward that reaches it throws DeterminismError.
at::Tensor with_stub_history(const at::Tensor& tensor);

}  // namespace reprise::libtorch
