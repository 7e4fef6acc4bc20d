// The formula of schedule.h.
#include "apps/cli/training/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace reprise::app {

double Schedule::learning_rate(std::int64_t step) const {
  if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup + 1);
  const auto way = static_cast<double>(std::max<std::int64_t>(steps - 1 - warmup, 1));
  const double done = std::min(1.0, static_cast<double>(step - warmup) / way);
  const double above_floor = 0.5 * (1 + std::cos(std::numbers::pi * done));
  return peak * (floor + (1 - floor) * above_floor);
}

}  // namespace reprise::app
