// What a step did, as it was noted while it ran, and what a plan for the next one like it is made
// from: calls in order, the values that each read and made, and the bytes that no plan can free.
//
// Values are numbered in the order in which calls meet them, so that the same step has the same
// numbers. A step is known by its calls: each has a prefix, a hash of what was called on which
// values up to there.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "plan/step/step_graph.h"

namespace reprise::plan {

using ValueNumber = std::uint32_t;
inline constexpr ValueNumber kNoNumber = std::numeric_limits<ValueNumber>::max();

struct StepRecord {
  struct Call {
    std::uint64_t prefix = 0;
    std::int64_t nanoseconds = 0;
    // To run it again takes so long, on memory that is not in the caches any more; below 0: as
    // long.
    std::int64_t again_nanoseconds = -1;
    // While it runs: what is no value of the plan's, and what it takes for itself.
    std::int64_t beside = 0;
    // Of reads and makes, up to here.
    std::uint32_t reads_end = 0, makes_end = 0;
  };
  struct Made {
    ValueNumber value = kNoNumber;
    std::int64_t bytes = 0;
    // It need not be made again: to bring it back from where it goes takes so long; below 0: it has
    // to be made.
    std::int64_t return_nanoseconds = -1;
    // Before that call it became one that cannot be dropped any more.
    std::uint32_t fixed_at = std::numeric_limits<std::uint32_t>::max();
    bool is_fixed() const { return fixed_at != std::numeric_limits<std::uint32_t>::max(); }
  };

  std::vector<Call> calls;
  std::vector<ValueNumber> reads;
  std::vector<Made> makes;
  // There at the end.
  std::vector<ValueNumber> kept;
  std::int64_t beside_at_end = 0;

  std::int64_t nanoseconds() const;  // of all calls, the first time
  std::uint64_t hash() const { return calls.empty() ? 0 : calls.back().prefix; }
  std::span<const ValueNumber> reads_of(std::size_t call) const;
  std::span<const Made> makes_of(std::size_t call) const;
};

// A step's graph, whose storages are the values that a plan may drop.
struct RecordedGraph {
  StepGraph graph;
  std::vector<ValueNumber> values;  // of each storage
  // The call of each operator. What comes back without its operator has one of its own, which reads
  // nothing, behind the one that makes it.
  std::vector<std::uint32_t> calls;
  bool is_own(StepGraph::Index op) const { return op == 0 || calls[op] != calls[op - 1]; }
};

// An operator's time in it is what running it again takes: a plan pays for nothing else.
//
// Where a call was noted to take more than `budget` leaves beside what it reads and makes, it is
// taken to have what is left: the step has run.
RecordedGraph graph_of(const StepRecord& record, std::int64_t budget);

// The next prefix, after a call of that key which reads those values.
class PrefixHash {
 public:
  void add(std::uint64_t part) { state_ = mixed(state_ ^ mixed(part + 1)); }
  std::uint64_t value() const { return state_; }

 private:
  // Spreads bits over all: the finalizer of splitmix64.
  static std::uint64_t mixed(std::uint64_t bits) {
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
    return bits ^ (bits >> 31);
  }

  std::uint64_t state_ = 0;
};

}  // namespace reprise::plan
