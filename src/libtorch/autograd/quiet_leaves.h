// Leaves that a measurement runs backward to: their gradients are set aside, and no hook is called.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <utility>
#include <vector>

namespace reprise::libtorch {

// While it lives, the leaves have gradients of zeros. Afterwards they have those of before.
class QuietLeaves {
 public:
  explicit QuietLeaves(const std::vector<at::Tensor>& leaves);
  ~QuietLeaves();
  QuietLeaves(const QuietLeaves&) = delete;
  QuietLeaves& operator=(const QuietLeaves&) = delete;

 private:
  struct Leaf {
    at::Tensor leaf, gradient;
    std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>> hooks;
    std::unique_ptr<torch::autograd::PostAccumulateGradHook> after;
  };
  static void exchange(Leaf& leaf);

  std::vector<Leaf> leaves_;
};

}  // namespace reprise::libtorch
