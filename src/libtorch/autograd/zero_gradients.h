// Gradients of zeros, passed by a stretch of autograd's graph instead of through it.
//
// A node of our own stands after the tensors that end the stretch, and looks at their gradients.
// Where all are zero it passes on none at all, and sends zeros along edges of its own to where the
// stretch began: to the nodes that were there before, and to leaves. LibTorch's nodes compute
// nothing from a gradient that is not defined; they read what they saved all the same, and whoever
// answers may hand out anything. What else reaches a node of the stretch (a tensor that left it
// otherwise than as one that ends it) is not touched: such a node is told from the others by a
// hook.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace torch::autograd {
struct Node;
}

namespace reprise::libtorch {

// Where on this thread's way of making nodes the stretch begins.
std::uint64_t place_in_graph();

// Which backward calls pass the stretch by.
class PassedByZeros {
 public:
  // Whether what the node that is being run reads is not computed with.
  bool reads_nothing() const;

 private:
  friend struct ZeroGradientNode;
  friend class GradientWatch;

  std::atomic<bool> ever_{false};
  mutable std::mutex mutex_;
  std::vector<int> calls_;
  // Of each node of the stretch: the last backward call in which a gradient came that is defined.
  std::unordered_map<const torch::autograd::Node*, std::shared_ptr<std::atomic<int>>> last_defined_;
};

// Puts the node after `results`, which become tensors of its own on their memory. Null, and nothing
// happens, where it cannot do its work: a result is a view or shares memory with another one or
// with one of `arguments`, none has a history in the stretch, there are nodes of other libraries
// (custom functions) in it, or nested tensors.
std::shared_ptr<PassedByZeros> pass_zero_gradients(std::uint64_t since, at::TensorList arguments,
                                                   std::vector<at::Tensor>& results);

}  // namespace reprise::libtorch
