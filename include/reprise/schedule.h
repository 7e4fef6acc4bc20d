// A schedule: what a training step of a chain (reprise/chain.h) does, in order. Schedules are data:
// planners (reprise/plan.h) make them, check() proves them and says what they cost, and
// checkpoint_sequential() (reprise/checkpoint_sequential.h) runs them.
#pragma once

#include <reprise/chain.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace reprise {

struct ChainStep {
  enum class Do : std::uint8_t {
    kForwardKeep,        // runs the stage kept: all that its backward needs stays
    kForwardCheckpoint,  // runs it not kept; its input stays
    kForwardDrop,        // runs it not kept; its input goes, where nothing kept holds it
    kBackward,           // runs its backward; what was kept of it goes, and its input
    kOffload,            // moves what it saved to a store; its output stays for the next stage
    kLoad,               // brings that back
  };

  Do what = Do::kForwardKeep;
  std::int32_t stage = 0;  // from 0

  bool operator==(const ChainStep&) const = default;
};

struct Schedule {
  std::vector<ChainStep> steps;
  // Of the model, that each stage stands for, as ChainStage::layers; empty: one each.
  std::vector<std::int64_t> layers = {};

  bool operator==(const Schedule&) const = default;

  // Reads JSON:
  //   {"format": "reprise schedule", "version": 1, "layers": [1, 1],
  //    "steps": [["keep", 0], ["keep", 1], ["backward", 1], ["backward", 0]]}
  // where a step is keep, checkpoint, drop, backward, offload or load, in the order of
  // ChainStep::Do, and a stage; layers may be left out. Throws UsageError "FILE:LINE: field:
  // reason". Whether it is valid, check() says.
  static Schedule read(const std::filesystem::path& file);
  static Schedule parse(std::string_view json, const std::string& origin = "schedule");
  std::string json() const;
};

struct ScheduleCost {
  Bytes peak;                                 // most bytes at once, beside the chain's input
  std::chrono::duration<double> time{};       // of everything, transfers included
  std::chrono::duration<double> recompute{};  // beyond each stage forward and backward once
  std::chrono::duration<double> transfer{};   // that the step waits for
  std::int64_t forwards = 0;                  // of stages
};

// How fast a store takes and gives.
struct TransferRate {
  double bytes_per_second = 0;  // each way; 0: there is no store
};

// Follows the schedule by the chain's figures. Transfers are waited for. Throws PlanError, naming
// the step and what is missing or too much, if the schedule is not valid: a stage that runs without
// its input, a backward out of order or without what it needs, one that is left out, an offload
// without a store.
ScheduleCost check(const Chain& chain, const Schedule& schedule, const TransferRate& store = {});

// Text, a line a stage and a column a step: 'K' kept, 'c' its input stays, 'd' its input goes,
// 'B' backward, 'o' to the store, 'l' back; between them what is in memory: '=' what was kept, '-'
// an output alone, '.' what is in the store. Chains of up to some forty stages fit a screen.
std::string picture(const Chain& chain, const Schedule& schedule, const TransferRate& store = {});
// The same as SVG, with the bytes in memory over it.
std::string picture_svg(const Chain& chain, const Schedule& schedule,
                        const TransferRate& store = {});

}  // namespace reprise
