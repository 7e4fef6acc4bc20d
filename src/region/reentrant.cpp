#include "region/reentrant.h"

#include <reprise/error.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "libtorch/autograd/engine.h"
#include "libtorch/base/thread_state.h"
#include "region/foreign.h"
#include "region/metadata.h"
#include "region/replay_state.h"
#include "region/texts.h"

namespace reprise::region {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What backward needs besides the saved arguments.
struct Reentrant final : torch::CustomClassHolder {
  std::shared_ptr<detail::RegionCall> call;
  std::string name;
  DeterminismCheck determinism_check = DeterminismCheck::kDefault;
  std::shared_ptr<ReplayState> replay;

  // The version counters of the arguments, to name one that was changed in place.
  struct Argument {
    Metadata metadata;
    c10::VariableVersion counter;
    std::uint32_t at_start = 0;
    std::uint32_t after_forward = 0;
  };
  c10::SmallVector<Argument, 2> arguments;
  // Of all tensors among the arguments, in visiting order.
  c10::SmallVector<bool, 4> defined;

  struct Result {
    Metadata metadata;
    std::uint64_t hash = 0;
  };
  c10::SmallVector<Result, 1> results;

  void note_result(const at::Tensor& tensor) {
    if (determinism_check == DeterminismCheck::kNone) return;
    results.push_back({Metadata::of(tensor),
                       determinism_check == DeterminismCheck::kValues ? hash_values(tensor) : 0});
  }
  void check(at::TensorList again) const;
  void note_arguments(at::TensorList inputs);
  // Among all tensors of the arguments, undefined ones included.
  std::size_t position_of(std::size_t argument) const;
  variable_list unpack_arguments(AutogradContext* context) const;
  // False if the run turned out to start from the wrong state and must be repeated.
  bool run_again(at::TensorList inputs, detail::Tensors& outputs) const;
};

std::size_t Reentrant::position_of(std::size_t argument) const {
  std::size_t position = 0;
  for (std::size_t seen = 0; position < defined.size(); ++position) {
    if (defined[position] && seen++ == argument) break;
  }
  return position;
}

void Reentrant::note_arguments(at::TensorList inputs) {
  for (const at::Tensor& input : inputs) {
    const c10::VariableVersion& counter = input.unsafeGetTensorImpl()->version_counter();
    arguments.push_back({Metadata::of(input), counter, counter.current_version(), 0});
  }
}

variable_list Reentrant::unpack_arguments(AutogradContext* context) const {
  const auto fail = [&](std::size_t i, const char* what) {
    refuse(*call, {.kind = Mismatch::Kind::kChangedArgument,
                   .text = changed_argument(name, position_of(i), arguments[i].metadata, what) +
                           " or use the out-of-place operator."});
  };
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].after_forward != arguments[i].at_start)
      fail(i, "inside the region's own function");
  }
  try {
    return context->get_saved_variables();
  } catch (const c10::Error&) {
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const Argument& argument = arguments[i];
      if (argument.counter.current_version() != argument.after_forward) {
        fail(i, "between forward and the recomputation");
      }
    }
    throw;
  }
}

void Reentrant::check(at::TensorList again) const {
  if (determinism_check == DeterminismCheck::kNone) return;
  const auto fail = [&](const std::string& what) {
    throw DeterminismError(
        name_of_region(name) + ": " + what +
        " The function must do the same operators on the same values each time it runs.");
  };
  if (again.size() != results.size()) {
    fail("the function returned " + std::to_string(results.size()) + " tensors in forward and " +
         std::to_string(again.size()) + " during recomputation.");
  }
  for (std::size_t i = 0; i < again.size(); ++i) {
    if (!results[i].metadata.matches(again[i])) {
      fail("result " + std::to_string(i) +
           " has different metadata: " + results[i].metadata.describe() + " in forward, " +
           Metadata::of(again[i]).describe() + " during recomputation.");
    }
    if (determinism_check == DeterminismCheck::kValues &&
        hash_values(again[i]) != results[i].hash) {
      fail("result " + std::to_string(i) + " (" + Metadata::of(again[i]).describe() + ", made by " +
           (again[i].grad_fn() ? again[i].grad_fn()->name() : "an operator without gradient") +
           ") is the first whose values differ between forward and recomputation.");
    }
  }
}

bool Reentrant::run_again(at::TensorList inputs, detail::Tensors& outputs) const {
  detail::Tensors tensors;
  for (std::size_t i = 0, next = 0; i < defined.size(); ++i) {
    tensors.push_back(defined[i] ? inputs[next++] : at::Tensor());
  }
  outputs.clear();
  libtorch::RecordingScope recording;
  auto state = libtorch::copy_of_current_state();
  state->checkpointing = false;
  state->recomputing = true;
  const auto undo = std::make_shared<ReplayState::Undo>();
  ReplayState::Scope in_replay(*replay, *undo, undo, *state);
  libtorch::ThreadStateScope in_force(std::move(state));
  const libtorch::AmbientMark mark;
  try {
    call->run_again(tensors, &outputs);
  } catch (...) {
    mark.put_back();
    rethrow_for_engine(name);
  }
  if (in_replay.was_wrong(ReplayState::Scope::kToTheEnd)) return false;
  outputs.erase(std::remove_if(outputs.begin(), outputs.end(),
                               [](const at::Tensor& tensor) { return !tensor.defined(); }),
                outputs.end());
  return true;
}

