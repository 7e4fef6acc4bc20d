// Balance of a pipeline by what its layers measure.
#include <reprise/pipeline.h>

#include <memory>
#include <utility>

#include "libtorch/base/thread_state.h"
#include "pipeline/skips.h"

namespace reprise::detail {
namespace {

// Layers run apart and several times: what one stashes, each run of another pops.
Chain profile_with_skips(const Layers& layers, const at::Tensor& micro_batch,
                         const ProfileOptions& options) {
  auto state = libtorch::copy_of_current_state();
  state->skips = std::make_shared<SkipTracker>(SkipTracker::Use::kAgain);
  const libtorch::ThreadStateScope in_force(std::move(state));
  return profile(layers, micro_batch, options);
}

std::vector<Bytes> bytes_of(const Chain& chain) {
  std::vector<Bytes> bytes;
  for (const ChainStage& stage : chain.stages) {
    // The gradients of parameters have the parameters' size.
    bytes.push_back(stage.saved + stage.parameter_gradients * 2);
  }
  return bytes;
}

// From stages of the chain to layers of the model.
std::vector<std::int64_t> layers_in(const Chain& chain, const std::vector<std::int64_t>& cut) {
  std::vector<std::int64_t> layers;
  auto stage = chain.stages.begin();
  for (const std::int64_t stages : cut) {
    std::int64_t& sum = layers.emplace_back(0);
    for (std::int64_t i = 0; i < stages; ++i) sum += (stage++)->layers;
  }
  return layers;
}

}  // namespace

std::vector<std::int64_t> balance_by_time(const Layers& layers, const at::Tensor& micro_batch,
                                          std::int64_t stages, Bytes bytes_per_stage,
                                          const ProfileOptions& options) {
  const Chain chain = profile_with_skips(layers, micro_batch, options);
  std::vector<Seconds> seconds;
  for (const ChainStage& stage : chain.stages) seconds.push_back(stage.forward + stage.backward);
  return layers_in(chain, balance(seconds, bytes_of(chain), stages, bytes_per_stage));
}

std::vector<std::int64_t> balance_by_bytes(const Layers& layers, const at::Tensor& micro_batch,
                                           std::int64_t stages, const ProfileOptions& options) {
  const Chain chain = profile_with_skips(layers, micro_batch, options);
  std::vector<double> costs;
  for (const Bytes bytes : bytes_of(chain)) costs.push_back(static_cast<double>(bytes.count));
  return layers_in(chain, balance_by_cost(costs, stages));
}

}  // namespace reprise::detail
