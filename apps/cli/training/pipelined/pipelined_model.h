// A model whose steps run through a pipeline, and the yardstick of such a step: the same micro-batches
// one after another, without a pipeline. Both come to the same gradients, bit for bit.
//
// The layers are the embedding and the blocks. What follows the last block, up to the loss, belongs
// to the last stage.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <reprise/checkpoint.h>
#include <reprise/pipeline.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "apps/cli/training/pipelined/model_layer.h"
#include "apps/cli/training/pipelined/pipeline_choice.h"
#include "models/strategy.h"

namespace reprise::app {

// A step as functions. No two of them may share a parameter.
struct ModelParts {
  torch::nn::Module* model = nullptr;
  models::Layer first;
  models::Layers blocks = {};
  std::vector<std::string> block_names;  // in `model`
  // The mean loss of what the last block made.
  Pipeline::Loss loss;
};

// The names of a model's blocks, in their order.
template <class Block>
std::vector<std::string> names_of_blocks(const torch::nn::Module& model,
                                         const std::vector<Block>& blocks) {
  std::vector<std::string> names;
  for (const Block& block : blocks) {
    for (const auto& child : model.named_children()) {
      if (child.value() == block.ptr()) names.push_back(child.key());
    }
  }
  return names;
}

class PipelinedModel {
 public:
  // The choice must have been checked for the model. `input` is a mini-batch, from whose first
  // micro-batch the balance is measured. Random state stays as it is. Each worker has its share of
  // the caller's threads.
  PipelinedModel(const PipelineChoice& choice, const ModelParts& parts, const at::Tensor& input,
                 c10::Device device, const CheckpointOptions& regions);

  // Forward and backward of `scale` times the mean loss, which is returned. Gradients accumulate.
  at::Tensor step(const at::Tensor& input, const at::Tensor& target, double scale = 1);
  // The same without the pipeline.
  at::Tensor plain_step(const at::Tensor& input, const at::Tensor& target, double scale = 1);

  std::int64_t workers() const { return static_cast<std::int64_t>(schedule_.workers.size()); }
  // Shows the last step().
  PipelineTimeline timeline() const { return pipeline_.timeline(); }
  // "1f1b: stages of 3, 4 layers on 2 workers with 1 thread each, 7 of 8 micro-batches checkpointed".
  std::string describe() const;
  nlohmann::json json() const;

 private:
  PipelineOptions options(const PipelineChoice& choice, c10::Device device,
                          const CheckpointOptions& regions) const;
  Pipeline::Loss scaled_loss(double scale) const;

  const PipelineSchedule schedule_;
  const std::int64_t checkpoint_stop_;
  const int threads_;  // of each worker
  const Pipeline::Loss loss_;
  std::vector<ModelLayer> layers_;
  std::vector<std::int64_t> balance_;
  Pipeline pipeline_;
};

}  // namespace reprise::app