struct ReentrantFunction : torch::autograd::Function<ReentrantFunction> {
  static variable_list forward(AutogradContext* context,
                               const c10::intrusive_ptr<Reentrant>& region, at::TensorList inputs);
  static variable_list backward(AutogradContext* context, const variable_list& gradients);
};

variable_list ReentrantFunction::forward(AutogradContext* context,
                                         const c10::intrusive_ptr<Reentrant>& region,
                                         at::TensorList inputs) {
  context->saved_data["region"] = c10::IValue::make_capsule(region);
  context->set_materialize_grads(false);
  context->save_for_backward(inputs.vec());
  region->note_arguments(inputs);
  auto state = libtorch::copy_of_current_state();
  state->checkpointing = true;
  {
    const ReplayState::Recording recording(region->replay, *state);
    libtorch::ThreadStateScope in_force(std::move(state));
    region->call->run_first();
  }
  region->replay->end_forward();
  for (Reentrant::Argument& argument : region->arguments) {
    argument.after_forward = argument.counter.current_version();
  }
  variable_list outputs;
  region->call->visit_result([&](at::Tensor& tensor) {
    if (!tensor.defined()) return;
    region->note_result(tensor);
    outputs.push_back(tensor);
  });
  return outputs;
}

variable_list ReentrantFunction::backward(AutogradContext* context,
                                          const variable_list& gradients) {
  const auto region =
      c10::static_intrusive_pointer_cast<Reentrant>(context->saved_data["region"].toCapsule());
  if (!libtorch::backward_accumulates()) {
    refuse(
        *region->call,
        {.kind = Mismatch::Kind::kNotAccumulating,
         .text = "checkpoint() with reentrant=true is incompatible with autograd::grad() and with "
                 "passing inputs to backward(): its backward accumulates into leaves. Set "
                 "reentrant=false, or call backward() without inputs."});
  }
  if (c10::GradMode::is_enabled()) {
    refuse(
        *region->call,
        {.kind = Mismatch::Kind::kSecondDerivative,
         .text = "checkpoint() with reentrant=true cannot be differentiated twice: the backward "
                 "that it runs inside would not be part of the graph that create_graph=true asks "
                 "for. Set reentrant=false."});
  }
  variable_list inputs = region->unpack_arguments(context);
  variable_list detached;
  for (const at::Tensor& input : inputs) {
    // As detach(), but for the dispatcher and the bookkeeping of a view.
    detached.push_back(input.tensor_data());
    detached.back().set_requires_grad(input.requires_grad());
  }
  inputs.clear();
  detail::Tensors outputs;
  while (!region->run_again(detached, outputs)) {
  }
  region->check(outputs);

  variable_list roots;
  variable_list root_gradients;
  bool any_requires_grad = false;
  for (std::size_t i = 0; i < outputs.size() && i < gradients.size(); ++i) {
    any_requires_grad = any_requires_grad || outputs[i].requires_grad();
    if (!outputs[i].requires_grad() || !gradients[i].defined()) continue;
    roots.push_back(std::move(outputs[i]));
    root_gradients.push_back(gradients[i]);
  }
  outputs.clear();
  if (!any_requires_grad) {
    refuse(
        *region->call,
        {.kind = Mismatch::Kind::kNoGradient,
         .text = name_of_region(region->name) +
                 ": none of the outputs requires grad when the function is run again, so this "
                 "reentrant region is not necessary: call the function plainly, detach outside of "
                 "it, or set reentrant=false"});
  }
  if (!roots.empty()) {
    torch::autograd::backward(roots, root_gradients);
  }
  // One gradient per parameter of forward(): the region itself has none.
  variable_list input_gradients(1);
  for (const at::Tensor& input : detached) {
    input_gradients.push_back(input.requires_grad() ? input.grad() : at::Tensor());
  }
  return input_gradients;
}

}  // namespace

void run_reentrant(const CheckpointOptions& options,
                   const std::shared_ptr<detail::RegionCall>& call) {
  libtorch::ensure_engine_front();
  auto region = c10::make_intrusive<Reentrant>();
  variable_list inputs;
  // Autograd takes only defined tensors; the others are put back in their places for each run.
  call->visit_arguments([&](at::Tensor& tensor) {
    region->defined.push_back(tensor.defined());
    if (tensor.defined()) inputs.push_back(tensor);
  });
  if (std::none_of(inputs.begin(), inputs.end(),
                   [](const at::Tensor& input) { return input.requires_grad(); })) {
    if (foreign().warn_of_no_gradient != nullptr) {
      foreign().warn_of_no_gradient();
    } else {
      TORCH_WARN(name_of_region(options.name),
                 " with reentrant=true: none of the inputs has requires_grad=true. Gradients will "
                 "be undefined (reentrant=false has no such need)");
    }
  }
  region->call = call;
  region->name = options.name;
  region->determinism_check = options.determinism_check;
  region->replay = std::make_shared<ReplayState>(options, inputs);
  const variable_list outputs = ReentrantFunction::apply(region, at::TensorList(inputs));
  // The results are replaced by those that autograd knows; nothing else of the result is touched.
  std::size_t next = 0;
  call->visit_result([&](at::Tensor& tensor) {
    if (tensor.defined()) tensor = outputs[next++];
  });
}

}  // namespace reprise::region
