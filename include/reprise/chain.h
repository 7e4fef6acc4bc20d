// A chain: the stages of a network that run one after another, each with what it costs and what it
// leaves behind. Planners (reprise/planners.h) work on chains; they know nothing of tensors.
//
//   reprise::Chain chain = reprise::Chain::read("resnet.json");
//   chain.stages[3].forward                          // seconds
//   reprise::profile_chain(model, sample)            // reprise/sequential.h: measures one
//
// A stage takes the output of the one before. It may run in two ways: kept, so that all that its
// backward needs stays, or not, so that only its output stays. Backward runs through the stages
// from the last to the first; each needs its stage to have been run kept, and mostly its input.
// That is the model of Beaumont et al. (arXiv:1911.13214, section 3), with gradients of parameters
// added, and outputs that no backward needs.
#pragma once

#include <reprise/bytes.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace reprise {

struct ChainStage {
  std::string name;
  Seconds forward{};
  Seconds backward{};
  Bytes output;                // of its output
  Bytes saved;                 // of what backward needs, beside the input, when it is kept
  bool saves_output = true;    // whether that is in `saved`; else it may go once the next stage ran
  bool needs_input = true;     // whether its backward needs its input
  Bytes forward_temporaries;   // at once, beside the output, when it is not kept
  Bytes keep_temporaries;      // at once, beside the output and `saved`, when it is
  Bytes backward_temporaries;  // at once, beside both gradients, those of parameters and `saved`;
                               // below zero where what was saved goes before those are made
  Bytes output_gradient;       // of the gradient that its backward takes
  Bytes parameter_gradients;   // that its backward makes, and that stay
  std::int64_t layers = 1;     // of the model, that it stands for

  bool operator==(const ChainStage&) const = default;
};

// The chain's input is the caller's: it is there throughout and not counted. Its output is the
// caller's from the last stage's forward to the end of backward, and counted.
struct Chain {
  std::vector<ChainStage> stages;
  Bytes input_gradient;  // that the first stage's backward makes; 0 if nobody asks for it

  bool operator==(const Chain&) const = default;

  Seconds forward() const;  // of all stages, each once
  Seconds backward() const;

  // Reads JSON:
  //   {"format": "reprise chain", "version": 1, "input_gradient_bytes": 0,
  //    "stages": [{"name": "conv1", "forward_seconds": 1.5e-3, "backward_seconds": 3e-3,
  //                "output_bytes": 4096, "saved_bytes": 8192, "saves_output": true,
  //                "needs_input": true, "forward_temporary_bytes": 0,
  //                "keep_temporary_bytes": 0, "backward_temporary_bytes": 0,
  //                "output_gradient_bytes": 4096, "parameter_gradient_bytes": 0, "layers": 1},
  //               ...]}
  // Required are format, version and stages, and of a stage both times, output_bytes and
  // saved_bytes. output_gradient_bytes is output_bytes where it is left out, layers 1,
  // saves_output and needs_input true, everything else 0 or empty. Throws UsageError "FILE:LINE:
  // field: reason".
  static Chain read(const std::filesystem::path& file);
  // The same from memory; `origin` stands for the file in errors.
  static Chain parse(std::string_view json, const std::string& origin = "chain");
  std::string json() const;

  // Throws UsageError, naming the stage, for a chain without stages, times or bytes that are
  // negative or not finite, and stages that save less than the output that they save.
  void check() const;
};

// A schedule: what a training step of a chain (reprise/chain.h) does, in order. Schedules are data:
// planners (reprise/planners.h) make them, check() proves them and says what they cost, and
// checkpoint_sequential() (reprise/sequential.h) runs them.

struct ScheduleOp {
  enum class Kind : std::uint8_t {
    kForwardKeep,        // runs the stage kept: all that its backward needs stays
    kForwardCheckpoint,  // runs it not kept; its input stays
    kForwardDrop,        // runs it not kept; its input goes, where nothing kept holds it
    kBackward,           // runs its backward; what was kept of it goes, and its input
    kOffload,            // moves what it saved to a store; its output stays for the next stage
    kLoad,               // brings that back
  };

  Kind kind = Kind::kForwardKeep;
  std::int32_t stage = 0;  // from 0

  bool operator==(const ScheduleOp&) const = default;
};

struct Schedule {
  std::vector<ScheduleOp> ops;
  // Of the model, that each stage stands for, as ChainStage::layers; empty: one each.
  std::vector<std::int64_t> layers = {};

  bool operator==(const Schedule&) const = default;

  // Reads JSON:
  //   {"format": "reprise schedule", "version": 1, "layers": [1, 1],
  //    "steps": [["keep", 0], ["keep", 1], ["backward", 1], ["backward", 0]]}
  // where a step is keep, checkpoint, drop, backward, offload or load, in the order of
  // ScheduleOp::Kind, and a stage; layers may be left out. Throws UsageError "FILE:LINE: field:
  // reason". Whether it is valid, check() says.
  static Schedule read(const std::filesystem::path& file);
  static Schedule parse(std::string_view json, const std::string& origin = "schedule");
  std::string json() const;
};

struct ScheduleCost {
  Bytes peak;                 // most bytes at once, beside the chain's input
  Seconds time{};             // of everything, transfers included
  Seconds recompute{};        // beyond each stage forward and backward once
  Seconds transfer{};         // that the step waits for
  std::int64_t forwards = 0;  // of stages
};

// How fast a store takes and gives.
struct TransferRate {
  double bytes_per_second = 0;  // each way; 0: there is no store
};

// Follows the schedule by the chain's figures. Transfers are waited for. Throws PlanError, naming
// the step and what is missing or too much, if the schedule is not valid: a stage that runs without
// its input, a backward out of order or without what it needs, one that is left out, an offload
// without a store.
ScheduleCost evaluate(const Chain& chain, const Schedule& schedule, const TransferRate& store = {});

// Text, a line a stage and a column a step: 'K' kept, 'c' its input stays, 'd' its input goes,
// 'B' backward, 'o' to the store, 'l' back; between them what is in memory: '=' what was kept, '-'
// an output alone, '.' what is in the store. Chains of up to some forty stages fit a screen.
std::string picture(const Chain& chain, const Schedule& schedule, const TransferRate& store = {});
// The same as SVG, with the bytes in memory over it.
std::string picture_svg(const Chain& chain, const Schedule& schedule,
                        const TransferRate& store = {});

}  // namespace reprise
