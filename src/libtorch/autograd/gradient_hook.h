// A look at a tensor's gradient in backward, beside the tensor's value: what scores activations.
//
// A hook on the tensor, and not a node after it: the tensor stays the one that its operator made,
// so that what changes it in place, or takes it for a view, works as without. It is called with the
// sum of the gradients of all uses.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "libtorch/autograd/saved_tensor.h"

namespace reprise::libtorch {

// Calls use(gradient, value) each time the gradient of `tensor`, which has a history, has been
// made. `value` is the tensor, saved through autograd; it goes after the call in a backward that
// keeps no graph, and is null for another one that comes all the same. What `use` throws ends
// backward.
void on_gradient(const at::Tensor& tensor,
                 std::function<void(const at::Tensor& gradient, const SavedTensor* value)> use);

}  // namespace reprise::libtorch
