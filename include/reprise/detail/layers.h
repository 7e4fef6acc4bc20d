// A list of modules, or a torch::nn::Sequential, as functions that the compiled code runs: the part
// of checkpoint_sequential() that must be a template. Not for direct use.
#pragma once

#include <ATen/core/Tensor.h>
#include <reprise/detail/region_call.h>

#include <concepts>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace reprise {

// A layer: one tensor in, one out.
using TensorFunction = std::function<at::Tensor(const at::Tensor&)>;

namespace detail {

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
  // Each looks at a layer's further state, and returns what puts it back.
  std::vector<std::function<std::function<void()>()>> states;
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

// The layer as a function, from a module's holder or an AnyModule.
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

}  // namespace detail

}  // namespace reprise
