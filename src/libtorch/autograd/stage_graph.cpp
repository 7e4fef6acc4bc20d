#include "libtorch/autograd/stage_graph.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/input_metadata.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "libtorch/autograd/engine.h"
#include "libtorch/autograd/saved_tensor.h"

namespace reprise::libtorch {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

struct StageEntry final : Node {
  variable_list gradients;

  variable_list apply(variable_list&& arrived) override {
    gradients = std::move(arrived);
    return {};
  }
  std::string name() const override { return "StageEntry"; }
};

namespace {

// Notes what reaches a node, once.
class Capture final : public torch::autograd::FunctionPreHook {
 public:
  explicit Capture(std::shared_ptr<std::vector<at::Tensor>> gradients)
      : gradients_(std::move(gradients)) {}
  variable_list operator()(const variable_list& gradients) override {
    if (const auto to = std::exchange(gradients_, nullptr)) *to = gradients;
    return gradients;
  }

 private:
  std::shared_ptr<std::vector<at::Tensor>> gradients_;
};

// Frees what a node has saved as soon as it has run. A later node's saved input may hold on to it.
class ReleaseAfterwards final : public torch::autograd::FunctionPostHook {
 public:
  explicit ReleaseAfterwards(Node& node) : node_(node) {}
  variable_list operator()(const variable_list& outputs, const variable_list& /*inputs*/) override {
    node_.release_variables();
    return outputs;
  }

 private:
  Node& node_;
};

// Stands in a graph where a branch begins. The gradient that would go there is captured here.
struct BranchEnd final : Node {
  void take_the_place_of(const Edge& branch) {
    input_metadata_.emplace_back(branch.function->input_metadata(branch.input_nr));
  }
  variable_list apply(variable_list&& /*captured*/) override { return {}; }
  std::string name() const override { return "BranchEnd"; }
};

// The nodes from which `end` can be reached, among those behind the roots.
std::unordered_set<Node*> nodes_towards(const edge_list& roots, const Node* end) {
  std::unordered_map<Node*, std::vector<Node*>> callers;
  std::vector<Node*> waiting;
  std::unordered_set<Node*> seen;
  for (const Edge& root : roots) {
    if (root.is_valid() && seen.insert(root.function.get()).second) {
      waiting.push_back(root.function.get());
    }
  }
  Node* found = nullptr;
  while (!waiting.empty()) {
    Node* const node = waiting.back();
    waiting.pop_back();
    if (node == end) found = node;
    for (const Edge& edge : node->next_edges()) {
      if (!edge.is_valid()) continue;
      callers[edge.function.get()].push_back(node);
      if (seen.insert(edge.function.get()).second) waiting.push_back(edge.function.get());
    }
  }
  std::unordered_set<Node*> towards;
  if (found == nullptr) return towards;
  towards.insert(found);
  waiting.push_back(found);
  while (!waiting.empty()) {
    Node* const node = waiting.back();
    waiting.pop_back();
    for (Node* const caller : callers[node]) {
      if (towards.insert(caller).second) waiting.push_back(caller);
    }
  }
  return towards;
}

struct Roots {
  edge_list edges;
  variable_list gradients;
};

Roots with_gradients(const edge_list& roots, std::vector<at::Tensor> gradients) {
  Roots with;
  for (std::size_t i = 0; i < roots.size(); ++i) {
    if (!roots[i].is_valid() || !gradients[i].defined()) continue;
    with.edges.push_back(roots[i]);
    with.gradients.push_back(std::move(gradients[i]));
  }
  return with;
}

// Backward begins here. The engine holds what it is given until the end. So it is given one element,
// and this node gives the gradients, and holds them no longer.
struct StageExit final : Node {
  variable_list gradients;

