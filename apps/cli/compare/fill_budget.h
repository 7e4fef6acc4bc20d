// `reprise compare --fill-budget`: what a strategy is worth where memory is what limits. Each runs
// the largest batch whose step stays within the same bytes, and samples a second are compared.
#pragma once

#include "apps/cli/commands/options.h"

namespace reprise::app {

// After check(options). The exit code.
int fill_budget(const CompareOptions& options);

}  // namespace reprise::app
