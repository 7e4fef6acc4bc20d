// `reprise compare --fill-budget`: compares strategies under a limit of memory. Each runs the
// largest batch whose step stays within the same bytes, and samples a second are compared.
#pragma once

#include "apps/cli/compare/compare_options.h"

namespace reprise::app {

// After check(options). The exit code.
int fill_budget(const CompareOptions& options);

}  // namespace reprise::app
