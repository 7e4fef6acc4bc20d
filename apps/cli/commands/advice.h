// Decides from figures alone what makes a model fit on a device.
//
// clang-format off
// | the first of these that is true               | advice                                  |
// |-----------------------------------------------|-----------------------------------------|
// | the plain step fits                           | checkpointing off                       |
// | the state alone does not fit                  | divide it: checkpointing frees no state |
// | the plain step fits with fused attention      | that: it recomputes nothing             |
// | a strategy or a byte budget fits              | the one that takes least time           |
// | fewer sequences, or more shards, fit          | those                                   |
// | fewer sequences and more shards together fit  | those                                   |
// clang-format on
#pragma once

#include <reprise/bytes.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace reprise::app {

struct AdviceFigures {
  struct Way {
    std::string name;  // a strategy; "budget" for a byte budget
    Bytes peak;
    double slowdown = 1;  // of the plain step
    // The slowdown of a byte budget before it has learned the step; nothing if it does not fit
    // until then.
    std::optional<double> unlearnt;
  };

  Bytes device;
  std::string device_option;  // as it was given
  Bytes state;                // parameters, gradients and optimizer state, of one device
  Bytes plain_peak, plain_activations;
  std::vector<Way> ways;  // beside the plain step
  std::int64_t batch = 1, shards = 1;
  std::int64_t most_shards = 1;  // that were tried
  // The batch, or the number of shards, with which the way of least memory fits; nothing if none
  // does.
  std::optional<std::int64_t> largest_batch, least_shards;
  // Fewer sequences and more shards together, with as few shards as possible, if neither alone is
  // enough.
  struct Both {
    std::int64_t batch, shards;
  };
  std::optional<Both> both;
  // The search for a byte budget ran out of time.
  bool budget_is_unknown = false;
  // The plain step's peak with fused attention, if the model has unfused attention.
  std::optional<Bytes> fused_peak;
};

enum class Remedy {
  kOff,
  kFusedAttention,
  kStrategy,
  kBudget,
  kShards,
  kSmallerBatch,
  kBoth,
  kNone
};

struct Advice {
  Remedy remedy = Remedy::kNone;
  std::string way;                 // of the ways, where one was chosen
  std::vector<std::string> words;  // sentences with the figures, the advice first
};

// "off", "strategy", ...
const char* name_of(Remedy remedy);

Advice advise_on(const AdviceFigures& figures);

}  // namespace reprise::app
