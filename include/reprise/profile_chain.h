// profile_chain(): measures what each layer of a model takes and leaves, as a chain that planners
// (reprise/plan.h) work on.
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
#pragma once

#include <ATen/core/Tensor.h>
#include <reprise/chain.h>
#include <reprise/checkpoint_sequential.h>

#include <cstdint>
#include <string>
#include <vector>

namespace reprise {

struct ProfileOptions {
  std::int64_t repetitions = 5;
};

// Functions, and the tensors that they hold: `parameters`, whose gradients backward makes, and
// `buffers`, which are put back afterwards.
Chain profile_chain(const std::vector<TensorFunction>& functions, const at::Tensor& sample,
                    const std::vector<at::Tensor>& parameters = {},
                    const std::vector<at::Tensor>& buffers = {},
                    const ProfileOptions& options = {});

namespace detail {
Chain profile(const Layers& layers, const at::Tensor& sample, const ProfileOptions& options);
}

// torch::nn::Sequential or a list of modules, whose class names are the stages' names.
template <detail::IsLayers Model>
Chain profile_chain(const Model& model, const at::Tensor& sample,
                    const ProfileOptions& options = {}) {
  return detail::profile(detail::layers_of(model), sample, options);
}

}  // namespace reprise
