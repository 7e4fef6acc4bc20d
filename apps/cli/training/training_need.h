// What a plain training step needs, of which a budget in percent is a share: in every command the
// same, whatever that command's own steps leave out of a training step.
#pragma once

#include <reprise/bytes.h>
#include <torch/nn/module.h>

namespace reprise::app {

struct TrainingNeed {
  Bytes live;  // before a step: weights, data, AdamW's moments; no gradients
  Bytes peak;  // of the plain step: forward, backward, and the optimizer's update
};

// AdamW's two moments of each weight, which its first step makes.
Bytes moment_bytes(const torch::nn::Module& model);

// `live`: before the step, without gradients, with the moments. `backward`: the most bytes alive
// in forward and backward, with the moments.
TrainingNeed need_of_training(const torch::nn::Module& model, Bytes live, Bytes backward);

}  // namespace reprise::app
