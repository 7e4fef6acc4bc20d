// Writes down a step for plan::OnlineRun: what the tape did, in the order in which it did it. Under
// libtorch::limit_mutex().
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>

#include "plan/simulate/online_step.h"
#include "tape/value.h"

namespace reprise::tape {

class StepLog {
 public:
  using Index = plan::OnlineStep::Index;
  static constexpr Index kNone = plan::OnlineStep::kNone;

  explicit StepLog(std::int64_t min_bytes) { step_.min_bytes = min_bytes; }

  // A call begins, at that time without the tape's own. Its number here.
  Index begin(std::span<Value* const> reads, double time);
  // Its kernel has run, beside so many bytes that are in no value, and took so many.
  void ran(Index call, std::int64_t beside, std::int64_t taken);
  void end(Index call) { add(Do::kEnd, call); }
  // A call of which only what it has made was seen.
  Index alone(const Producer& producer, double time);
  // Seconds for that many bytes; of a store below 0 where there is none.
  struct Costs {
    std::function<double(std::int64_t)> pack, store;
  };
  // The call has made the results of `producer`.
  void made(Index call, const Producer& producer, const Costs& costs);
  void overwritten(const Value& value) { add_of(Do::kOverwrite, value); }
  void died(const Value& value) { add_of(Do::kDie, value); }
  void fixed(const Value& value) { add_of(Do::kFix, value); }
  void held(const Value& value) { add_of(Do::kHold, value); }
  void released(const Value& value) { add_of(Do::kRelease, value); }
  // Without a pin.
  void restored(const Value& value) {
    held(value);
    released(value);
  }
  void begin_end() { step_.held.clear(); }
  // At the end, in the order in which they are restored.
  void held_at_end(const Value& value) {
    if (value.logged != kNone) step_.held.push_back(value.logged);
  }
  void ended(std::int64_t beside) { step_.beside_at_end = beside; }

  plan::OnlineStep take() { return std::move(step_); }

 private:
  using Do = plan::OnlineStep::Do;
  void add(Do what, Index subject) { step_.events.push_back({what, subject}); }
  void add_of(Do what, const Value& value) {
    if (value.logged != kNone) add(what, value.logged);
  }

  plan::OnlineStep step_;
  double began_ = 0;
};

}  // namespace reprise::tape
