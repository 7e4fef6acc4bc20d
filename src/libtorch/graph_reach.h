// Where in autograd's graph a backward call would come by.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace reprise::libtorch {

// Whether backward of `result` would run the node that made `tensor`, one with a history.
bool leads_to(const at::Tensor& result, const at::Tensor& tensor);

// Leaves, but for `input`, whose gradients backward of `result` would make by way of nodes alone
// that were made on this thread since (place_in_graph(), zero_gradients.h): the parameters of what
// made the one of the other, but for those that what was there before leads to as well (a weight
// that two layers share): a backward that is to end at the input would go on to them. `input` must
// have been made since, or be a leaf.
std::vector<at::Tensor> leaves_since(std::uint64_t since, const at::Tensor& input,
                                     const at::Tensor& result);

}  // namespace reprise::libtorch
