// What it takes to bring values back, as a budget learns it over its steps.
//
// The least time of a call's first runs says little of that: what a replay reads and writes has
// left the caches by then, and the program's other threads and steps have them. And how fast
// packing is depends on the machine. Both are known only once they were done, so both are measured
// when they are, with little trust in a single measurement, which holds whatever else the machine
// did meanwhile.
//
// Where a budget does not learn nothing is measured: calls cost what they took, and packing what it
// takes on some machine.
//
// Under libtorch::limit_mutex().
#pragma once

#include <cstdint>

#include "libtorch/operators/recorded_call.h"

namespace reprise::tape {

class ReplayCosts {
 public:
  using Learnt = libtorch::CallForm::Learnt;

  // What tests say that replays and packing take, whatever the machine does meanwhile.
  struct Given {
    double seconds_a_replay;
    double packed_bytes_a_second;
  };
  // While it lives, costs that are made go by what is given, and measure nothing. One at a time.
  class GivenScope {
   public:
    explicit GivenScope(const Given& given);
    ~GivenScope();
    GivenScope(const GivenScope&) = delete;
    GivenScope& operator=(const GivenScope&) = delete;

   private:
    const Given given_;
  };

  explicit ReplayCosts(bool learns);
  ReplayCosts(const ReplayCosts&) = delete;
  ReplayCosts& operator=(const ReplayCosts&) = delete;

  // Whether calls cost anything else than what their first runs took.
  bool differ_from_first_runs() const { return source_ != Source::kFirstRuns; }

  // Of running again a call that took `first` seconds and touches so many bytes. As long as no call
  // of its form was run again, by how much slower others were for their bytes, within bounds.
  double seconds(const Learnt& learnt, double first, std::int64_t bytes) const;
  // Such a call was run again, and took `seconds`.
  void replayed(Learnt& learnt, double first, std::int64_t bytes, double seconds);

  // In and out again.
  double seconds_to_pack(std::int64_t bytes) const;
  void packed(std::int64_t bytes, double seconds);
  void unpacked(std::int64_t bytes, double seconds);
  // Something was made again because packing takes longer, as far as is known. That is not measured
  // meanwhile, and may be wrong by now: it counts less and less.
  void declined_packing();

 private:
  // Seconds a byte, in which what was measured last counts most.
  class Rate {
   public:
    void add(double seconds, std::int64_t bytes);
    // The next measurement counts more, and until then the rate slowly becomes less.
    void fade();
    bool is_known() const { return bytes_ > 0; }
    double per_byte() const { return is_known() ? seconds_ / bytes_ : 0; }
    double of(std::int64_t bytes) const { return per_byte() * static_cast<double>(bytes); }

   private:
    double seconds_ = 0;
    double bytes_ = 0;
  };

  double most_of_packing(const Rate& rate, std::int64_t bytes) const;

  enum class Source : std::uint8_t { kFirstRuns, kMeasured, kGiven };

  Source source_;
  double seconds_a_replay_ = 0;   // where it is given
  double packed_bytes_a_second_;  // until packing was measured
  // By which replays are longer than first runs, as far as is known.
  Rate slower_;
  Rate in_, out_;
};

}  // namespace reprise::tape
