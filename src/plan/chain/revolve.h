// Binomial checkpointing with a given number of checkpoints; planners::revolve() tries all numbers.
#pragma once

#include <reprise/chain.h>

#include <cstdint>

namespace reprise::plan {

// The binomial schedule that holds at most `checkpoints` outputs at once, the chain's input among
// them. Throws UsageError for fewer than 1, and for more than 5,000 stages.
Schedule revolve_checkpoints(const Chain& chain, std::int64_t checkpoints);

// How many times that schedule runs a stage without keeping it:
// t(l, c) = r l - beta(c + 1, r - 1), where beta(c, r) = (c + r choose c) and r is the least number
// with beta(c, r) >= l. Throws UsageError below 1, and for more than 1,000,000 stages.
std::int64_t revolve_advances(std::int64_t stages, std::int64_t checkpoints);

}  // namespace reprise::plan
