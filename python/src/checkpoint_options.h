// The options of regions as Python gives them: bits of a number, known to _checkpoint_region.py too.
#pragma once

#include <reprise/checkpoint.h>

namespace reprise::python {

enum CheckpointFlag : long {
  kReentrant = 1,
  kPreserveRandom = 2,
  kEarlyStop = 4,
  kCheckNothing = 8,
  kCheckValues = 16,
  kOwnContexts = 32,  // recomputations run in a context of the program's
  kRespectHooks = 64,
};

// All bits but kRespectHooks, which is selective()'s.
const CheckpointOptions& checkpoint_options(long flags);

}  // namespace reprise::python
