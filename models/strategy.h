// How a list of layers is run: which of their calls become regions that are recomputed in backward.
//
// clang-format off
// | strategy    | keeps                                    | recomputes                              |
// |-------------|------------------------------------------|-----------------------------------------|
// | none        | every activation                         | nothing                                 |
// | every-block | the input of every layer                 | every layer, once                       |
// | segments:K  | the inputs of K segments, and one inside | all segments but the last, once         |
// | sqrt        | as segments, of about √L layers each     | all segments but the last, once         |
// | from-input  | the first layer's input alone            | layer k from the input: L²/2 layer runs |
// clang-format on
//
// Segments are those of checkpoint_sequential. √L is Chen et al., arXiv:1604.06174, section 4.1;
// from-input its extreme, O(1) memory for O(L²) time. A further strategy is one more entry in the
// table of strategy.cpp.
#pragma once

#include <ATen/core/Tensor.h>
#include <reprise/checkpoint.h>
#include <reprise/checkpoint_sequential.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace reprise::models {

using Layer = TensorFunction;
using Layers = std::vector<Layer>;

class Strategy {
 public:
  // Reads "sqrt", "segments:4", ... Throws UsageError that lists the choices.
  static Strategy parse(std::string_view text);
  // "none, every-block, segments:K, sqrt, from-input".
  static std::string choices();

  // As it was written.
  const std::string& name() const { return name_; }

  // Throws UsageError if the strategy cannot be applied to so many layers.
  void check(std::int64_t layers) const;

  // The layers one after the other, each applied to the result of the one before. `options` are
  // given to every region. Copies of the layers live as long as the graph needs them. Throws as
  // check() does.
  at::Tensor run(const Layers& layers, const at::Tensor& input,
                 const CheckpointOptions& options = {}) const;

 private:
  struct Kind;
  static const Kind kKinds[];

  Strategy(std::string name, const Kind& kind, std::int64_t count)
      : name_(std::move(name)), kind_(&kind), count_(count) {}

  std::string name_;
  const Kind* kind_;
  std::int64_t count_;
};

}  // namespace reprise::models
