// Tensors that would be one memory without a pipeline: a tensor and its stash, or a tensor that is
// given or returned twice. Stages get copies or aliases of their own, so a change in place of one
// would not reach the other. A stage that makes such a change is refused.
//
// Twins are followed through the stages: an output that lies on an input's memory is a twin of
// whatever the input was a twin of, as long as another one is still to be used.
#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/micro_batches.h"

namespace reprise::pipeline {

// A tensor belongs to this group of twins. Another one of it is used in that stage or before.
struct Twin {
  std::uint64_t group = 0;
  std::int64_t until = 0;
};
using Twins = std::vector<Twin>;

// Whether the two may have a byte in common.
bool may_overlap(const at::Tensor& a, const at::Tensor& b);

// The twins among tensors that go to these stages.
std::vector<Twins> twins_of(const Tensors& tensors, const std::vector<std::int64_t>& to);

// Watches what a stage does with twins: made before its forward, asked after it.
class TwinWatch {
 public:
  TwinWatch(std::int64_t stage, const Tensors& inputs, std::vector<Twins> twins);

  // Whether that input must not be changed.
  bool is_twin(std::size_t input) const { return !twins_.empty() && !twins_[input].empty(); }
  // Throws UsageError if the stage has changed a twin in place.
  void check() const;
  // Of the stage's outputs, which go to these stages.
  std::vector<Twins> of_outputs(const Tensors& outputs, const std::vector<std::int64_t>& to) const;

 private:
  bool is_elsewhere(std::size_t input, const Twin& twin) const;

  const std::int64_t stage_;
  const Tensors inputs_;  // twins alone, without history
  const std::vector<Twins> twins_;
  std::vector<std::uint32_t> versions_;
};

}  // namespace reprise::pipeline