  variable_list apply(variable_list&& /*start*/) override { return std::move(gradients); }
  std::string name() const override { return "StageExit"; }
};

variable_list execute(Roots roots, bool keep, bool accumulate, const edge_list& to = {}) {
  ensure_engine_front();
  const auto exit = make_node<StageExit>();
  const c10::Device device = roots.gradients.front().device();
  const at::Tensor start = at::empty({}, at::TensorOptions(at::kFloat).device(device));
  exit->add_input_metadata(start);
  exit->set_next_edges(std::move(roots.edges));
  static_cast<StageExit&>(*exit).gradients = std::move(roots.gradients);
  variable_list made = torch::autograd::Engine::get_default_engine().execute(
      {Edge(exit, 0)}, {start}, keep, /*create_graph=*/false, accumulate, to);
  settle_backward(device);
  return made;
}

}  // namespace

StageGraph::~StageGraph() = default;

std::vector<at::Tensor> StageGraph::enter(const std::vector<at::Tensor>& inputs,
                                          const std::vector<bool>& needs_gradient) {
  entry_ = make_node<StageEntry>();
  inputs_ = inputs.size();
  places_.assign(inputs_, -1);
  std::vector<at::Tensor> entered;
  for (std::size_t i = 0; i < inputs_; ++i) {
    if (!inputs[i].defined()) {
      entered.emplace_back();
      continue;
    }
    at::Tensor own = alias_without_history(inputs[i]);
    if (needs_gradient[i]) {
      const auto place = entry_->add_input_metadata(own);
      torch::autograd::impl::set_gradient_edge(own, {entry_, place});
      places_[i] = place;
    }
    entered.push_back(std::move(own));
  }
  return entered;
}

void StageGraph::leave(const std::vector<at::Tensor>& outputs) {
  for (const at::Tensor& output : outputs) {
    const bool needs = output.defined() && output.requires_grad();
    roots_.push_back(needs ? torch::autograd::impl::gradient_edge(output) : Edge());
  }
}

std::vector<at::Tensor> StageGraph::take_input_gradients() {
  variable_list arrived = std::move(static_cast<StageEntry&>(*entry_).gradients);
  static_cast<StageEntry&>(*entry_).gradients = {};
  std::vector<at::Tensor> gradients(inputs_);
  for (std::size_t i = 0; i < inputs_; ++i) {
    const auto place = static_cast<std::size_t>(places_[i]);
    if (places_[i] >= 0 && place < arrived.size()) gradients[i] = std::move(arrived[place]);
  }
  return gradients;
}

std::vector<at::Tensor> StageGraph::backward(std::vector<at::Tensor> gradients, bool keep) {
  Roots roots = with_gradients(roots_, std::move(gradients));
  if (!roots.edges.empty()) execute(std::move(roots), keep, true);
  auto result = take_input_gradients();
  if (!keep) clear();
  return result;
}

std::vector<at::Tensor> StageGraph::backward_inputs(std::vector<at::Tensor> gradients) {
  const auto towards = nodes_towards(roots_, entry_.get());
  const auto is_on_way = [&](const Edge& edge) { return towards.contains(edge.function.get()); };
  // These nodes have branches off the way to the inputs. An output that does not depend on the inputs
  // is a branch itself.
  struct Watched {
    NodePointer node;
    std::shared_ptr<std::vector<at::Tensor>> gradients;
  };
  std::vector<Watched> watched;
  Roots roots;
  std::unordered_map<Node*, variable_list> apart;
  for (std::size_t i = 0; i < roots_.size(); ++i) {
    if (!roots_[i].is_valid() || !gradients[i].defined()) continue;
    if (is_on_way(roots_[i])) {
      roots.edges.push_back(roots_[i]);
      roots.gradients.push_back(std::move(gradients[i]));
      continue;
    }
    auto& arrived = apart[roots_[i].function.get()];
    arrived.resize(roots_[i].function->num_inputs());
    at::Tensor& sum = arrived[roots_[i].input_nr];
    sum = sum.defined() ? sum + gradients[i] : gradients[i];
    if (arrived.size() > 0) branches_.push_back({roots_[i].function, {}});
  }
  std::unordered_set<Node*> noted;
  std::erase_if(branches_,
                [&](const Branch& branch) { return !noted.insert(branch.node.get()).second; });
  for (Branch& branch : branches_) branch.gradients = apart[branch.node.get()];

  const auto has_branch = [&](Node& node) {
    return std::ranges::any_of(
        node.next_edges(), [&](const Edge& edge) { return edge.is_valid() && !is_on_way(edge); });
  };
  const auto watch = [&](const NodePointer& node) {
    auto arrived = std::make_shared<std::vector<at::Tensor>>();
    node->add_pre_hook(std::make_unique<Capture>(arrived));
    watched.push_back({node, std::move(arrived)});
  };
  // A function of the program runs once, with its parameters' gradients: they are kept for later.
  struct Kept {
    Edge branch;
    NodePointer end;
  };
  std::vector<Kept> kept;
  const auto keep_branches = [&](Node& node) {
    for (Edge& edge : node.next_edges()) {
      if (!edge.is_valid() || is_on_way(edge)) continue;
      const NodePointer end = make_node<BranchEnd>();
      static_cast<BranchEnd&>(*end).take_the_place_of(edge);
      kept.push_back({std::exchange(edge, Edge(end, 0)), end});
    }
  };
  std::unordered_set<Node*> visited;
  std::vector<NodePointer> waiting;
  const auto visit = [&](const Edge& edge) {
    if (!edge.is_valid() || !is_on_way(edge) || edge.function.get() == entry_.get()) return;
    if (!visited.insert(edge.function.get()).second) return;
    // LibTorch's own nodes make only the gradients that are asked for. Their class tells them:
    // is_traceable() would ask a node of Python for an attribute that newer classes do not have.
    const bool is_own =
        dynamic_cast<const torch::autograd::TraceableFunction*>(edge.function.get()) != nullptr;
    if (is_own && has_branch(*edge.function)) {
      watch(edge.function);
    } else {
      keep_branches(*edge.function);
      edge.function->add_post_hook(std::make_unique<ReleaseAfterwards>(*edge.function));
    }
    waiting.push_back(edge.function);
  };
  for (const Edge& root : roots.edges) visit(root);
  while (!waiting.empty()) {
    const NodePointer node = std::move(waiting.back());
    waiting.pop_back();
    for (const Edge& edge : node->next_edges()) visit(edge);
  }

  std::vector<at::Tensor> result(inputs_);
  if (!roots.edges.empty()) {
    edge_list to;
    for (std::uint32_t place = 0; place < entry_->num_inputs(); ++place)
      to.emplace_back(entry_, place);
    for (const Kept& each : kept) to.emplace_back(each.end, 0);
    variable_list made = execute(std::move(roots), true, false, to);
    for (std::size_t i = 0; i < inputs_; ++i) {
      if (places_[i] >= 0) result[i] = std::move(made[static_cast<std::size_t>(places_[i])]);
    }
    for (std::size_t i = 0; i < kept.size(); ++i) {
      Branch& branch = branches_.emplace_back(Branch{kept[i].branch.function, {}});
      branch.gradients.resize(kept[i].branch.input_nr + 1);
      branch.gradients.back() = std::move(made[entry_->num_inputs() + i]);
    }
  }
  for (Watched& each : watched) {
    // Cut off: what lies behind is done, and freed with its saved tensors.
    for (Edge& edge : each.node->next_edges()) {
      if (edge.is_valid() && is_on_way(edge)) edge = Edge();
    }
    // The hooks have seen this gradient.
    if (!each.gradients->empty()) {
      each.node->tensor_pre_hooks().clear();
      each.node->retains_grad_hooks().clear();
      each.node->pre_hooks().clear();
    }
    if (!each.gradients->empty()) branches_.push_back({each.node, std::move(*each.gradients)});
  }
  roots_.clear();
  return result;
}

void StageGraph::backward_weights() {
  Roots roots;
  for (Branch& branch : branches_) {
    for (std::uint32_t i = 0; i < branch.gradients.size(); ++i) {
      if (!branch.gradients[i].defined()) continue;
      roots.edges.emplace_back(branch.node, i);
      roots.gradients.push_back(std::move(branch.gradients[i]));
    }
  }
  branches_.clear();
  if (!roots.edges.empty()) execute(std::move(roots), false, true);
  clear();
}

void StageGraph::clear() {
  roots_.clear();
  branches_.clear();
  entry_ = {};
}

}  // namespace reprise::libtorch
