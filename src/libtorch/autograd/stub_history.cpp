#include "libtorch/autograd/stub_history.h"

#include <reprise/error.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <type_traits>

#include "libtorch/autograd/saved_tensor.h"

namespace reprise::libtorch {
namespace {

struct Stub final : torch::autograd::Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override {
    throw DeterminismError(
        "selective checkpoint: the region's function runs backward through a custom autograd "
        "function that its policy keeps; let the policy recompute it");
  }
};

// A template, so that only the branch for this LibTorch's kind of pointer is compiled.
template <class Pointer>
Pointer make_stub() {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>) {
    return Pointer(new Stub);
  } else {
    return Pointer(c10::make_intrusive<Stub>());
  }
}

}  // namespace

at::Tensor with_stub_history(const at::Tensor& tensor) {
  const auto node = make_stub<NodePointer>();
  torch::autograd::impl::set_gradient_edge(tensor, {node, node->add_input_metadata(tensor)});
  return tensor;
}

}  // namespace reprise::libtorch
