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
//   auto chain = reprise::profile_chain(model, x);            // reprise/sequential.h
//   auto y = reprise::checkpoint_sequential(model, reprise::planners::rotor(chain, budget), x);
//
// A schedule (reprise/chain.h) is run by regions inside regions: what runs again, and in that
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
// model's (reprise/sequential.h), so let first uses be alone. Inputs without memory, as in an
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
#include <reprise/chain.h>
#include <reprise/checkpoint.h>
#include <reprise/detail/layers.h>
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

struct ProfileOptions {
  std::int64_t repetitions = 5;
};

namespace detail {
// Throws as checkpoint_sequential() does.
void check_segments(std::size_t functions, std::int64_t segments);
at::Tensor checkpoint_within(const Layers& layers, Bytes budget, at::Tensor input,
                             const CheckpointOptions& options);
Chain profile(const Layers& layers, const at::Tensor& sample, const ProfileOptions& options);
}  // namespace detail

at::Tensor checkpoint_sequential(const std::vector<TensorFunction>& functions,
                                 std::int64_t segments, at::Tensor input,
                                 const CheckpointOptions& options = detail::default_options());

// `store` is where what the schedule offloads goes.
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

// profile_chain(): measures what each layer of a model takes and leaves, as a chain that planners
// (reprise/planners.h) work on.
//
//   torch::nn::Sequential model(...);
//   reprise::Chain chain = reprise::profile_chain(model, sample);
//   auto schedule = reprise::planners::rotor(chain, reprise::MB(400));
//
// Each layer is run by itself on what the ones before it made of `sample`: as a region, kept, and
// backward, `repetitions` times after one that is not counted. Seconds are medians, bytes those of
// the meter (reprise/memory.h). At no time is more than one layer kept, so a model can be profiled
// where its plain step does not fit. Layers whose result lies on the memory of their input
// (in-place activations, views), or that write to it, become one stage with the layer before: they
// cannot be told apart in memory, nor the one run again without the other.
//
// The model is left as it was: gradients, buffers (running statistics), random generators; hooks on
// its parameters are not called. Layers that keep other state, or are not deterministic in their
// memory, are measured as they come.
//
// Errors: UsageError if there is no layer, repetitions is below 1, or a layer writes to the sample;
// what a layer throws passes through. The meter counts all threads: while one profiles, others
// should not allocate.

// Functions, and the tensors that they hold: `parameters`, whose gradients backward makes, and
// `buffers`, which are put back afterwards.
Chain profile_chain(const std::vector<TensorFunction>& functions, const at::Tensor& sample,
                    const std::vector<at::Tensor>& parameters = {},
                    const std::vector<at::Tensor>& buffers = {},
                    const ProfileOptions& options = {});

// torch::nn::Sequential or a list of modules, whose class names are the stages' names.
template <detail::IsLayers Model>
Chain profile_chain(const Model& model, const at::Tensor& sample,
                    const ProfileOptions& options = {}) {
  return detail::profile(detail::layers_of(model), sample, options);
}

}  // namespace reprise
