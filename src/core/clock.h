// The one clock that durations are measured with.
#pragma once

#include <reprise/bytes.h>

#include <chrono>

namespace reprise {

// Runs from its construction on. The clock is steady: setting the system's time does not disturb
// it.
class Stopwatch {
 public:
  Stopwatch() : start_(Clock::now()) {}

  Seconds elapsed() const { return Clock::now() - start_; }

  // The time since construction or the last restart; starts again from zero.
  Seconds restart() {
    Clock::time_point now = Clock::now();
    Seconds elapsed = now - start_;
    start_ = now;
    return elapsed;
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_;
};

}  // namespace reprise
