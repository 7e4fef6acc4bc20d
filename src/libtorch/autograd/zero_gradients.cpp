#include "libtorch/autograd/zero_gradients.h"

#include <ATen/SequenceNumber.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Type.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/input_metadata.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <unordered_set>
#include <utility>

#include "libtorch/autograd/engine.h"
#include "libtorch/autograd/saved_tensor.h"
#include "libtorch/base/tensor_form.h"
#include "libtorch/memory/managed_memory.h"

namespace reprise::libtorch {

using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;

std::uint64_t place_in_graph() { return at::sequence_number::peek(); }

bool PassedByZeros::reads_nothing() const {
  if (!ever_) return false;
  const auto node = torch::autograd::get_current_node();
  const int call = torch::autograd::get_current_graph_task_id();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (std::find(calls_.begin(), calls_.end(), call) == calls_.end()) return false;
  const auto known = last_defined_.find(node.get());
  return known != last_defined_.end() && *known->second != call;
}

// Notes the backward calls in which the node has something to compute with.
class GradientWatch final : public torch::autograd::FunctionPreHook {
 public:
  explicit GradientWatch(std::shared_ptr<std::atomic<int>> last_defined)
      : last_defined_(std::move(last_defined)) {}

  variable_list operator()(const variable_list& gradients) override {
    const auto is_defined = [](const at::Tensor& gradient) { return gradient.defined(); };
    if (std::any_of(gradients.begin(), gradients.end(), is_defined)) {
      *last_defined_ = torch::autograd::get_current_graph_task_id();
    }
    return gradients;
  }

 private:
  std::shared_ptr<std::atomic<int>> last_defined_;
};

namespace {

bool is_zero(const at::Tensor& gradient) {
  if (!gradient.defined()) return true;
  if (gradient.layout() != at::kStrided || gradient.is_meta() || gradient.is_nested()) return false;
  return !gradient.count_nonzero().is_nonzero();
}

// Who computes nothing from gradients that are not defined. Custom functions get zeros for them.
bool passes_undefined(const Node& node) {
  const std::string type = c10::demangle(typeid(node).name());
  return type.starts_with("torch::autograd::generated::") ||
         type == "torch::autograd::CopySlices" || type == "torch::autograd::CopyBackwards" ||
         type == "reprise::libtorch::ZeroGradientNode" || type == "reprise::libtorch::LeafGate";
}

bool has_hooks(Node& node) {
  return !node.tensor_pre_hooks().empty() || !node.retains_grad_hooks().empty() ||
         !node.post_hooks().empty();
}

}  // namespace

struct ZeroGradientNode final : Node {
  std::shared_ptr<PassedByZeros> passed = std::make_shared<PassedByZeros>();
  std::vector<Node*> inner;  // kept alive by the edges
  std::size_t results = 0;
  // Of the edges after those of the results.
  struct End {
    c10::DimVector sizes;
    at::TensorOptions options;
  };
  std::vector<End> ends;

  variable_list apply(variable_list&& gradients) override {
    // A hook on a tensor inside is to see its gradient.
    const bool skips =
        !c10::GradMode::is_enabled() && std::all_of(gradients.begin(), gradients.end(), is_zero) &&
        std::none_of(inner.begin(), inner.end(), [](Node* node) { return has_hooks(*node); });
    note(skips);
    variable_list sent = skips ? variable_list(results) : std::move(gradients);
    for (const End& end : ends) {
      sent.push_back(skips ? at::zeros(end.sizes, end.options) : at::Tensor());
    }
    return sent;
  }

  std::string name() const override { return "ZeroGradients"; }

  void watch() const {
    for (Node* each : inner) {
      auto last_defined = std::make_shared<std::atomic<int>>(-1);
      each->add_pre_hook(std::make_unique<GradientWatch>(last_defined));
      passed->last_defined_.emplace(each, std::move(last_defined));
    }
  }

