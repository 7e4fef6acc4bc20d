// The steps of the block benchmarks: a small transformer, plain and with every block as a region.
#pragma once

#include "benchmarks/support/race.h"
#include "blocks.h"

namespace reprise::bench {

enum class BlockStrategy { kPlain, kNonReentrant, kReentrant, kMatmulsKept };

// Forward, backward, and the gradients dropped, so that each step makes its own.
Step block_step(c10::Device device, int count, const BlockShape& shape, BlockStrategy strategy);

// Most megabytes alive at once on the device in a second call of the step, above those before it.
double peak_megabytes(c10::Device device, const Step& step);
// Reports them, beside the peer's step "<bench>/<name>".
void report_peak(Session& session, const std::string& bench, const std::string& name,
                 const Step& step, const Bar& bar);

}  // namespace reprise::bench
