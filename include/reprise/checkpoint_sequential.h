// checkpoint_sequential(): a chain of modules or functions in regions: segments of equal length, a
// planner's schedule, or whatever fits in so many bytes.
//
//   auto y = reprise::checkpoint_sequential(model, 4, x);     // model: torch::nn::Sequential
//
// The chain of n functions is cut into `segments` runs of n / segments functions each (rounded
// down; the last one takes what is left over). All but the last run as regions: only the inputs of
// segments are kept. The last is not checkpointed, since backward needs it first. With about
// sqrt(n) segments the activations kept are O(sqrt(n)) (Chen et al., arXiv:1604.06174, section 4).
//
//   auto chain = reprise::profile_chain(model, x);            // reprise/profile_chain.h
//   auto y = reprise::checkpoint_sequential(model, reprise::planners::rotor(chain, budget), x);
//
// A schedule (reprise/schedule.h) is run by regions inside regions: what runs again, and in that
// what runs again once more. Any schedule that reprise's planners make will do.
//
//   auto y = reprise::checkpoint_sequential(model, reprise::MB(400), x);
//
// does both in one call: measures the model at its first use with inputs of that shape, plans by
// planners::rotor, and remembers the plan for as long as the model lives. The budget is for what
// the model's forward and backward add to what is live before: activations, temporaries, gradients,
// and the result, which counts throughout as the caller mostly holds it.
// Only the first use may take more, where one layer alone, kept and beside its input and output,
// does. Several threads measure one after another; what others allocate meanwhile is counted as the
// model's (reprise/profile_chain.h), so let first uses be alone. Inputs without memory, as in an
// estimate (reprise/estimate.h), have nothing to measure: UsageError.
//
// Layers that take and return several tensors, each a tuple, a vector or another type with
// visit_tensors.h, run in segments as well; all take and return that one type:
//
//   using Pair = std::tuple<at::Tensor, at::Tensor>;
//   std::vector<std::function<Pair(const Pair&)>> layers = ...;
//   auto [a, b] = reprise::checkpoint_sequential(layers, 4, Pair(x, y));
//
// So does a Sequential or a list of modules whose forward() takes and returns it. A schedule and a
// budget are for chains of one tensor: a profile measures what one tensor between two layers takes.
//
// In each form gradients are bitwise those of the plain chain. Without grad mode, as in evaluation,
// no form makes regions.
//
// Errors: UsageError if `segments` is not between 1 and the number of functions, the list is empty,
// a schedule offloads and there is no store, or with a budget a layer writes to the input (its
// region could not run it again); PlanError if the schedule is of another number of functions, is
// not valid, or is not one that regions can run; BudgetError if no schedule fits.
#pragma once

#include <ATen/core/Tensor.h>
#include <reprise/bytes.h>
#include <reprise/checkpoint.h>
#include <reprise/schedule.h>
#include <reprise/store.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace reprise {

using TensorFunction = std::function<at::Tensor(const at::Tensor&)>;

at::Tensor checkpoint_sequential(const std::vector<TensorFunction>& functions,
                                 std::int64_t segments, at::Tensor input,
                                 const CheckpointOptions& options = detail::default_options());

// `store` is where what the schedule offloads goes.
at::Tensor checkpoint_sequential(const std::vector<TensorFunction>& functions,
                                 const Schedule& schedule, at::Tensor input,
                                 const CheckpointOptions& options = detail::default_options(),
                                 std::shared_ptr<Store> store = nullptr);

namespace detail {

// Throws as checkpoint_sequential() does.
void check_segments(std::size_t functions, std::int64_t segments);

template <class Value>
concept IsSeveralTensors =
    !std::same_as<Value, at::Tensor> && holds_tensors<Value> && std::copyable<Value>;

template <class Module>
TensorFunction tensor_function(const Module& module) {
  // The copies refer to the same module.
  return [module = Module(module)](const at::Tensor& input) mutable -> at::Tensor {
    return call_plain(module, input);
  };
}

// A chain of modules with what profiling it must know, and leave as it was.
struct Layers {
  std::vector<TensorFunction> functions;
  std::vector<std::string> names;
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> buffers;
  // The modules themselves, and whether each, and each within, is being trained: two calls with the
  // same ones are of the same chain.
  std::vector<std::shared_ptr<const void>> modules;
  std::vector<bool> trains;

