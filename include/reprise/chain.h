// Chains and schedules: what a network's stages cost, and what a training step does with them.
//
//   reprise::Chain chain = reprise::Chain::read("resnet.json");  // or profile_chain(model, x)
//   reprise::Schedule schedule = reprise::planners::rotor(chain, reprise::MB(400));
//   reprise::evaluate(chain, schedule).peak                       // at most 400 MB
//   std::cout << reprise::picture(chain, schedule);
//
// A chain is a list of stages that run one after another, each with its seconds and bytes. A stage
// takes the output of the stage before. It may run *kept*, so that all that its backward needs
// stays, or not kept, so that only its output stays. Backward runs through the stages from the last
// to the first. It needs each stage to have run kept, and mostly the stage's input. The model is
// that of Beaumont et al. (arXiv:1911.13214, section 3), extended by gradients of parameters and by
// outputs that no backward needs.
//
// A schedule is the list of operations of one step. Both are plain data without tensors: planners
// (reprise/planners.h) make schedules, evaluate() proves them, and checkpoint_sequential()
// (reprise/sequential.h) runs them. All functions may be called from any thread.
#pragma once

#include <reprise/bytes.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace reprise {

// -- Chains

struct ChainStage {
  std::string name;
  Seconds forward{};
  Seconds backward{};
  Bytes output;                // the size of its output
  Bytes saved;                 // kept for backward besides the input, when the stage runs kept
  bool saves_output = true;    // the output is in `saved`; if not, it is freed after the next stage
  bool needs_input = true;     // its backward reads its input
  Bytes forward_temporaries;   // at once, besides the output, when it does not run kept
  Bytes keep_temporaries;      // at once, besides the output and `saved`, when it runs kept
  Bytes backward_temporaries;  // at once, besides both gradients, those of parameters, and `saved`;
                               // negative if `saved` is freed before those gradients are made
  Bytes output_gradient;       // the gradient that its backward takes
  Bytes parameter_gradients;   // the gradients that its backward makes and leaves
  std::int64_t layers = 1;     // how many layers of the model it stands for

  bool operator==(const ChainStage&) const = default;
};

// The chain's input belongs to the caller: it is there throughout and not counted. Its output
// belongs to the caller from the last stage's forward to the end of backward, and is counted.
struct Chain {
  std::vector<ChainStage> stages;
  Bytes input_gradient;  // made by the first stage's backward; 0 if nobody needs it

  bool operator==(const Chain&) const = default;

  Seconds forward() const;  // the sum over all stages
  Seconds backward() const;

  // Reads JSON:
  //   {"format": "reprise chain", "version": 1, "input_gradient_bytes": 0,
  //    "stages": [{"name": "conv1", "forward_seconds": 1.5e-3, "backward_seconds": 3e-3,
  //                "output_bytes": 4096, "saved_bytes": 8192, "saves_output": true,
  //                "needs_input": true, "forward_temporary_bytes": 0,
  //                "keep_temporary_bytes": 0, "backward_temporary_bytes": 0,
  //                "output_gradient_bytes": 4096, "parameter_gradient_bytes": 0, "layers": 1},
  //               ...]}
  // Required are format, version and stages, and for a stage both times, output_bytes and
  // saved_bytes. The default of output_gradient_bytes is output_bytes, of layers 1, of saves_output
  // and needs_input true, and of everything else 0 or empty. Throws UsageError "FILE:LINE: field:
  // reason".
  static Chain read(const std::filesystem::path& file);
  // The same from memory; `origin` stands for the file in errors.
  static Chain parse(std::string_view json, const std::string& origin = "chain");
  std::string json() const;

  // Throws UsageError for a chain without stages. Throws it with the stage for times or bytes that
  // are negative or not finite, and for saved bytes below those of a saved output.
  void check() const;
};

// -- Schedules

struct ScheduleOp {
  enum class Kind : std::uint8_t {
    kForwardKeep,        // run the stage kept: all that its backward needs stays
    kForwardCheckpoint,  // run it not kept; its input stays
    kForwardDrop,        // run it not kept, and free its input unless something kept holds it
    kBackward,           // run its backward, and free what it saved and its input
    kOffload,            // move what it saved to a store; its output stays for the next stage
    kLoad,               // load that from the store
  };

  Kind kind = Kind::kForwardKeep;
  std::int32_t stage = 0;  // from 0

  bool operator==(const ScheduleOp&) const = default;
};

struct Schedule {
  std::vector<ScheduleOp> ops;
  // How many layers of the model each stage stands for, as ChainStage::layers; empty: one each.
  std::vector<std::int64_t> layers = {};

  bool operator==(const Schedule&) const = default;

  // Reads JSON:
  //   {"format": "reprise schedule", "version": 1, "layers": [1, 1],
  //    "steps": [["keep", 0], ["keep", 1], ["backward", 1], ["backward", 0]]}
  // Each entry of steps is an operation and its stage. The operations are keep, checkpoint, drop,
  // backward, offload and load, in the order of ScheduleOp::Kind. layers may be left out. Throws
  // UsageError "FILE:LINE: field: reason". evaluate() says whether the schedule is valid.
  static Schedule read(const std::filesystem::path& file);
  static Schedule parse(std::string_view json, const std::string& origin = "schedule");
  std::string json() const;
};

struct ScheduleCost {
  Bytes peak;                 // most bytes at once, besides the chain's input
  Seconds time{};             // the whole step, transfers included
  Seconds recompute{};        // beyond each stage's forward and backward once
  Seconds transfer{};         // how long the step waits for transfers
  std::int64_t forwards = 0;  // runs of stages
};

// How fast a store moves bytes.
struct TransferRate {
  double bytes_per_second = 0;  // in each direction; 0: there is no store
};

// Follows the schedule by the chain's figures and returns its exact cost; the step waits for each
// transfer. Throws PlanError for a schedule that is not valid, with the operation and what is
// missing or too much: a stage that runs without its input, a backward that is out of order, left
// out or without what it needs, or an offload without a store.
ScheduleCost evaluate(const Chain& chain, const Schedule& schedule, const TransferRate& store = {});

// The schedule as text: a line a stage, a column an operation. 'K' runs kept, 'c' keeps its
// input, 'd' drops it, 'B' is backward, 'o' offloads, 'l' loads. Between them stands what is in
// memory: '=' kept values, '-' an output alone; and '.' what is in the store. Chains of up to about
// forty stages fit a screen.
std::string picture(const Chain& chain, const Schedule& schedule, const TransferRate& store = {});
// The same as SVG, with the bytes in memory above it.
std::string picture_svg(const Chain& chain, const Schedule& schedule,
                        const TransferRate& store = {});

}  // namespace reprise
