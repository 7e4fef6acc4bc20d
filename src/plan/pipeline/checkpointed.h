// The bound of checkpoint_stop, which lives and simulations check alike.
#pragma once

#include <reprise/error.h>

#include <cstdint>
#include <string>

namespace reprise::plan {

inline void check_checkpoint_stop(const char* function, std::int64_t checkpoint_stop) {
  if (checkpoint_stop >= 0) return;
  throw UsageError(std::string(function) + ": checkpoint_stop is " +
                   std::to_string(checkpoint_stop) +
                   "; it must be at least 0, which checkpoints no micro-batch");
}

}  // namespace reprise::plan