  template <class Module>
  void add(const Module& module) {
    functions.push_back(tensor_function(module));
    const auto& pointer = module.ptr();
    names.push_back(pointer->name());
    for (const at::Tensor& parameter : pointer->parameters()) parameters.push_back(parameter);
    for (const at::Tensor& buffer : pointer->buffers()) buffers.push_back(buffer);
    modules.push_back(pointer);
    for (const auto& each : pointer->modules()) trains.push_back(each->is_training());
  }
};

// torch::nn::Sequential (a holder of a range of AnyModule).
template <class Model>
concept IsSequential = requires(const Model& model) {
  model->begin();
  model->end();
};

template <class Model>
concept IsModuleList = !std::same_as<Model, std::vector<TensorFunction>> &&
                       requires(Model model) { model.begin()->ptr(); };

template <class Model>
concept IsLayers = IsSequential<Model> || IsModuleList<Model>;

template <class Model, class F>
void each_layer(const Model& model, F&& f) {
  if constexpr (IsSequential<Model>) {
    for (const auto& module : *model) f(module);
  } else {
    for (const auto& module : model) f(module);
  }
}

// Of a module's holder, or of an AnyModule.
template <class Value, class Module>
std::function<Value(const Value&)> function_of(Module module) {
  if constexpr (requires(const Value& values) { module.template forward<Value>(values); }) {
    return [module](const Value& values) mutable { return module.template forward<Value>(values); };
  } else {
    return [module](const Value& values) mutable -> Value { return module->forward(values); };
  }
}

template <class Model>
std::vector<TensorFunction> functions_of(const Model& model) {
  std::vector<TensorFunction> functions;
  each_layer(model, [&](const auto& module) { functions.push_back(tensor_function(module)); });
  return functions;
}

template <class Model>
Layers layers_of(const Model& model) {
  Layers layers;
  each_layer(model, [&](const auto& module) { layers.add(module); });
  return layers;
}

at::Tensor checkpoint_within(const Layers& layers, Bytes budget, at::Tensor input,
                             const CheckpointOptions& options);

}  // namespace detail

template <detail::IsSeveralTensors Value>
Value checkpoint_sequential(const std::vector<std::function<Value(const Value&)>>& functions,
                            std::int64_t segments, std::type_identity_t<Value> input,
                            const CheckpointOptions& options = detail::default_options()) {
  detail::check_options(options);
  detail::check_segments(functions.size(), segments);
  const auto size = functions.size() / static_cast<std::size_t>(segments);
  auto next = functions.begin();
  for (std::int64_t segment = 0; segment + 1 < segments; ++segment) {
    const auto end = next + static_cast<std::ptrdiff_t>(size);
    input = checkpoint(
        options,
        [own = std::vector(next, end)](Value values) {
          for (const auto& function : own) values = function(values);
          return values;
        },
        std::move(input));
    next = end;
  }
  for (; next != functions.end(); ++next) input = (*next)(input);
  return input;
}

// Of torch::nn::Sequential, and of any list of modules: std::vector<torch::nn::AnyModule>,
// std::vector of one kind of module holder.
template <detail::IsLayers Model>
at::Tensor checkpoint_sequential(const Model& model, std::int64_t segments, at::Tensor input,
                                 const CheckpointOptions& options = detail::default_options()) {
  return checkpoint_sequential(detail::functions_of(model), segments, std::move(input), options);
}

template <detail::IsLayers Model, detail::IsSeveralTensors Value>
Value checkpoint_sequential(const Model& model, std::int64_t segments, Value input,
                            const CheckpointOptions& options = detail::default_options()) {
  std::vector<std::function<Value(const Value&)>> functions;
  detail::each_layer(
      model, [&](const auto& module) { functions.push_back(detail::function_of<Value>(module)); });
  return checkpoint_sequential(functions, segments, std::move(input), options);
}

template <detail::IsLayers Model>
at::Tensor checkpoint_sequential(const Model& model, const Schedule& schedule, at::Tensor input,
                                 const CheckpointOptions& options = detail::default_options(),
                                 std::shared_ptr<Store> store = nullptr) {
  return checkpoint_sequential(detail::functions_of(model), schedule, std::move(input), options,
                               std::move(store));
}

template <detail::IsLayers Model>
at::Tensor checkpoint_sequential(const Model& model, Bytes budget, at::Tensor input,
                                 const CheckpointOptions& options = detail::default_options()) {
  return detail::checkpoint_within(detail::layers_of(model), budget, std::move(input), options);
}

}  // namespace reprise
