// The steps of the block benchmarks: a small transformer, plain and with every block as a region.
#pragma once

#include "blocks.h"
#include "race.h"

namespace reprise::bench {

enum class BlockStrategy { kPlain, kNonReentrant, kReentrant };

// Forward, backward, and the gradients dropped, so that each step makes its own.
Step block_step(int count, const BlockShape& shape, BlockStrategy strategy);

}  // namespace reprise::bench
