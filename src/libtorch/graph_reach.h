// Where in autograd's graph a backward call would come by.
#pragma once

#include <ATen/core/Tensor.h>

namespace reprise::libtorch {

// Whether backward of `result` would run the node that made `tensor`, one with a history.
bool leads_to(const at::Tensor& result, const at::Tensor& tensor);

}  // namespace reprise::libtorch
