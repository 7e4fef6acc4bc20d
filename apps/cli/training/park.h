// --park: the store of a byte budget, for values whose transfer takes less time than their replay.
#pragma once

#include <c10/core/Device.h>
#include <reprise/budget.h>
#include <reprise/store.h>

#include <memory>
#include <optional>
#include <string>

#include "apps/cli/training/run_options.h"

namespace reprise::app {

// Throws UsageError for anything but "disk=DIR" and, for budgets on an accelerator, "host". Says why
// "host" and "memory" are of no use to a budget on the CPU.
void check_park(const std::string& park, c10::Device device);

// Null if there is to be none. Throws UsageError as above, and StoreError if there can be no file
// in the folder.
std::shared_ptr<Store> open_park(const std::optional<std::string>& park, c10::Device device);

// The options of all budgets of a run on that device.
BudgetOptions budget_options(const RunOptions& options, std::shared_ptr<Store> store,
                             c10::Device device);

}  // namespace reprise::app
