// `reprise plan --pipeline`: the timeline of a pipeline's schedule, before anything is run.
#pragma once

#include "apps/cli/commands/plan_options.h"

namespace reprise::app {

// Prints time, bubble, activations and timeline, and writes the files; returns the exit code.
int plan_pipeline(const PlanOptions& options);

}  // namespace reprise::app
