#include "pipeline/skips.h"

#include <reprise/error.h>
#include <reprise/pipeline.h>
#include <reprise/skip.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "libtorch/base/thread_state.h"

namespace reprise {
namespace detail {
namespace {

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

void SkipTracker::begin_layer(const PipelineLayer& layer) {
  layer_ = &layer;
  used_.clear();
}

void SkipTracker::end_layer() {
  const PipelineLayer& layer = *std::exchange(layer_, nullptr);
  for (const auto* names : {&layer.stashes, &layer.pops}) {
    for (const std::string& name : *names) {
      if (contains(used_, name)) continue;
      throw UsageError("Pipeline: layer " + layer.name + " declares that it " +
                       (names == &layer.stashes ? "stashes" : "pops") + " '" + name +
                       "' and did not; stash an undefined tensor where there is none");
    }
  }
}

void SkipTracker::stash(const std::string& name, at::Tensor tensor) {
  if (layer_ != nullptr && !contains(layer_->stashes, name)) {
    throw UsageError("stash(): layer " + layer_->name + " does not declare '" + name +
                     "'; add it to what its stashes() returns");
  }
  if (use_ == Use::kAgain) {
    held_[name] = tensor.defined() ? tensor.detach() : tensor;
    return;
  }
  if (!held_.emplace(name, std::move(tensor)).second) {
    throw UsageError("stash(): '" + name +
                     "' is stashed already and was not popped; use a name of its own for each skip "
                     "(SkipNamespace)");
  }
  used_.push_back(name);
}

at::Tensor SkipTracker::pop(const std::string& name) {
  if (layer_ != nullptr && !contains(layer_->pops, name)) {
    throw UsageError("pop(): layer " + layer_->name + " does not declare '" + name +
                     "'; add it to what its pops() returns");
  }
  const auto found = held_.find(name);
  if (found == held_.end()) {
    throw UsageError("pop(): nothing is stashed by the name '" + name +
                     "', or it was popped before; each stash is popped once, by a later layer");
  }
  if (use_ == Use::kAgain) return found->second;
  at::Tensor tensor = std::move(found->second);
  held_.erase(found);
  used_.push_back(name);
  return tensor;
}

}  // namespace detail

namespace pipeline {

std::vector<Skip> skips_of(const std::vector<PipelineLayer>& layers) {
  std::vector<Skip> skips;
  const auto named = [&](const std::string& name) {
    return std::find_if(skips.begin(), skips.end(),
                        [&](const Skip& skip) { return skip.name == name; });
  };
  const auto layer_name = [&](std::int64_t layer) {
    return "layer " + std::to_string(layer) + " (" + layers[static_cast<std::size_t>(layer)].name +
           ")";
  };
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(layers.size()); ++i) {
    const PipelineLayer& layer = layers[static_cast<std::size_t>(i)];
    for (const std::string& name : layer.pops) {
      const auto skip = named(name);
      if (skip == skips.end()) {
        throw UsageError("Pipeline: " + layer_name(i) + " pops '" + name +
                         "', and no layer before it stashes that");
      }
      if (skip->to >= 0) {
        throw UsageError("Pipeline: " + layer_name(i) + " pops '" + name + "', and so does " +
                         layer_name(skip->to) + "; each stash is popped once");
      }
      skip->to = i;
    }
    for (const std::string& name : layer.stashes) {
      if (const auto skip = named(name); skip != skips.end()) {
        throw UsageError("Pipeline: " + layer_name(i) + " stashes '" + name + "', and so does " +
                         layer_name(skip->from) +
                         "; give each skip a name of its own (SkipNamespace)");
      }
      skips.push_back({name, i, -1});
    }
  }
  for (const Skip& skip : skips) {
    if (skip.to >= 0) continue;
    throw UsageError("Pipeline: " + layer_name(skip.from) + " stashes '" + skip.name +
                     "', and no layer after it pops that");
  }
  return skips;
}

}  // namespace pipeline

namespace {

detail::SkipTracker& tracker(const char* what) {
  const auto* state = libtorch::current_state();
  if (state == nullptr || state->skips == nullptr) {
    throw UsageError(std::string(what) +
                     ": neither a pipeline runs this layer nor is a SkipScope open on this thread");
  }
  return *state->skips;
}

}  // namespace

void stash(const std::string& name, at::Tensor tensor) {
  tracker("stash()").stash(name, std::move(tensor));
}

at::Tensor pop(const std::string& name) { return tracker("pop()").pop(name); }

SkipNamespace::SkipNamespace() {
  static std::atomic<std::uint64_t> count{0};
  prefix_ = std::to_string(count++) + "/";
}

std::string SkipNamespace::operator()(std::string_view name) const {
  return prefix_ + std::string(name);
}

struct SkipScope::Impl {
  libtorch::ThreadStateScope in_force;
};

SkipScope::SkipScope() {
  auto state = libtorch::copy_of_current_state();
  state->skips = std::make_shared<detail::SkipTracker>();
  impl_.reset(new Impl{libtorch::ThreadStateScope(std::move(state))});
}

SkipScope::~SkipScope() = default;

}  // namespace reprise
