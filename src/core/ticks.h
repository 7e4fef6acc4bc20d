// A clock for comparing short stretches of time with each other, read in some eight nanoseconds:
// the processor's time-stamp counter where there is one (it runs at the processor's nominal
// frequency, two to four ticks a nanosecond), else the steady clock.
#pragma once

#include <chrono>
#include <cstdint>

namespace reprise {

inline std::uint64_t ticks() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch() /
                                    std::chrono::nanoseconds(1)) *
         3;
#endif
}

// About this many ticks pass in a microsecond; right within a factor of 1.5 on present processors.
inline constexpr std::uint64_t kTicksPerMicrosecond = 2800;

}  // namespace reprise
