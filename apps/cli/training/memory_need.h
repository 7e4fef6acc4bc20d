// What a run needs at the very least, compared with what the machine has: a size that cannot work
// is refused by its name before the machine is driven out of memory.
#pragma once

#include <c10/core/Device.h>

#include "apps/cli/commands/options.h"

namespace reprise::app {

// Bytes of memory that the machine has.
double physical_memory();

// Lower bounds, as doubles because the sizes of a mistyped option overflow any integer.
double parameters_needed(const models::GptOptions& gpt);
double batch_bytes_needed(const RunOptions& options);
// What a step without checkpointing keeps for backward in all layers together.
double plain_step_bytes_needed(const RunOptions& options);

// Copies of the weights that a comparison holds: the weights, their gradients, and the bits of the
// gradients that are the yardstick.
inline constexpr int kCopiesInComparisons = 3;

// Throws UsageError, naming the options, if the weights or one batch cannot fit. `copies` of the
// weights are kept: themselves, their gradients, and what the optimizer holds.
void check_memory(const RunOptions& options, int copies, c10::Device device);
// The same for the plain steps of options.verify, and for that of a budget that is a share of one.
void check_verification_memory(const TrainOptions& options, c10::Device device);

}  // namespace reprise::app
