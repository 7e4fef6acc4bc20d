// What the tests of the lossy tier share: layers whose activations are large enough to be parked.
#pragma once

#include <reprise/experimental/pgac.h>

#include <cmath>

#include "tests/influence/testing.h"

namespace reprise::testing {

// Its activations are larger than LossyOptions::min_bytes.
struct GeluBlockImpl : torch::nn::Module {
  GeluBlockImpl() {
    in = register_module("in", torch::nn::Linear(64, 128));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({128})));
    out = register_module("out", torch::nn::Linear(128, 64));
  }
  at::Tensor forward(const at::Tensor& x) { return out(norm(torch::gelu(in(x)))); }
  torch::nn::Linear in = nullptr, out = nullptr;
  torch::nn::LayerNorm norm = nullptr;
};
TORCH_MODULE(GeluBlock);

inline torch::nn::Sequential gelu_layers(int layers = 6) {
  torch::manual_seed(3);
  torch::nn::Sequential model;
  for (int i = 0; i < layers; ++i) model->push_back(GeluBlock());
  return model;
}

inline at::Tensor wide_sample() {
  torch::manual_seed(4);
  return torch::randn({512, 64}).requires_grad_();
}

inline Tensors step_under(Pgac& pgac, torch::nn::Sequential model, const at::Tensor& sample) {
  return step_of(model, sample, [&](const at::Tensor& x) { return pgac.run(model, x); });
}

// Of the parameters' gradients, which come after the loss and the sample's.
inline double relative_error(const Tensors& a, const Tensors& b) {
  double error = 0, all = 0;
  for (std::size_t i = 2; i < a.size(); ++i) {
    error += (a[i] - b[i]).to(at::kDouble).square().sum().item<double>();
    all += b[i].to(at::kDouble).square().sum().item<double>();
  }
  return std::sqrt(error / all);
}

inline PgacOptions lossy_options(double error, double quantile = 1, double gamma = 2) {
  return {.alpha = 0,
          .quantile = quantile,
          .gamma = GammaSchedule::constant(gamma),
          .lossy = LossyOptions{.gradient_error = error, .min_bytes = KiB(1)}};
}

}  // namespace reprise::testing
