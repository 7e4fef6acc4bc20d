// Steps of a chain of unlike layers, for the tests of schedules and of profiles.
#pragma once

#include <reprise/memory.h>
#include <torch/torch.h>

#include "tests/region/testing.h"

namespace reprise::testing {

// Layers of different sizes, with what must not be run differently: dropout, running statistics,
// activations in place.
inline torch::nn::Sequential chain_network(std::int64_t blocks = 4) {
  torch::manual_seed(3);
  torch::nn::Sequential model;
  for (std::int64_t i = 0; i < blocks; ++i) {
    const std::int64_t width = i % 2 == 0 ? 256 : 64;
    model->push_back(torch::nn::Linear(64, width));
    model->push_back(torch::nn::BatchNorm1d(width));
    model->push_back(torch::nn::ReLU(torch::nn::ReLUOptions(/*inplace=*/true)));
    model->push_back(torch::nn::Linear(width, 64));
    model->push_back(torch::nn::Dropout(0.3));
    model->push_back(torch::nn::Tanh());
  }
  return model;
}

inline at::Tensor chain_sample() {
  torch::manual_seed(5);
  return at::randn({512, 64});
}

struct Outcome {
  Tensors tensors;  // the loss, all gradients, all buffers
  Bytes peak;       // above what is live before
};

// A training step; all starts at the same state.
template <class F>
Outcome chain_step(torch::nn::Sequential model, F&& run) {
  const at::Tensor x = chain_sample();
  for (at::Tensor& buffer : model->buffers()) buffer.zero_();
  model->zero_grad();
  torch::manual_seed(7);
  Outcome outcome;
  {
    const PeakScope peak;
    // Backward begins with a gradient of the output's size, and the caller holds the output.
    const at::Tensor y = run(x);
    at::Tensor loss = (y * 2).sum();
    loss.backward();
    outcome.peak = peak.peak_above_start();
    outcome.tensors.push_back(loss.detach());
  }
  for (const at::Tensor& parameter : model->parameters()) {
    outcome.tensors.push_back(parameter.grad().clone());
  }
  for (const at::Tensor& buffer : model->buffers()) outcome.tensors.push_back(buffer.clone());
  return outcome;
}

inline Outcome plain_chain_step(torch::nn::Sequential model) {
  return chain_step(model, [&](const at::Tensor& x) { return model->forward(x); });
}

}  // namespace reprise::testing
