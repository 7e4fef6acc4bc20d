// Runs a module on meta tensors without a second module: its parameters and buffers themselves
// become meta tensors for a while. nn::Module::to(kMeta) cannot do that in C++, for set_data
// refuses a change of backend.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace reprise::libtorch {

// While it lives, each of the tensors is a meta tensor of the same sizes, strides and dtype, still
// the same object to everybody who holds it: modules, optimizers, graphs. Storages that several of
// them share they share on meta too. Gradients are parked, so that backward starts from none.
// Afterwards everything is as before: storage, version, gradient, and the node that adds it up.
// Hooks on the tensors stay and run on meta too.
//
// Nobody else may use the tensors meanwhile. Scopes over the same tensors nest, and end in reverse
// order. Undefined tensors are passed over. Throws UsageError for a tensor without a plain strided
// storage (sparse, quantized, of oneDNN), with all tensors as they were.
class LentToMeta {
 public:
  explicit LentToMeta(std::vector<at::Tensor> tensors);
  ~LentToMeta();
  LentToMeta(const LentToMeta&) = delete;
  LentToMeta& operator=(const LentToMeta&) = delete;

 private:
  class Loan;
  std::vector<std::unique_ptr<Loan>> loans_;
};

}  // namespace reprise::libtorch
