// One run of `reprise train` under a method: it trains, logs every step, and prints what came of it.
#pragma once

#include <cstdint>
#include <string>

#include "apps/cli/training/train_options.h"

namespace reprise::app {

struct MethodRun {
  std::string method;
  std::string log;  // a file; empty: there is none
  std::int64_t patch = 2;
};

// `options` must be checked. Returns the exit code (commands.h). Throws UsageError for data that
// cannot be used, and BudgetError for a budget that the method cannot keep.
int train_under_method(const TrainOptions& options, const MethodRun& run);

}  // namespace reprise::app
