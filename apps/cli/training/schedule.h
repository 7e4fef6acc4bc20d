// The learning rate over a run: a straight rise, then half a cosine down to a tenth of the peak.
#pragma once

#include <cstdint>

namespace reprise::app {

struct Schedule {
  double peak = 1e-3;
  std::int64_t warmup = 0;  // steps of the rise; step `warmup` is the first at the peak
  std::int64_t steps = 1;   // of the whole run
  double floor = 0.1;       // the last rate, as a part of the peak

  // step counts from 0; beyond the end the rate stays where it ended.
  double learning_rate(std::int64_t step) const;
};

}  // namespace reprise::app
