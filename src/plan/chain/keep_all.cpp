// The plain step.
#include <reprise/planners.h>

#include "plan/chain/schedule_builder.h"

namespace reprise::planners {

Schedule keep_all(const Chain& chain, Bytes budget) {
  chain.check();
  return plan::within(chain, plan::segments_of_equal_length(chain, 1), budget, "keep_all");
}

}  // namespace reprise::planners
