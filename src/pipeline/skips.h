// Skips of one run of some layers: what was stashed and not yet popped.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace reprise {
struct PipelineLayer;
namespace detail {

class SkipTracker {
 public:
  // kAgain: layers run several times, apart. A stash replaces the one before, and stays when popped.
  enum class Use { kOnce, kAgain };
  explicit SkipTracker(Use use = Use::kOnce) : use_(use) {}

  // Between the two, names must be declared by the layer, and all that are must be used.
  void begin_layer(const PipelineLayer& layer);
  void end_layer();

  void stash(const std::string& name, at::Tensor tensor);
  at::Tensor pop(const std::string& name);

 private:
  const Use use_;
  std::map<std::string, at::Tensor> held_;
  const PipelineLayer* layer_ = nullptr;
  std::vector<std::string> used_;
};

}  // namespace detail

namespace pipeline {

// A skip from one layer to a later one.
struct Skip {
  std::string name;
  std::int64_t from = 0, to = 0;  // layers
};

// The skips of a model in the order of their stashes. Throws UsageError, naming layer and skip, for a
// name that is stashed twice, popped twice, popped before its stash or without one, or never popped.
std::vector<Skip> skips_of(const std::vector<PipelineLayer>& layers);

}  // namespace pipeline
}  // namespace reprise
