// --park: the store of a byte budget, for values whose transfer takes less time than their replay.
#pragma once

#include <reprise/budget.h>
#include <reprise/store.h>

#include <memory>
#include <optional>
#include <string>

#include "apps/cli/training/run_options.h"

namespace reprise::app {

// Throws UsageError for anything but "disk=DIR", and says of "host" and "memory" why they are of no
// use to a budget on the CPU.
void check_park(const std::string& park);

// Null if there is to be none. Throws UsageError as above, and StoreError if there can be no file
// in the folder.
std::shared_ptr<Store> open_park(const std::optional<std::string>& park);

// The options of all budgets of a run.
BudgetOptions budget_options(const RunOptions& options, std::shared_ptr<Store> store);

}  // namespace reprise::app
