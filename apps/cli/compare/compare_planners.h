// `reprise compare --planners`: what planners predict of a step, beside what it then takes.
//
// The chain is the model's blocks and, as its last stage, head and loss; schedules are run, round
// after round, beside the plain step. What lies around the chain (the embedding) is measured once
// and added to its peak. Planners of steps (hindsight, ilp) see the step as the tape records it;
// their plans are predictions alone.
#pragma once

#include "apps/cli/commands/options.h"

namespace reprise::app {

// After check(options). The exit code.
int compare_planners(const CompareOptions& options);

}  // namespace reprise::app
