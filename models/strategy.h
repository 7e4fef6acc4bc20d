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
// | selective:P | inputs of layers, and what policy P says | the rest of every layer, once           |
// | offload:S   | nothing: activations are parked in S     | nothing                                 |
// clang-format on
//
// P is matmul, all-but-cheap or recompute-attention: save_matmuls(), save_all_but_cheap() and
// recompute_attention() of selective.h. S is disk=DIR or host: the stores of store.h.
// Segments are those of checkpoint_sequential. √L is Chen et al., arXiv:1604.06174, section 4.1;
// from-input its extreme, O(1) memory for O(L²) time. A further strategy is one more entry in the
// table of strategy.cpp (StrategyKind below).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <reprise/checkpoint.h>
#include <reprise/sequential.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace reprise::models {

using Layer = TensorFunction;
using Layers = std::vector<Layer>;

// The layers one after the other, as regions or not; each region is given the options.
using RunLayers = at::Tensor (*)(const Layers&, const at::Tensor& input, std::int64_t segments,
                                 const CheckpointOptions&);

// The layers without regions, and with one region each: what most strategies are made of.
at::Tensor run_plainly(const Layers& layers, const at::Tensor& input, std::int64_t segments,
                       const CheckpointOptions& options);
at::Tensor run_every_block(const Layers& layers, const at::Tensor& input, std::int64_t segments,
                           const CheckpointOptions& options);

// What a strategy does in a step. What is left empty does nothing.
struct Method {
  RunLayers run = run_plainly;
  std::int64_t segments = 0;  // that `run` makes; a model needs as many layers
  // Changes the options that every region is given: its `context`, for one. They are refused with
  // --reentrant if a reentrant region cannot have them.
  std::function<void(CheckpointOptions&)> set_options = {};
  // An RAII guard held while a whole step's forward runs, from before the first operator until the
  // loss is there.
  std::function<ContextScope()> around_forward = {};
  // Called once, before the first step: opens what the run needs on this device, such as a store,
  // and completes the method with it. What its functions hold lives as long as the strategy's last
  // copy. Throws UsageError where it is not to be had.
  std::function<void(Method&, c10::Device)> prepare = {};
};

// An entry of the table.
struct StrategyKind {
  std::string_view name;
  // What may follow the name and a colon, as the help writes it: {"host", "disk=DIR"}. Empty:
  // nothing.
  std::vector<std::string_view> parameters;
  // The method for a parameter, "" if none is given; touches nothing yet. nullopt for a parameter
  // that is none of those above; UsageError where more can be said.
  std::function<std::optional<Method>(std::string_view parameter)> read;
};

// The table.
std::span<const StrategyKind> strategy_kinds();

class Strategy {
 public:
  // Reads "sqrt", "segments:4", ... Throws UsageError that lists the choices.
  static Strategy parse(std::string_view text,
                        std::span<const StrategyKind> kinds = strategy_kinds());
  // "none", "every-block", "segments:K", ...
  static std::vector<std::string> choices(std::span<const StrategyKind> kinds = strategy_kinds());

  // As it was written.
  const std::string& name() const { return name_; }
  // Whether it makes regions at all.
  bool recomputes() const { return method_.run != run_plainly; }

  // Throws UsageError if the strategy cannot be applied to so many layers, or not with these
  // options.
  void check(std::int64_t layers, const CheckpointOptions& options = {}) const;

  // Opens what steps on this device need. Required before the two functions below if the strategy
  // needs anything; further calls do nothing. Copies made afterwards share it. Throws UsageError.
  void prepare(c10::Device device);

  // To be held while the forward of a whole step runs; null if there is nothing to hold.
  ContextScope around_forward() const;

  // The layers one after the other, each applied to the result of the one before. `options` are
  // given to every region. Copies of the layers live as long as the graph needs them. Throws as
  // check() does.
  at::Tensor run(const Layers& layers, const at::Tensor& input,
                 const CheckpointOptions& options = {}) const;

 private:
  Strategy(std::string name, Method method) : name_(std::move(name)), method_(std::move(method)) {}

  void require_prepared() const;

  std::string name_;
  Method method_;
};

}  // namespace reprise::models