 private:
  void note(bool skips) {
    const int call = torch::autograd::get_current_graph_task_id();
    {
      const std::lock_guard<std::mutex> lock(passed->mutex_);
      std::erase(passed->calls_, call);
      if (!skips) return;
      passed->calls_.push_back(call);
      passed->ever_ = true;
    }
    at_end_of_backward([passed = passed, call] {
      const std::lock_guard<std::mutex> lock(passed->mutex_);
      std::erase(passed->calls_, call);
    });
  }
};

namespace {

// What lies between the results and what was there before.
struct Stretch {
  std::vector<Node*> inner;
  std::vector<Edge> ends;
  bool is_passable = true;
};

bool is_before(const Node& node, std::uint64_t since) {
  return node.sequence_nr() < since ||
         dynamic_cast<const torch::autograd::AccumulateGrad*>(&node) != nullptr;
}

Stretch stretch_behind(const std::vector<at::Tensor>& results, std::uint64_t since) {
  Stretch stretch;
  std::unordered_set<Node*> seen;
  std::set<std::pair<Node*, std::uint32_t>> ends;
  std::vector<Node*> waiting;
  for (const at::Tensor& result : results) waiting.push_back(result.grad_fn().get());
  while (!waiting.empty()) {
    Node* const node = waiting.back();
    waiting.pop_back();
    if (!seen.insert(node).second) continue;
    stretch.inner.push_back(node);
    stretch.is_passable = stretch.is_passable && passes_undefined(*node);
    for (const Edge& edge : node->next_edges()) {
      if (!edge.is_valid()) continue;
      if (!is_before(*edge.function, since)) {
        waiting.push_back(edge.function.get());
      } else if (ends.emplace(edge.function.get(), edge.input_nr).second) {
        stretch.ends.push_back(edge);
        const auto& metadata = edge.function->input_metadata(edge.input_nr);
        stretch.is_passable = stretch.is_passable && !metadata.is_nested_tensor();
      }
    }
  }
  return stretch;
}

bool stands_alone(const at::Tensor& result, std::uint64_t since, at::TensorList arguments,
                  const std::vector<at::Tensor>& results) {
  if (result.is_view() || result.grad_fn() == nullptr || is_before(*result.grad_fn(), since)) {
    return false;
  }
  const auto shares = [&](const at::Tensor& other) {
    return other.defined() && other.unsafeGetTensorImpl() != result.unsafeGetTensorImpl() &&
           share_memory(other, result);
  };
  const auto same = [&](const at::Tensor& other) { return other.is_same(result); };
  return std::none_of(arguments.begin(), arguments.end(), shares) &&
         std::none_of(results.begin(), results.end(), shares) &&
         std::count_if(results.begin(), results.end(), same) == 1;
}

}  // namespace

std::shared_ptr<PassedByZeros> pass_zero_gradients(std::uint64_t since, at::TensorList arguments,
                                                   std::vector<at::Tensor>& results) {
  const auto alone = [&](const at::Tensor& result) {
    return stands_alone(result, since, arguments, results);
  };
  if (results.empty() || !std::all_of(results.begin(), results.end(), alone)) return nullptr;
  const Stretch stretch = stretch_behind(results, since);
  if (!stretch.is_passable) return nullptr;

  const NodePointer pointer = make_node<ZeroGradientNode>();
  auto& node = static_cast<ZeroGradientNode&>(*pointer);
  node.results = results.size();
  node.inner = stretch.inner;
  for (const at::Tensor& result : results)
    node.add_next_edge({result.grad_fn(), static_cast<std::uint32_t>(result.output_nr())});
  for (const Edge& end : stretch.ends) {
    const auto& metadata = end.function->input_metadata(end.input_nr);
    node.ends.push_back(
        {c10::DimVector(metadata.shape_as_dim_vector().size()), metadata.options()});
    const auto sizes = metadata.shape_as_dim_vector();
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      node.ends.back().sizes[i] = sizes[i].expect_int();
    }
    node.add_next_edge(end);
  }
  node.watch();
  for (at::Tensor& result : results) {
    at::Tensor own = alias_without_history(result);
    torch::autograd::impl::set_gradient_edge(own, {pointer, node.add_input_metadata(own)});
    result = std::move(own);
  }
  return node.passed;
}

}  // namespace reprise::libtorch
