// Chains of layers: checkpoint_sequential() runs a chain of modules or functions in regions, and
// profile_chain() measures it for a planner. There are three ways to say what is recomputed.
//
// Segments of equal length:
//
//   auto y = reprise::checkpoint_sequential(model, 4, x);     // model: torch::nn::Sequential
//
// The n functions are cut into `segments` runs of n / segments functions (rounded down; the last
// run takes the rest). All runs but the last are regions, so only inputs of segments are kept. The
// last run is kept because backward needs it first. About sqrt(n) segments keep O(sqrt(n))
// activations (Chen et al., arXiv:1604.06174, section 4).
//
// A schedule (reprise/chain.h), run as regions inside regions:
//
//   auto chain = reprise::profile_chain(model, x);
//   auto y = reprise::checkpoint_sequential(model, reprise::planners::rotor(chain, budget), x);
//
// A number of bytes:
//
//   auto y = reprise::checkpoint_sequential(model, reprise::MB(400), x);
//
// The first call with inputs of a shape measures the model and plans by planners::rotor. The plan
// is remembered as long as the model lives. The bytes are for what forward and backward of the
// model add to the bytes live before: activations, temporaries, gradients, and the result, which
// counts throughout because the caller usually holds it.
// - Only the first call may take more: if one layer, kept beside its input and output, does.
// - Several threads measure one after another, and allocations of other threads count as the
//   model's. So let no other thread allocate during first calls.
//
// Layers that take and return several tensors run in segments too. The value may be a tuple, a
// vector or another type that checkpoint() sees tensors in, the same for all layers:
//
//   using Pair = std::tuple<at::Tensor, at::Tensor>;
//   std::vector<std::function<Pair(const Pair&)>> layers = ...;
//   auto [a, b] = reprise::checkpoint_sequential(layers, 4, Pair(x, y));
//
// Schedules and bytes are for chains of one tensor, since a profile measures one tensor between two
// layers. In each form gradients are bitwise those of the plain chain. Without grad mode, as in
// evaluation, no form makes regions.
//
// Errors:
// - UsageError if `segments` is not between 1 and the number of functions, the list is empty, or a
//   schedule offloads and there is no store;
// - UsageError with a number of bytes, if a layer writes to the input (its region could not run
//   again), or if inputs have no memory, as in an estimate (reprise/estimate.h);
// - PlanError if the schedule is for another number of functions, is not valid, or cannot be run by
//   regions; the schedules of reprise's planners can;
// - BudgetError if no schedule fits.
#pragma once

#include <ATen/core/Tensor.h>
#include <reprise/bytes.h>
#include <reprise/chain.h>
#include <reprise/checkpoint.h>
#include <reprise/detail/layers.h>
#include <reprise/store.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace reprise {

struct ProfileOptions {
  std::int64_t repetitions = 5;  // counted runs of each layer, at least 1
};

namespace detail {
void check_segments(std::size_t functions, std::int64_t segments);
at::Tensor checkpoint_within(const Layers& layers, Bytes budget, at::Tensor input,
                             const CheckpointOptions& options);
Chain profile(const Layers& layers, const at::Tensor& sample, const ProfileOptions& options);
}  // namespace detail

// -- Chains of functions. A TensorFunction takes one tensor and returns one.

at::Tensor checkpoint_sequential(const std::vector<TensorFunction>& functions,
                                 std::int64_t segments, at::Tensor input,
                                 const CheckpointOptions& options = detail::default_options());

// `store` receives what the schedule offloads.
at::Tensor checkpoint_sequential(const std::vector<TensorFunction>& functions,
                                 const Schedule& schedule, at::Tensor input,
                                 const CheckpointOptions& options = detail::default_options(),
                                 std::shared_ptr<Store> store = nullptr);

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

// -- Models: torch::nn::Sequential, and lists of modules (std::vector<torch::nn::AnyModule>, or a
// std::vector of one kind of module holder).

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

// -- Measuring a chain

// Measures each layer of a model as a stage of a chain, for planners (reprise/planners.h).
//
// Each layer runs by itself on the output of the layer before: as a region, kept, and backward. It
// runs `repetitions` times after one uncounted run. Seconds are medians, bytes come from the meter
// (reprise/memory.h). Only one layer is kept at a time, so a model can be profiled whose plain step
// does not fit.
//
// A layer that writes to its input, or whose result shares memory with it (views, in-place
// activations), becomes one stage with the layer before. Neither can run again without the other.
//
// Gradients, buffers (running statistics) and random generators are left as they were, and hooks on
// parameters are not called. Other state of layers changes as in a plain run. Layers whose memory
// is not deterministic are measured as they happen to run.
//
// Throws UsageError if there is no layer, `repetitions` is below 1, or a layer writes to the
// sample. Errors of layers pass through. The meter counts all threads: no other thread should
// allocate meanwhile.
//
// This form takes functions and the tensors that they use: `parameters`, whose gradients backward
// makes, and `buffers`, which are restored afterwards.
Chain profile_chain(const std::vector<TensorFunction>& functions, const at::Tensor& sample,
                    const std::vector<at::Tensor>& parameters = {},
                    const std::vector<at::Tensor>& buffers = {},
                    const ProfileOptions& options = {});

// The same for torch::nn::Sequential or a list of modules. Their class names become the stages'
// names.
template <detail::IsLayers Model>
Chain profile_chain(const Model& model, const at::Tensor& sample,
                    const ProfileOptions& options = {}) {
  return detail::profile(detail::layers_of(model), sample, options);
}

}  // namespace reprise
