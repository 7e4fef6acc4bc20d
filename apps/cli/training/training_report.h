// What `reprise train` says at the end of a call, and the exit code that goes with it.
#pragma once

#include "apps/cli/commands/options.h"
#include "apps/cli/training/trainer.h"
#include "apps/cli/training/training_loop.h"

namespace reprise::app {

// The closing table, or one JSON object, on stdout; an interruption or a difference that a
// verification found as one line on stderr. Returns the exit code (commands.h).
int report(const TrainOptions& options, const Outcome& outcome, Trainer& trainer);

}  // namespace reprise::app
