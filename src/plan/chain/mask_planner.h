// Masks over the stages of a chain: each stage is kept, or runs again in its backward together with
// its neighbours that are not kept, from the last activation that is there. These are schedules
// without regions inside regions; what fits is found exactly, and so is what costs least among what
// fits, but for long chains.
#pragma once

#include <reprise/chain.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace reprise::plan {

using KeepMask = std::vector<bool>;  // of each stage

// `keep` as it is run: stages at the end that are not kept are, for backward needs them first, and
// running them again would cost a forward and save nothing.
KeepMask as_run(KeepMask keep);

// Of as_run(keep). The mask must be of the chain's length.
Schedule masked_schedule(const Chain& chain, const KeepMask& keep);

class MaskPlanner {
 public:
  // More stages take too long: time and memory grow with their square.
  static constexpr std::int64_t kMostStages = 1000;

  // Throws UsageError for a chain that Chain::check() refuses, or longer than kMostStages.
  explicit MaskPlanner(const Chain& chain);

  // The least budget that a mask fits.
  Bytes least() const { return least_; }

  // The mask that fits and whose stages that are not kept have the least sum of `losses` (zero or
  // above, one for each stage): exactly for small chains; for long ones, where there are too many
  // masks between the smallest and the cheapest, among a spread of some thousand for each stage.
  // None if the budget is below least().
  std::optional<KeepMask> cheapest(Bytes budget, std::span<const double> losses) const;

 private:
  // Bytes beside those that are kept from stages before, the memory of the input included where it
  // is not part of those.
  struct Run {
    std::int64_t forward_peak = 0, backward_peak = 0;
    std::int64_t peak() const { return std::max(forward_peak, backward_peak); }
  };
  struct Kept {
    std::int64_t peak = 0;   // in forward or backward
    std::int64_t stays = 0;  // from the one to the other
  };
  std::int64_t input_of(std::int64_t stage, bool is_apart) const;
  const Run& run(std::int64_t begin, std::int64_t end) const {
    return runs_[static_cast<std::size_t>(begin * stages_ + end - 1)];
  }
  void measure_kept(std::int64_t stage);
  void measure_runs_from(std::int64_t begin);
  bool fits(std::int64_t budget) const;

  Chain chain_;
  std::int64_t stages_ = 0;
  // What the stages after each leave: gradients of their parameters, and the chain's output.
  std::vector<std::int64_t> later_;
  // Of each stage, by whether its input is memory of its own (1) or part of what the stage before
  // keeps (0).
  std::vector<std::array<Kept, 2>> kept_;
  std::vector<Run> runs_;  // of stages [begin, end) that run again, the bytes of their input apart
  Bytes least_;
};

}  // namespace reprise::plan
