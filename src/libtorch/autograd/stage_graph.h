// The part of autograd's graph that one stage of a pipeline makes for one micro-batch: it begins at
// the stage's inputs, ends at its outputs, and is walked by backward calls of its own. Stages on
// several threads therefore run backward at the same time, which one backward call over the whole
// model would not do on the CPU.
//
//   StageGraph graph;
//   outputs = stage(graph.enter(inputs, needs_gradient));
//   graph.leave(outputs);
//   input_gradients = graph.backward(output_gradients);        // or, in two steps,
//   input_gradients = graph.backward_inputs(output_gradients);
//   graph.backward_weights();
//
// The gradients of parameters accumulate as backward() makes them accumulate, hooks included.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/variable.h>

#include <vector>

#include "libtorch/base/versions.h"

namespace reprise::libtorch {

struct StageEntry;

class StageGraph {
 public:
  StageGraph() = default;
  ~StageGraph();
  StageGraph(StageGraph&&) noexcept = default;
  StageGraph& operator=(StageGraph&&) noexcept = default;

  // The inputs on the same memory, as results of a node that takes their gradients. They are no
  // leaves, so the stage may change them in place.
  std::vector<at::Tensor> enter(const std::vector<at::Tensor>& inputs,
                                const std::vector<bool>& needs_gradient);
  // Remembers where backward begins, but does not keep the outputs.
  void leave(const std::vector<at::Tensor>& outputs);

  // All gradients. `gradients`: one for each output, undefined for none. Returns one for each input,
  // undefined where none was made. Without `keep` the graph is freed as backward goes. Each gradient
  // is freed when the first node has used it.
  std::vector<at::Tensor> backward(std::vector<at::Tensor> gradients, bool keep = false);

  // The gradients of the inputs alone. Afterwards the graph holds only what backward_weights()
  // needs: the nodes at which a parameter's branch leaves the way to the inputs, with the gradients
  // that reached them. (Qi et al., arXiv:2401.10241, section 2.) A custom autograd function runs once,
  // here: its gradients of parameters are kept instead.
  std::vector<at::Tensor> backward_inputs(std::vector<at::Tensor> gradients);
  void backward_weights();

  // Frees everything.
  void clear();

 private:
  struct Branch {
    NodePointer node;
    std::vector<at::Tensor> gradients;
  };
  std::vector<at::Tensor> take_input_gradients();

  NodePointer entry_;
  std::size_t inputs_ = 0;
  // An input's place among the results of `entry_` is -1 if it needs no gradient.
  std::vector<std::int64_t> places_;
  torch::autograd::edge_list roots_;
  std::vector<Branch> branches_;
};

}  // namespace reprise::libtorch
