// `reprise plan TRACE`: plans for a step that was recorded, operator by operator.
#pragma once

#include "apps/cli/commands/plan_options.h"

namespace reprise::app {

// Prints what planners find at each budget; the exit code.
int plan_step(const PlanOptions& options);

}  // namespace reprise::app
