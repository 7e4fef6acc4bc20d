// The tests of pipelines share these models, and a plain loop over the same micro-batches.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <reprise/pipeline.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/refusal.h"

namespace reprise::pipeline {

using Loss = std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;

inline at::Tensor square_loss(const at::Tensor& output, const at::Tensor& target) {
  return torch::mse_loss(output, target);
}

// Linear, tanh, dropout, in place, with a normalization: `blocks` times five layers.
inline torch::nn::Sequential blocks_of(std::int64_t blocks, bool draws = true) {
  torch::nn::Sequential model;
  for (std::int64_t i = 0; i < blocks; ++i) {
    model->push_back(torch::nn::Linear(8, 8));
    model->push_back(torch::nn::ReLU(torch::nn::ReLUOptions(true)));
    model->push_back(torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})));
    model->push_back(torch::nn::Dropout(draws ? 0.3 : 0.0));
    model->push_back(torch::nn::Tanh());
  }
  return model;
}

struct Outcome {
  at::Tensor loss;
  std::vector<at::Tensor> gradients, buffers;
};

inline Outcome outcome_of(torch::nn::Sequential model, at::Tensor loss) {
  Outcome outcome{std::move(loss), {}, {}};
  for (const at::Tensor& parameter : model->parameters()) {
    outcome.gradients.push_back(parameter.grad().defined() ? parameter.grad().clone()
                                                           : at::Tensor());
  }
  for (const at::Tensor& buffer : model->buffers()) outcome.buffers.push_back(buffer.clone());
  model->zero_grad();
  return outcome;
}

inline void expect_same(const Outcome& a, const Outcome& b, const std::string& what) {
  if (a.loss.defined() && b.loss.defined()) {
    EXPECT_TRUE(at::equal(a.loss, b.loss)) << what;
  }
  ASSERT_EQ(a.gradients.size(), b.gradients.size()) << what;
  for (std::size_t i = 0; i < a.gradients.size(); ++i) {
    ASSERT_EQ(a.gradients[i].defined(), b.gradients[i].defined()) << what << ", gradient " << i;
    if (a.gradients[i].defined()) {
      EXPECT_TRUE(at::equal(a.gradients[i], b.gradients[i])) << what << ", gradient " << i;
    }
  }
  for (std::size_t i = 0; i < a.buffers.size(); ++i) {
    EXPECT_TRUE(at::equal(a.buffers[i], b.buffers[i])) << what << ", buffer " << i;
  }
}

// Runs the layers on a micro-batch as a pipeline with that seed would, without one.
inline at::Tensor run_layers(torch::nn::Sequential model, at::Tensor x, std::uint64_t seed,
                             std::int64_t micro_batch) {
  std::int64_t index = 0;
  for (auto& layer : *model) {
    const DrawsOfLayer draws(seed, micro_batch, index++);
    x = layer.forward<at::Tensor>(x);
  }
  return x;
}

// The micro-batches in the order in which their gradients reach the parameters, which is that of
// all stages.
inline std::vector<std::int64_t> backward_order(const PipelineSchedule& schedule) {
  std::vector<std::vector<std::int64_t>> orders(static_cast<std::size_t>(schedule.stages));
  for (const auto& worker : schedule.workers) {
    for (const PipelineSlot& slot : worker) {
      for (const PipelineAction& action : slot) {
        if (action.work != PipelineWork::kBackward &&
            action.work != PipelineWork::kWeightGradient) {
          continue;
        }
        orders[static_cast<std::size_t>(action.stage)].push_back(action.micro_batch);
      }
    }
  }
  for (const auto& order : orders) EXPECT_EQ(order, orders.front());
  return orders.front();
}

// The plain step: each micro-batch through all layers and then backward, in that order.
inline Outcome plain_step(const torch::nn::Sequential& model, const at::Tensor& x,
                          const at::Tensor& target, std::int64_t chunks,
                          const std::vector<std::int64_t>& order) {
  const std::uint64_t seed = seed_of_pipeline();
  const auto inputs = x.chunk(chunks);
  const auto targets = target.chunk(chunks);
  std::vector<at::Tensor> losses;
  std::vector<double> weights;
  at::Tensor loss;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    weights.push_back(static_cast<double>(inputs[i].size(0)) / static_cast<double>(x.size(0)));
    const at::Tensor output = run_layers(model, inputs[i], seed, static_cast<std::int64_t>(i));
    losses.push_back(square_loss(output, targets[i]));
    const at::Tensor value = losses.back().detach() * weights.back();
    loss = loss.defined() ? loss + value : value;
  }
  for (const std::int64_t micro_batch : order) {
    const auto i = static_cast<std::size_t>(micro_batch);
    losses[i].backward(torch::full_like(losses[i], weights[i]));
  }
  return outcome_of(model, loss);
}

}  // namespace reprise::pipeline
