#include "libtorch/autograd/graph_reach.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <limits>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "libtorch/autograd/saved_tensor.h"

namespace reprise::libtorch {
namespace {

using torch::autograd::AccumulateGrad;
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

struct LeafGate final : Node {
  // As soon as its gradient is there, like the leaf's own node.
  LeafGate() : Node(std::numeric_limits<std::uint64_t>::max()) {}
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    return std::move(gradients);
  }
  std::string name() const override { return "LeafGate"; }
};

namespace {

// Nodes that were made since, and those that they lead to.
struct Between {
  std::vector<Node*> inner, before;
  std::vector<AccumulateGrad*> leaves;
};

Between nodes_between(std::uint64_t since, const at::Tensor& input, const at::Tensor& result) {
  const auto end = input.defined() ? input.grad_fn() : nullptr;
  Between between;
  each_node({result.grad_fn().get()}, [&](Node& node) {
    if (auto* const leaf = dynamic_cast<AccumulateGrad*>(&node)) {
      between.leaves.push_back(leaf);
      return false;
    }
    // The end itself was made since, but what it leads to was not.
    const bool is_inner = &node != end.get() && node.sequence_nr() >= since;
    (is_inner ? between.inner : between.before).push_back(&node);
    return is_inner;
  });
  return between;
}

}  // namespace

std::vector<GatedLeaf> gate_leaves(std::uint64_t since, const at::Tensor& input,
                                   const at::Tensor& result) {
  const Between between = nodes_between(since, input, result);
  std::unordered_set<const Node*> elsewhere;
  each_node(between.before, [&](Node& node) {
    elsewhere.insert(&node);
    return true;
  });
  std::vector<GatedLeaf> gated;
  std::unordered_map<const Node*, NodePointer> gates;
  for (const AccumulateGrad* leaf : between.leaves) {
    if (elsewhere.contains(leaf) || leaf->variable.is_same(input)) continue;
    NodePointer gate = make_node<LeafGate>();
    at::Tensor tensor = alias_without_history(leaf->variable);
    torch::autograd::impl::set_gradient_edge(tensor, {gate, gate->add_input_metadata(tensor)});
    gated.push_back({leaf->variable, std::move(tensor)});
    gates.emplace(leaf, std::move(gate));
  }
  for (Node* const node : between.inner) {
    for (torch::autograd::Edge& edge : node->next_edges()) {
      const auto gate = gates.find(edge.function.get());
      if (gate == gates.end()) continue;
      if (gate->second->num_outputs() == 0) gate->second->add_next_edge(edge);
      edge = {gate->second, 0};
    }
  }
  return gated;
}

std::vector<at::Tensor> leaves_since(std::uint64_t since, const at::Tensor& result) {
  std::vector<at::Tensor> leaves;
  for (const AccumulateGrad* leaf : nodes_between(since, at::Tensor(), result).leaves) {
    leaves.push_back(leaf->variable);
  }
  return leaves;
}

bool has_hooks_between(std::uint64_t since, const at::Tensor& input, const at::Tensor& result) {
  const auto has_hooks = [](Node* node) {
    return !node->tensor_pre_hooks().empty() || !node->retains_grad_hooks().empty() ||
           !node->post_hooks().empty();
  };
  const std::vector<Node*> inner = nodes_between(since, input, result).inner;
  const auto end = input.defined() ? input.grad_fn() : nullptr;
  return std::any_of(inner.begin(), inner.end(), has_hooks) ||
         (end != nullptr && has_hooks(end.get()));
}

}  // namespace reprise::libtorch
