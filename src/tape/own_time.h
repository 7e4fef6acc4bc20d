// Time that a thread spends on the tape's own work: making room, bringing values back. It passes
// inside of operators too, in their allocations, and is none of what they cost.
#pragma once

#include <cstdint>

#include "core/clock.h"
#include "core/ticks.h"

namespace reprise::tape {

class OwnTime {
 public:
  // By both clocks that operators are measured with.
  struct Spent {
    std::int64_t ticks;
    double seconds;
  };
  // Of this thread, ever.
  static Spent spent() { return total; }
  // By the tape's clock (Tape::now()).
  static double seconds() {
    return static_cast<double>(total.ticks) / (kTicksPerMicrosecond * 1e6);
  }

  // For the kernels of tests, which must not depend on the machine's load: what this thread does is
  // taken to last that much longer than it does.
  static void pretend(Seconds longer) {
    total.ticks -= static_cast<std::int64_t>(longer.count() * kTicksPerMicrosecond * 1e6);
    total.seconds -= longer.count();
  }

  // While it lives, the time is the tape's own. What begins and ends meanwhile is part of it, and
  // shows to whom it interrupts.
  OwnTime() : before_(total), start_(ticks()) {}
  ~OwnTime() {
    total = {before_.ticks + static_cast<std::int64_t>(ticks() - start_),
             before_.seconds + watch_.elapsed().count()};
  }
  OwnTime(const OwnTime&) = delete;
  OwnTime& operator=(const OwnTime&) = delete;

 private:
  inline static thread_local Spent total{0, 0};
  const Spent before_;
  const std::uint64_t start_;
  const Stopwatch watch_;
};

// Seconds without that.
class WorkWatch {
 public:
  double seconds() const {
    return watch_.elapsed().count() - (OwnTime::spent().seconds - before_.seconds);
  }

 private:
  const OwnTime::Spent before_ = OwnTime::spent();
  const Stopwatch watch_;
};

}  // namespace reprise::tape
