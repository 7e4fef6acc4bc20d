// Segments of equal length, so many as are asked for or about the square root of the stages.
#include <reprise/error.h>
#include <reprise/planners.h>

#include <algorithm>
#include <cmath>

#include "plan/chain/schedule_builder.h"

namespace reprise::planners {

Schedule uniform(const Chain& chain, std::int64_t segments, Bytes budget) {
  chain.check();
  const std::int64_t stages = std::ssize(chain.stages);
  if (segments < 1 || segments > stages) {
    throw UsageError("uniform: segments is " + std::to_string(segments) +
                     ", but must be between 1 and the number of stages, " + std::to_string(stages));
  }
  return plan::within(chain, plan::segments_of_equal_length(chain, segments), budget,
                      "uniform:" + std::to_string(segments));
}

Schedule sqrt(const Chain& chain, Bytes budget) {
  chain.check();
  const auto stages = static_cast<double>(chain.stages.size());
  const auto segments = std::max<std::int64_t>(1, std::llround(std::sqrt(stages)));
  return plan::within(chain, plan::segments_of_equal_length(chain, segments), budget, "sqrt");
}

}  // namespace reprise::planners
