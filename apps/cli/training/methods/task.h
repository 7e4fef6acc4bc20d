// A model with its data, as the methods of `reprise train --method` train it: what runs before the
// blocks, the blocks, and what runs after them up to the loss. A task knows nothing of
// checkpointing. The same options give the same weights and batches, so methods can be compared.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli/training/pipelined/pipelined_model.h"
#include "apps/cli/training/train_options.h"
#include "models/strategy.h"

namespace reprise::app {

// On the task's device.
struct TaskBatch {
  at::Tensor input, target;
  std::int64_t units = 0;  // tokens or images of `input`
};

struct Task {
  std::string model;              // "BERT, 8 layers of width 256, 8 heads: 6.4 M parameters"
  std::string data;               // what it is, how much, and where it is from
  std::string units;              // "tokens" or "images"
  std::uint64_t fingerprint = 0;  // of the data: the same wherever the data lies

  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const at::Tensor& input)> first;
  models::Layers blocks;
  std::vector<std::string> block_names;  // in `module`
  // The mean cross entropy of what the last block made, in nats.
  std::function<at::Tensor(const at::Tensor& last, const at::Tensor& target)> loss;
  // Logits of classes, from what the last block made; empty where words are guessed.
  std::function<at::Tensor(const at::Tensor& last)> classify;

  // Batch number `step`, from 0. It depends on the seed and the number alone, and draws nothing
  // from LibTorch's generators.
  std::function<TaskBatch(std::int64_t step)> batch;
  std::vector<TaskBatch> held_out;
};

struct TaskOptions {
  RunOptions run;
  std::int64_t patch = 2;  // of vit: height and width, in pixels
};

// Draws the weights after seeding LibTorch's default generators. Throws UsageError for data that
// is missing, unreadable or too little, and for a shape that the model or the data does not allow.
Task make_text_task(const TaskOptions& options, c10::Device device);   // gpt, bert
Task make_image_task(const TaskOptions& options, c10::Device device);  // vit
Task make_task(const TaskOptions& options, c10::Device device);

struct Validation {
  double loss = 0;
  std::optional<double> accuracy;  // the share of examples whose class is right
};

// Over the held-out batches, without dropout and without a graph. The module's mode stays.
Validation validate(const Task& task);

// Moves the model to the device and takes its blocks.
template <class Model>
void use(Task& task, const Model& model, c10::Device device) {
  task.module = model.ptr();
  task.module->to(device);
  task.block_names = names_of_blocks(*task.module, model->blocks());
  for (const auto& block : model->blocks()) {
    task.blocks.push_back([block = block.ptr()](const at::Tensor& x) { return block->forward(x); });
  }
}

}  // namespace reprise::app
