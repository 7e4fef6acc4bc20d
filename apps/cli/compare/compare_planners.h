// `reprise compare --planners`: puts the predictions of planners beside measured steps.
//
// The chain is the model's blocks and, as its last stage, head and loss. Schedules run round after
// round beside the plain step. The embedding, outside the chain, is measured once and added to the
// chain's peak. Planners of steps (hindsight, ilp) see the step as the tape records it; their plans
// are predictions alone.
#pragma once

#include "apps/cli/compare/compare_options.h"

namespace reprise::app {

// After check(options). The exit code.
int compare_planners(const CompareOptions& options);

}  // namespace reprise::app
