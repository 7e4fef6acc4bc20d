// What `reprise train` says at the end of a call, and the exit code that goes with it.
#pragma once

#include <reprise/budget.h>

#include <cstddef>
#include <nlohmann/json_fwd.hpp>

#include "apps/cli/training/train_options.h"
#include "apps/cli/training/trainer.h"
#include "apps/cli/training/training_loop.h"

namespace reprise::app {

// The closing table, or one JSON object, on stdout; an interruption or a difference that a
// verification found as one line on stderr. Returns the exit code (failure.h).
int report(const TrainOptions& options, const Outcome& outcome, Trainer& trainer);

// The means over so many steps under a budget.
nlohmann::json per_step(const StepReport& sum, std::size_t steps);

}  // namespace reprise::app
