// A step as a tape has seen it: what it took, in what order, and what can be made again from what.
// With that it can be run again in arithmetic, in fewer bytes than it had (online_run.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace reprise::plan {

// A walk from value to value ends there: by then a value is dear enough to stay. Chains of dropped
// values are as long as a step.
constexpr std::size_t kMostWalked = 64;

struct OnlineStep {
  using Index = std::uint32_t;
  static constexpr Index kNone = std::numeric_limits<Index>::max();

  // The contents of a storage that a recorded call has made. What no such call has made is never
  // dropped and is no value here.
  struct Value {
    std::int64_t size = 0;   // as scores count it
    std::int64_t bytes = 0;  // handed out for it
    double own_cost = 0;     // seconds, as scores count them
    float weight = 1;
    // Of the bits that it is packed to; 0: it is not packed.
    std::int64_t packed_bytes = 0;
    double pack_seconds = 0;
    // To move it to a store and back; below 0: there is none.
    double store_seconds = -1;
  };
  struct Input {
    enum class Use : std::uint8_t { kRead, kUpdate, kScratch };
    Index value = kNone;  // kNone: no value, or scratch
    std::int64_t bytes = 0;
    Use use = Use::kRead;
  };
  struct Output {
    Index value = kNone;
    bool is_written = false;  // in memory that the call was given
  };
  // An operator call of the program.
  struct Call {
    double time = 0;  // seconds since the step began, without those of the tape's own work
    // While its kernel runs: live bytes that are in no value, or in one below `min_bytes`, and what
    // it takes at its worst moment, results included.
    std::int64_t beside = 0;
    std::int64_t taken = 0;
    Index reads_end = 0;
  };
  // A call that can be run again.
  struct Producer {
    Index call = 0;
    std::uint64_t form = 0;  // the same for calls whose seconds are known together
    double again = 0;        // seconds
    Index inputs_end = 0;
    Index outputs_end = 0;
  };
  enum class Do : std::uint8_t {
    kBegin,      // a call: its reads are restored and pinned
    kRun,        // its kernel
    kMake,       // a producer: its outputs hold what was made
    kEnd,        // a call: its reads are pinned no more
    kOverwrite,  // a value: its storage holds something else from now on
    kDie,        // a value: its storage is gone
    kFix,        // a value: it cannot be dropped any more
    kHold,       // a value: restored, and pinned until it is released
    kRelease,
  };
  struct Event {
    Do what;
    Index subject;
  };

  std::vector<Value> values;
  std::vector<Index> reads;
  std::vector<Call> calls;
  std::vector<Input> inputs;
  std::vector<Output> outputs;
  std::vector<Producer> producers;
  std::vector<Event> events;
  // Held at the end, in the order in which they are restored there.
  std::vector<Index> held;
  std::int64_t beside_at_end = 0;
  std::int64_t min_bytes = 0;  // smaller values are not dropped

  std::span<const Index> reads_of(Index call) const {
    return part(reads, call == 0 ? 0 : calls[call - 1].reads_end, calls[call].reads_end);
  }
  std::span<const Input> inputs_of(Index producer) const {
    return part(inputs, producer == 0 ? 0 : producers[producer - 1].inputs_end,
                producers[producer].inputs_end);
  }
  std::span<const Output> outputs_of(Index producer) const {
    return part(outputs, producer == 0 ? 0 : producers[producer - 1].outputs_end,
                producers[producer].outputs_end);
  }

 private:
  template <class T>
  static std::span<const T> part(const std::vector<T>& all, Index begin, Index end) {
    return std::span(all).subspan(begin, end - begin);
  }
};

}  // namespace reprise::plan
