// checkpoint_sequential(): a chain of modules or functions in segments, each segment one region.
//
//   auto y = reprise::checkpoint_sequential(model, 4, x);     // model: torch::nn::Sequential
//
// The chain of n functions is cut into `segments` runs of n / segments functions each (rounded
// down; the last one takes what is left over). All but the last run as regions: only the inputs of
// segments are kept. The last is not checkpointed, since backward needs it first. With about
// sqrt(n) segments the activations kept are O(sqrt(n)) (Chen et al., arXiv:1604.06174, section 4).
//
// Errors: UsageError if `segments` is not between 1 and the number of functions, or the list is
// empty.
#pragma once

#include <ATen/core/Tensor.h>
#include <reprise/checkpoint.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace reprise {

using TensorFunction = std::function<at::Tensor(const at::Tensor&)>;

at::Tensor checkpoint_sequential(const std::vector<TensorFunction>& functions,
                                 std::int64_t segments, at::Tensor input,
                                 const CheckpointOptions& options = detail::default_options());

namespace detail {

template <class Module>
TensorFunction tensor_function(const Module& module) {
  // The copies refer to the same module.
  return [module = Module(module)](const at::Tensor& input) mutable -> at::Tensor {
    return call_plain(module, input);
  };
}

}  // namespace detail

// Any list of modules: std::vector<torch::nn::AnyModule>, std::vector of one kind of module holder.
template <class Module>
at::Tensor checkpoint_sequential(const std::vector<Module>& modules, std::int64_t segments,
                                 at::Tensor input,
                                 const CheckpointOptions& options = detail::default_options()) {
  std::vector<TensorFunction> functions;
  functions.reserve(modules.size());
  for (const Module& module : modules) functions.push_back(detail::tensor_function(module));
  return checkpoint_sequential(functions, segments, std::move(input), options);
}

// torch::nn::Sequential (a holder of a range of AnyModule).
template <class Sequential>
  requires requires(const Sequential& s) {
    s->begin();
    s->end();
  }
at::Tensor checkpoint_sequential(const Sequential& sequential, std::int64_t segments,
                                 at::Tensor input,
                                 const CheckpointOptions& options = detail::default_options()) {
  std::vector<TensorFunction> functions;
  for (const auto& module : *sequential) functions.push_back(detail::tensor_function(module));
  return checkpoint_sequential(functions, segments, std::move(input), options);
}

}  // namespace reprise
