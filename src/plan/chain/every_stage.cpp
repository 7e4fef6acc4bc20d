// Each stage a region, but for the last.
#include <reprise/planners.h>

#include "plan/chain/schedule_builder.h"

namespace reprise::planners {

Schedule every_stage(const Chain& chain, Bytes budget) {
  chain.check();
  return plan::within(chain, plan::segments_of_equal_length(chain, std::ssize(chain.stages)),
                      budget, "every_stage");
}

}  // namespace reprise::planners
