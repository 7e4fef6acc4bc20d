// Skip connections of a pipeline: a layer stashes a tensor by name, and a later layer pops it.
//
//   struct DownImpl : torch::nn::Module, reprise::Skippable {
//     std::vector<std::string> stashes() const override { return {"level1"}; }
//     at::Tensor forward(at::Tensor x) { x = conv(x); reprise::stash("level1", x); return pool(x); }
//     ...
//   };
//   struct UpImpl : torch::nn::Module, reprise::Skippable {
//     std::vector<std::string> pops() const override { return {"level1"}; }
//     at::Tensor forward(at::Tensor x) { return conv(at::cat({up(x), reprise::pop("level1")}, 1)); }
//     ...
//   };
//
// In a pipeline (reprise/pipeline.h) the tensor, and later its gradient, goes from the one stage to
// the other directly, past the stages between. The pipeline checks the names when it is made: each
// has one layer that stashes it and one later layer that pops it. Outside of a pipeline the layers
// run inside a SkipScope.
//
// Stages get copies of tensors that share memory. So a later stage's in-place change of a tensor that
// was also stashed would not reach the stash, as it would without a pipeline, and is refused: stash
// a clone, or let the layer after it compute out of place.
//
// Layers must pop outside of regions of their own (reprise/checkpoint.h): a region would not see
// the tensor among its arguments.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace reprise {

// A base of modules with skips, beside torch::nn::Module.
class Skippable {
 public:
  virtual ~Skippable() = default;
  // The names that forward() stashes, and pops, each time. The same throughout.
  virtual std::vector<std::string> stashes() const { return {}; }
  virtual std::vector<std::string> pops() const { return {}; }
};

// Keeps `tensor`, which may be undefined, until a later layer pops it. Throws UsageError outside of a
// pipeline and a SkipScope, for a name that is stashed already, and in a pipeline for one that the
// layer does not declare.
void stash(const std::string& name, at::Tensor tensor);

// Takes what was stashed by that name. Throws UsageError outside of a pipeline and a SkipScope, for a
// name that is not stashed, and in a pipeline for one that the layer does not declare.
at::Tensor pop(const std::string& name);

// Names of one copy of a block that occurs several times: no two objects make the same name, copies
// of one object do.
class SkipNamespace {
 public:
  SkipNamespace();
  std::string operator()(std::string_view name) const;

 private:
  std::string prefix_;
};

// Lets layers stash and pop on this thread outside of a pipeline. Scopes nest, and see nothing of
// each other's names.
class SkipScope {
 public:
  SkipScope();
  ~SkipScope();
  SkipScope(const SkipScope&) = delete;
  SkipScope& operator=(const SkipScope&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace reprise
