#include "libtorch/autograd/quiet_leaves.h"

#include <ATen/ops/zeros_like.h>

namespace reprise::libtorch {

QuietLeaves::QuietLeaves(const std::vector<at::Tensor>& leaves) {
  for (const at::Tensor& leaf : leaves) {
    leaves_.push_back(
        {leaf, at::zeros_like(leaf, at::TensorOptions().requires_grad(false)), {}, {}});
    exchange(leaves_.back());
  }
}

QuietLeaves::~QuietLeaves() {
  for (Leaf& leaf : leaves_) exchange(leaf);
}

void QuietLeaves::exchange(Leaf& leaf) {
  std::swap(leaf.leaf.mutable_grad(), leaf.gradient);
  auto* const meta = torch::autograd::impl::get_autograd_meta(leaf.leaf);
  std::swap(meta->hooks_, leaf.hooks);
  std::swap(meta->post_acc_grad_hooks_, leaf.after);
}

}  // namespace reprise::libtorch
