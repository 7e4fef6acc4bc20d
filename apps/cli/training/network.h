// The model that the options ask for, on its device, with its blocks as layers for a strategy. What
// the commands have in common, down to one forward and backward.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <reprise/chain.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "apps/cli/io/figures.h"
#include "apps/cli/training/batches.h"
#include "apps/cli/training/pipelined/pipelined_model.h"
#include "apps/cli/training/run_options.h"
#include "models/gpt.h"
#include "models/strategy.h"

namespace reprise::app {

class Network {
 public:
  // Seeds all default generators with options.seed and draws the weights.
  Network(const RunOptions& options, c10::Device device);

  // The mean loss of a batch, its graph built under the strategy, which must be prepared.
  at::Tensor loss(const Batch& batch, const models::Strategy& strategy);
  // Runs backward from `scale` times the loss, outside autocast; returns the loss without its
  // graph.
  at::Tensor run_backward(const Batch& batch, const models::Strategy& strategy, double scale = 1.0);
  // The same of the layers as a chain under a schedule, whose last stage is chain()'s last.
  at::Tensor run_backward(const Batch& batch, const Schedule& schedule);
  // The layers, and as the last function the head and the loss: what planners see of the model.
  std::vector<TensorFunction> chain(const at::Tensor& targets);
  // The input of that chain.
  at::Tensor embed(const at::Tensor& tokens);
  // The parts of a step. For a pipeline the head must have a matrix of its own.
  ModelParts parts();
  // Logits without a graph, [batch, time, vocabulary] in f32.
  at::Tensor logits(const at::Tensor& tokens);

  // Each layer is called through `wrapper`, which may watch it.
  void wrap_layers(const std::function<models::Layer(models::Layer)>& wrapper);

  models::Gpt& model() { return model_; }
  c10::Device device() const { return device_; }
  void describe(Facts& facts) const;

 private:
  RunOptions options_;
  c10::Device device_;
  models::Gpt model_;
  models::Layers layers_;
};

// "f32 on cpu with 2 threads".
std::string describe_machine(const RunOptions& options, c10::Device device);

// XXH3 of all parameters' bytes: equal for runs that are equal bit for bit.
std::uint64_t hash_parameters(const torch::nn::Module& model);

}  // namespace reprise::app
