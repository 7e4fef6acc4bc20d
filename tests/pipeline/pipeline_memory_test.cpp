// The exact meter tells what stages hold between their actions.
#include <reprise/memory.h>

#include <map>

#include "tests/pipeline/testing.h"

namespace reprise::pipeline {
namespace {

constexpr std::int64_t kWidth = 64, kRows = 4096, kBlocks = 4;
constexpr std::int64_t kActivation = kWidth * kRows * static_cast<std::int64_t>(sizeof(float));
// Parameters, their gradients and small things.
constexpr std::int64_t kSmall = kActivation / 4;

// Linear saves its input, which its weight gradient needs. GELU saves its own, which it does not.
torch::nn::Sequential gelu_blocks() {
  torch::nn::Sequential model;
  for (std::int64_t i = 0; i < kBlocks; ++i) {
    model->push_back(torch::nn::Linear(kWidth, kWidth));
    model->push_back(torch::nn::GELU());
  }
  return model;
}

// Bytes above those live before the step, after each action of the second of two stages, which one
// worker runs. Its micro-batches are checkpointed or not.
std::map<std::string, std::int64_t> bytes_after_actions(bool checkpointed, const char* table) {
  torch::manual_seed(1);
  const auto layers = gelu_blocks();
  torch::nn::Sequential model(torch::nn::Linear(kWidth, kWidth));
  model->extend(*layers);
  std::map<std::string, std::int64_t> bytes;
  std::int64_t before = 0;
  PipelineOptions options{.balance = {1, 2 * kBlocks},
                          .devices = {c10::kCPU},
                          .custom_schedule = PipelineSchedule::parse_csv(table)};
  options.chunks = options.custom_schedule.micro_batches;
  options.checkpoint_stop = checkpointed ? options.chunks : 0;
  options.on_event = [&](const PipelineEvent& event) {
    const std::string name = to_string(event.action) + (event.recompute ? " recompute" : "");
    bytes[name] = live_bytes().count - before;
  };
  Pipeline pipe(model, options);
  const at::Tensor x = torch::randn({kRows * options.chunks, kWidth});
  const auto loss = [](const at::Tensor& y, const at::Tensor&) { return y.sum(); };
  pipe.step(x, x, loss);  // makes the gradients of parameters
  bytes.clear();
  before = live_bytes().count;
  pipe.step(x, x, loss);
  return bytes;
}

// pytorch #136766: with recomputation, what the input gradients needed stayed until the weight
// gradients were made.
TEST(PipelineMemory, WhatOnlyInputGradientsNeedIsFreedBeforeTheWeightGradients) {
  for (const char* table : {"0F0,1F0,1I0,1W0,0B0", "0F0,1F0,1I0,0B0,1W0"}) {
    auto kept = bytes_after_actions(false, table);
    auto recomputed = bytes_after_actions(true, table);
    const std::int64_t all = recomputed.at("1I0 recompute"), left = recomputed.at("1I0");
    // An input and an output of each Linear, and the gradients of the stage's output and loss.
    EXPECT_GT(all, 2 * kBlocks * kActivation) << table;
    // An input of each Linear, the gradient of its output, and that of the stage's input.
    EXPECT_LE(left, (2 * kBlocks + 1) * kActivation + kSmall) << table;
    EXPECT_LE(left, kept.at("1I0") + kSmall) << table;
    EXPECT_LE(recomputed.at("1W0"), 2 * kActivation + kSmall) << table;
  }
}

// The same with weight gradients that come late, as zero-bubble schedules have them: nothing that
// grows with the micro-batches but what weight gradients need.
TEST(PipelineMemory, LateWeightGradientsHoldNoMoreThanWithoutRecomputation) {
  const char* const table = "0F0,0F1,0F2,1F0,1F1,1F2,1I0,1I1,1I2,0B0,0B1,0B2,1W0,1W1,1W2";
  const auto kept = bytes_after_actions(false, table);
  const auto recomputed = bytes_after_actions(true, table);
  for (const char* action : {"1I0", "1I1", "1I2", "1W0", "1W1", "1W2"}) {
    EXPECT_LE(recomputed.at(action), kept.at(action) + kSmall) << action;
  }
  // An input of each Linear, and the gradient of its output.
  EXPECT_LE(recomputed.at("1W0") - recomputed.at("1W1"), 2 * kBlocks * kActivation + kSmall);
}

}  // namespace
}  // namespace reprise::pipeline
