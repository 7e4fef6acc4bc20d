#include "libtorch/autograd/own_backward.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <reprise/error.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <string>
#include <utility>

#include "libtorch/autograd/engine.h"
#include "libtorch/base/leaving_errors.h"
#include "libtorch/base/versions.h"

namespace reprise::libtorch {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

// The first node leaves here what has reached it, and the second one takes it.
using Arrived = std::shared_ptr<variable_list>;

at::Tensor nothing() { return at::empty({0}, at::kFloat); }

struct Collect final : Node {
  Arrived arrived;

  variable_list apply(variable_list&& gradients) override {
    *arrived = std::move(gradients);
    return {nothing()};
  }
  std::string name() const override { return "CollectGradients"; }
};

struct RunBackward final : Node {
  Arrived arrived;
  std::optional<OwnBackward> backward;

  variable_list apply(variable_list&& /*nothing*/) override {
    return with_leaving_errors([this] { return run(); });
  }
  variable_list run() {
    variable_list gradients = std::exchange(*arrived, {});
    if (!backward) {
      throw UsageError(
          "backward through a graph that was freed; pass retain_graph=true to the first backward");
    }
    if (c10::GradMode::is_enabled()) {
      throw UsageError(backward->name +
                       ": create_graph=true (second derivatives) is not supported; run the model "
                       "without a pipeline for these");
    }
    if (!backward_accumulates()) {
      throw UsageError(backward->name +
                       ": gradients of chosen tensors (autograd::grad, or backward with `inputs`) "
                       "are not supported; call backward() and read the tensors' grad()");
    }
    return backward->run(std::move(gradients),
                         torch::autograd::get_current_graph_task_keep_graph());
  }
  void release_variables() override { backward.reset(); }
  std::string name() const override { return "RunBackward"; }
};

}  // namespace

void set_own_backward(std::vector<at::Tensor>& results, const std::vector<at::Tensor>& inputs,
                      OwnBackward backward) {
  ensure_engine_front();
  const NodePointer second = make_node<RunBackward>();
  auto& run = static_cast<RunBackward&>(*second);
  run.arrived = std::make_shared<variable_list>();
  run.backward = std::move(backward);
  for (const at::Tensor& input : inputs) {
    const bool needs = input.defined() && input.requires_grad();
    run.add_next_edge(needs ? torch::autograd::impl::gradient_edge(input)
                            : torch::autograd::Edge());
  }
  const NodePointer first = make_node<Collect>();
  static_cast<Collect&>(*first).arrived = run.arrived;
  first->add_next_edge({second, run.add_input_metadata(nothing())});
  for (at::Tensor& result : results) {
    if (!result.defined()) continue;
    torch::autograd::impl::set_gradient_edge(result, {first, first->add_input_metadata(result)});
  }
}

}  // namespace reprise::libtorch
