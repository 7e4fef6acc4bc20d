// The layers of a pipeline as functions over lists of tensors: the part of reprise/pipeline.h that
// must be a template. Not for direct use, but for PipelineLayer.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <reprise/detail/layers.h>
#include <reprise/detail/visit_tensors.h>
#include <reprise/skip.h>

#include <array>
#include <concepts>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace reprise {

// One layer: a function, what belongs to it, and the skips that it makes and takes.
struct PipelineLayer {
  std::string name;
  std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)> forward;
  std::vector<at::Tensor> parameters = {};
  std::vector<at::Tensor> buffers = {};
  // Looks at further state, and returns what puts it back. Empty: there is none.
  std::function<std::function<void()>()> state = {};
  // Moves both to a device, keeping the tensors' identity. Empty: nothing to move.
  std::function<void(c10::Device)> move = {};
  std::function<void(bool)> train = {};
  std::function<bool()> is_training = {};
  // Whose BatchNorm modules PipelineOptions::deferred_batch_norm is for; null: none.
  std::shared_ptr<torch::nn::Module> module = {};
  // The names that forward() stashes and pops (reprise/skip.h).
  std::vector<std::string> stashes = {};
  std::vector<std::string> pops = {};
};

namespace detail {

template <class T>
struct OnlyTensors : std::is_same<T, at::Tensor> {};
template <class... T>
struct OnlyTensors<std::tuple<T...>> : std::conjunction<OnlyTensors<T>...> {};
template <class A, class B>
struct OnlyTensors<std::pair<A, B>> : std::conjunction<OnlyTensors<A>, OnlyTensors<B>> {};
template <class T, std::size_t N>
struct OnlyTensors<std::array<T, N>> : OnlyTensors<T> {};
template <class T, class A>
struct OnlyTensors<std::vector<T, A>> : OnlyTensors<T> {};

template <class Value>
std::vector<at::Tensor> to_tensors(Value value) {
  static_assert(
      OnlyTensors<Value>::value,
      "Pipeline: a value that is cut into micro-batches must consist of tensors only: a "
      "Tensor, or a tuple, pair, array or vector of such; give other values to the layers "
      "that need them");
  std::vector<at::Tensor> tensors;
  visit_tensors(value, [&](at::Tensor& tensor) { tensors.push_back(std::move(tensor)); });
  return tensors;
}

void check_count(std::size_t wanted, std::size_t given);

template <class Value>
Value from_tensors(std::vector<at::Tensor> tensors) {
  if constexpr (std::same_as<Value, std::vector<at::Tensor>>) {
    return tensors;
  } else {
    Value value;
    std::size_t wanted = 0;
    visit_tensors(value, [&](at::Tensor&) { ++wanted; });
    check_count(wanted, tensors.size());
    std::size_t next = 0;
    visit_tensors(value, [&](at::Tensor& tensor) { tensor = std::move(tensors[next++]); });
    return value;
  }
}

template <class Value, class Module>
PipelineLayer pipeline_layer(const Module& module) {
  PipelineLayer layer;
  const auto& pointer = module.ptr();
  layer.name = pointer->name();
  layer.module = pointer;
  layer.forward = [function = function_of<Value>(module)](std::vector<at::Tensor> input) {
    return to_tensors(function(from_tensors<Value>(std::move(input))));
  };
  layer.parameters = pointer->parameters();
  layer.buffers = pointer->buffers();
  layer.move = [pointer](c10::Device device) { pointer->to(device); };
  layer.train = [pointer](bool on) { pointer->train(on); };
  layer.is_training = [pointer] { return pointer->is_training(); };
  for (const auto& each : pointer->modules()) {
    const auto* const skips = dynamic_cast<const Skippable*>(each.get());
    if (skips == nullptr) continue;
    for (std::string& name : skips->stashes()) layer.stashes.push_back(std::move(name));
    for (std::string& name : skips->pops()) layer.pops.push_back(std::move(name));
  }
  return layer;
}

template <class Value, class Model>
std::vector<PipelineLayer> pipeline_layers(const Model& model) {
  std::vector<PipelineLayer> layers;
  each_layer(model, [&](const auto& module) { layers.push_back(pipeline_layer<Value>(module)); });
  return layers;
}

}  // namespace detail
}  // namespace reprise
