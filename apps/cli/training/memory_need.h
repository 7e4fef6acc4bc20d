// The memory that a run needs. A size that cannot work is refused by its name, before the machine
// is driven out of memory.
#pragma once

#include <c10/core/Device.h>
#include <reprise/bytes.h>
#include <torch/nn/module.h>

#include <string>

#include "apps/cli/training/train_options.h"

namespace reprise::app {

// Bytes of memory that the machine has.
double physical_memory();

// Lower bounds, as doubles because the sizes of a mistyped option overflow any integer.
double parameters_needed(const models::GptOptions& gpt);
double batch_bytes_needed(const RunOptions& options);
// The bytes that a step without checkpointing keeps for backward in all layers together.
double plain_step_bytes_needed(const RunOptions& options);

// Copies of the weights that a comparison holds: the weights, their gradients, and the bits of the
// gradients that are the yardstick.
inline constexpr int kCopiesInComparisons = 3;

// Throws UsageError, naming the options, if the weights or one batch cannot fit. `copies` of the
// weights are kept: themselves, their gradients, and what the optimizer holds.
void check_memory(const RunOptions& options, int copies, c10::Device device);
// The same for the plain steps of options.verify, and for that of a budget that is a share of one.
void check_verification_memory(const TrainOptions& options, c10::Device device);

// Throws UsageError if `limit`, what --budget comes to, is more than this process can have of an
// accelerator: such a budget would hold nothing back before the device is full. `asked`: as it was
// written.
void check_budget_memory(const std::string& asked, Bytes limit, c10::Device device);

// The bytes of a plain training step. A budget in percent is a share of this peak in every command,
// even if the command's own steps lack a part of a training step.
struct TrainingNeed {
  Bytes live;  // before a step: weights, data, AdamW's moments; no gradients
  Bytes peak;  // of the plain step: forward, backward, and the optimizer's update
};

// AdamW's two moments of each weight, which its first step makes.
Bytes moment_bytes(const torch::nn::Module& model);

// `live` is the bytes before the step, without gradients and with the moments. `backward` is the
// most bytes alive in forward and backward, with the moments.
TrainingNeed need_of_training(const torch::nn::Module& model, Bytes live, Bytes backward);

}  // namespace reprise::app
