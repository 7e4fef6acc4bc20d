// The steps of the block benchmarks: a small transformer, plain and with every block as a region.
#pragma once

#include "benchmarks/support/race.h"
#include "blocks.h"

namespace reprise::bench {

enum class BlockStrategy { kPlain, kNonReentrant, kReentrant, kMatmulsKept };

// Forward, backward, and the gradients dropped, so that each step makes its own.
Step block_step(int count, const BlockShape& shape, BlockStrategy strategy);

// Reports the most megabytes alive at once in a step above those before it, beside the peer's step
// "<bench>/<name>".
void report_peak(Session& session, const std::string& bench, const std::string& name,
                 const Step& step, const Bar& bar);

}  // namespace reprise::bench
