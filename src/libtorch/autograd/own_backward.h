// Results whose backward is a function of ours: a node that takes the gradients of all results at
// once, and gives those of all inputs.
//
// The function may wait for other threads that run backward calls of their own. Autograd has one
// thread for each accelerator, which those calls need, so the function never runs there: a first
// node collects the gradients, wherever they are, and a second one, which takes and gives nothing
// on an accelerator, runs the function on the thread that called backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace reprise::libtorch {

struct OwnBackward {
  // Gets one gradient for each result, undefined for none, and whether the graph is to be kept for
  // another backward. Returns one gradient for each input, undefined for none.
  std::function<std::vector<at::Tensor>(std::vector<at::Tensor> gradients, bool keep)> run;
  // Names the function in errors: "Pipeline::forward()".
  std::string name;
};

// Gives `results`, which have no history, one that leads to `inputs` by way of `backward`. It is
// freed with the graph, or once it has run and the graph is not kept. Backward throws UsageError
// with create_graph, and where gradients are asked of tensors (autograd::grad, backward's
// `inputs`), since parameters would get theirs all the same.
void set_own_backward(std::vector<at::Tensor>& results, const std::vector<at::Tensor>& inputs,
                      OwnBackward backward);

}  // namespace reprise::libtorch
