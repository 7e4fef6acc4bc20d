// Where in autograd's graph a backward call would come by.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace reprise::libtorch {

// Whether backward of `result` would run the node that made `tensor`, one with a history.
bool leads_to(const at::Tensor& result, const at::Tensor& tensor);

// A leaf, and a tensor that stands before it in the graph: whose gradient is the leaf's, on its
// way.
struct GatedLeaf {
  at::Tensor leaf, gate;
};

// Puts a gate before each leaf, but for `input`, whose gradients backward of `result` would make by
// way of nodes alone that were made on this thread since (place_in_graph(), zero_gradients.h): the
// parameters of what made the one of the other, but for those that what was there before leads to
// as well (a weight that two layers share): a backward that is to end at the input would go on to
// them. `input` must have been made since, or be a leaf.
//
// Gradients that are asked of gates (autograd::grad) do not come to the leaves, and no hook on
// these is called: a program that counts them must not see more of them than backward calls of its
// own. All other backward calls do what they did. Nobody else may know of the nodes yet.
std::vector<GatedLeaf> gate_leaves(std::uint64_t since, const at::Tensor& input,
                                   const at::Tensor& result);

// The leaves whose gradients backward of `result` would make by way of nodes alone that were made
// on this thread since.
std::vector<at::Tensor> leaves_since(std::uint64_t since, const at::Tensor& result);

// Whether there are hooks on tensors between the two, or on `input` itself, which another backward
// would call as well: those that a program has set, and those that retain gradients. `input`:
// undefined if it has no history.
bool has_hooks_between(std::uint64_t since, const at::Tensor& input, const at::Tensor& result);

}  // namespace reprise::libtorch
