// A budget as a part of what the device has.
#include <reprise/error.h>
#include <reprise/memory_budget.h>

#include <string>
#include <utility>

#include "core/machine_memory.h"
#include "libtorch/memory/accelerator_device.h"

namespace reprise {

MemoryBudget MemoryBudget::fraction_of_device(double fraction, BudgetOptions options) {
  // Not a number is refused, too.
  if (!(fraction > 0 && fraction <= 1)) {
    throw UsageError("MemoryBudget: the fraction of the device is " + std::to_string(fraction) +
                     "; it must be above 0 and at most 1");
  }
  const bool is_cpu = options.device.is_cpu();
  const auto all = static_cast<double>(
      is_cpu ? machine_memory() : libtorch::AcceleratorDevice(options.device).total());
  return MemoryBudget(Bytes(static_cast<std::int64_t>(fraction * all)), std::move(options));
}

}  // namespace reprise
