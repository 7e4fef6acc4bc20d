// Reads sums and peaks off a timeline, and makes a trace of it that planners read.
#pragma once

#include <reprise/estimate.h>

#include "estimate/timeline.h"

namespace reprise::estimate {

// What an allocator hands out for so many bytes: malloc as the CPU's meter counts it (memory.h), or
// the blocks of CUDA's caching allocator.
std::int64_t handed_out(std::int64_t bytes, c10::DeviceType device);

// The most that one of `shards` devices has of so many bytes.
inline std::int64_t part_of(std::int64_t bytes, std::int64_t shards) {
  return (bytes + shards - 1) / shards;
}

class Account {
 public:
  // `optimizer_state`: of one device, as handed out.
  Account(const Timeline& timeline, const EstimateOptions& options, std::int64_t optimizer_state);

  // All but parameter_count.
  Estimate estimate() const;

 private:
  using What = Timeline::Event::What;

  std::int64_t size(Timeline::Number number) const {
    return sizes_[static_cast<std::size_t>(number)];
  }
  std::int64_t sum_of(Timeline::Role role) const;
  // Throws UsageError where a trace could not hold the step's time.
  void check_time() const;
  // Calls `see(event, level)` for each event of the timeline, with the bytes alive during it.
  template <class See>
  void walk(See&& see) const;
  void add_kept(Estimate& estimate) const;
  void add_peak(Estimate& estimate) const;
  void add_costs(Estimate& estimate) const;

  const Timeline& timeline_;
  const EstimateOptions& options_;
  std::int64_t optimizer_state_;
  std::vector<std::int64_t> sizes_;  // of one device's part, as handed out
};

// What the storages of a timeline went through, as a trace; `sizes` by number.
StepTrace trace_of_timeline(const Timeline& timeline, const std::vector<std::int64_t>& sizes,
                            std::int64_t optimizer_state);

}  // namespace reprise::estimate
