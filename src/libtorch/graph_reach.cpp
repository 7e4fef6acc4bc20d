#include "libtorch/graph_reach.h"

#include <torch/csrc/autograd/function.h>

#include <unordered_set>
#include <vector>

namespace reprise::libtorch {

bool leads_to(const at::Tensor& result, const at::Tensor& tensor) {
  using torch::autograd::Node;
  const Node* const wanted = tensor.grad_fn().get();
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> waiting = {result.grad_fn().get()};
  while (!waiting.empty()) {
    const Node* const node = waiting.back();
    waiting.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    if (node == wanted) return true;
    for (const auto& edge : node->next_edges()) waiting.push_back(edge.function.get());
  }
  return false;
}

}  // namespace reprise::libtorch
