// What the tests of influence and PGAC share: a model of six unlike layers, and its plain step.
#pragma once

#include <reprise/experimental/pgac.h>
#include <reprise/memory.h>
#include <torch/torch.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/region/testing.h"

namespace reprise::testing {

// || gradient * activation ||_2 in double precision.
inline double plain_influence(const at::Tensor& gradient, const at::Tensor& activation) {
  return (gradient.to(at::kDouble) * activation.to(at::kDouble)).norm().item<double>();
}

// Dropout, running statistics, a residual block.
struct ResidualImpl : torch::nn::Module {
  explicit ResidualImpl(std::int64_t width) {
    inner = register_module("inner", torch::nn::Linear(width, width));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    dropout = register_module("dropout", torch::nn::Dropout(0.2));
  }
  at::Tensor forward(const at::Tensor& x) { return x + dropout(torch::gelu(inner(norm(x)))); }
  torch::nn::Linear inner = nullptr;
  torch::nn::LayerNorm norm = nullptr;
  torch::nn::Dropout dropout = nullptr;
};
TORCH_MODULE(Residual);

inline torch::nn::Sequential six_layers(std::int64_t width = 24) {
  torch::manual_seed(11);
  return torch::nn::Sequential(torch::nn::Linear(width, 2 * width),
                               torch::nn::BatchNorm1d(2 * width),
                               torch::nn::Linear(2 * width, width), Residual(width),
                               torch::nn::Dropout(0.3), Residual(width));
}

inline at::Tensor sample_of(std::int64_t width = 24, std::int64_t rows = 64) {
  torch::manual_seed(12);
  return at::randn({rows, width});
}

// Loss, gradients and buffers of a step that begins at the same state; x requires grad.
template <class Run>
Tensors step_of(torch::nn::Sequential model, const at::Tensor& sample, Run&& run) {
  for (at::Tensor& buffer : model->buffers()) buffer.zero_();
  model->zero_grad();
  torch::manual_seed(13);
  at::Tensor x = sample.detach().clone().requires_grad_();
  at::Tensor loss = run(x).square().mean();
  loss.backward();
  Tensors results{loss.detach(), x.grad()};
  for (const at::Tensor& parameter : model->parameters())
    results.push_back(parameter.grad().clone());
  for (const at::Tensor& buffer : model->buffers()) results.push_back(buffer.clone());
  return results;
}

}  // namespace reprise::testing
