// The learning rate over a run: a straight rise, then half a cosine down to a tenth of the peak.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace reprise::app {

struct LearningRate {
  double peak = 1e-3;
  std::int64_t warmup = 0;  // steps of the rise; step `warmup` is the first at the peak
  std::int64_t steps = 1;   // of the whole run
  double floor = 0.1;       // the last rate, as a part of the peak

  // Steps count from 0. Beyond the end the rate stays at its last value.
  double at_step(std::int64_t step) const {
    if (step < warmup) {
      return peak * static_cast<double>(step + 1) / static_cast<double>(warmup + 1);
    }
    const auto way = static_cast<double>(std::max<std::int64_t>(steps - 1 - warmup, 1));
    const double done = std::min(1.0, static_cast<double>(step - warmup) / way);
    const double above_floor = 0.5 * (1 + std::cos(std::numbers::pi * done));
    return peak * (floor + (1 - floor) * above_floor);
  }
};

}  // namespace reprise::app
