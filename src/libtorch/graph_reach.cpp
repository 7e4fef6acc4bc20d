#include "libtorch/graph_reach.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <unordered_set>

namespace reprise::libtorch {
namespace {

using torch::autograd::Node;

// Calls `look` with each node that a backward from those would come by, once; it goes on behind
// those for which that is true.
template <class Look>
void each_node(std::vector<Node*> waiting, Look&& look) {
  std::unordered_set<const Node*> seen;
  while (!waiting.empty()) {
    Node* const node = waiting.back();
    waiting.pop_back();
    if (node == nullptr || !seen.insert(node).second || !look(*node)) continue;
    for (const auto& edge : node->next_edges()) waiting.push_back(edge.function.get());
  }
}

}  // namespace

bool leads_to(const at::Tensor& result, const at::Tensor& tensor) {
  const Node* const wanted = tensor.grad_fn().get();
  bool is_found = false;
  each_node({result.grad_fn().get()}, [&](const Node& node) {
    is_found = is_found || &node == wanted;
    return !is_found;
  });
  return is_found;
}

std::vector<at::Tensor> leaves_since(std::uint64_t since, const at::Tensor& input,
                                     const at::Tensor& result) {
  using torch::autograd::AccumulateGrad;
  const Node* const end = input.grad_fn().get();
  std::vector<const AccumulateGrad*> found;
  std::vector<Node*> before;
  each_node({result.grad_fn().get()}, [&](Node& node) {
    const auto* const leaf = dynamic_cast<const AccumulateGrad*>(&node);
    if (leaf != nullptr) {
      if (!leaf->variable.is_same(input)) found.push_back(leaf);
      return false;
    }
    if (&node != end && node.sequence_nr() >= since) return true;
    // The end itself was made since, but what it leads to was not.
    before.push_back(&node);
    return false;
  });
  std::unordered_set<const Node*> elsewhere;
  each_node(before, [&](Node& node) {
    elsewhere.insert(&node);
    return true;
  });
  std::vector<at::Tensor> leaves;
  for (const AccumulateGrad* leaf : found) {
    if (!elsewhere.contains(leaf)) leaves.push_back(leaf->variable);
  }
  return leaves;
}

}  // namespace reprise::libtorch
