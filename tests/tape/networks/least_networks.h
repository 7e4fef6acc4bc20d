// Small networks whose least bytes depend on different things: chains, residual
// blocks, skips over a part of the network, unrolled loops.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "models/gpt.h"

namespace reprise::testing {

// A model with its data.
struct Trained {
  std::shared_ptr<torch::nn::Module> model;
  std::function<at::Tensor()> loss;
};

inline torch::nn::Conv2d convolution_of_3(int from, int to) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(from, to, 3).padding(1).bias(false));
}

inline Trained convolutions() {
  torch::nn::Sequential layers;
  for (int i = 0; i < 6; ++i) {
    layers->push_back(convolution_of_3(i == 0 ? 3 : 12, 12));
    layers->push_back(torch::nn::BatchNorm2d(12));
    layers->push_back(torch::nn::ReLU(torch::nn::ReLUOptions(true)));
  }
  const at::Tensor x = at::randn({8, 3, 32, 32}), y = at::randint(12, {8});
  return {layers.ptr(), [layers, x, y]() mutable {
            return at::cross_entropy_loss(layers->forward(x).mean({2, 3}), y);
          }};
}

inline Trained autoencoder(int rows = 512) {
  torch::nn::Sequential layers;
  for (const auto& [from, to] : {std::pair{128, 96}, {96, 48}, {48, 96}, {96, 128}}) {
    layers->push_back(torch::nn::Linear(from, to));
    layers->push_back(torch::nn::GELU());
  }
  const at::Tensor x = at::rand({rows, 128});
  return {layers.ptr(), [layers, x]() mutable { return at::mse_loss(layers->forward(x), x); }};
}

inline Trained gpt() {
  models::Gpt model(models::GptOptions{.layers = 4,
                                       .width = 64,
                                       .heads = 4,
                                       .context = 32,
                                       .vocabulary = 64,
                                       .dropout = 0.1,
                                       .fused_attention = false});
  const at::Tensor text = at::randint(64, {8, 33});
  return {model.ptr(), [model, text]() mutable {
            return model->loss(text.narrow(1, 0, 32), text.narrow(1, 1, 32));
          }};
}

inline Trained lstm() {
  struct Model : torch::nn::Module {
    torch::nn::LSTM cells{torch::nn::LSTMOptions(64, 96).num_layers(2).dropout(0.1)};
    torch::nn::Linear head{96, 64};
    Model() {
      register_module("cells", cells);
      register_module("head", head);
    }
  };
  const auto model = std::make_shared<Model>();
  const at::Tensor x = at::randn({12, 64, 64}), y = at::randint(64, {12 * 64});
  return {model, [model, x, y] {
            const at::Tensor hidden = std::get<0>(model->cells->forward(x));
            return at::cross_entropy_loss(model->head->forward(hidden).flatten(0, 1), y);
          }};
}

inline Trained unet() {
  struct Model : torch::nn::Module {
    torch::nn::Sequential down, middle, up;
    torch::nn::ConvTranspose2d widen{torch::nn::ConvTranspose2dOptions(32, 16, 2).stride(2)};
    torch::nn::Conv2d out{torch::nn::Conv2dOptions(16, 1, 1)};
    static void add(torch::nn::Sequential& way, int from, int to) {
      way->push_back(convolution_of_3(from, to));
      way->push_back(torch::nn::GroupNorm(4, to));
      way->push_back(torch::nn::SiLU());
    }
    Model() {
      add(down, 1, 16);
      add(down, 16, 16);
      add(middle, 16, 32);
      add(middle, 32, 32);
      middle->push_back(torch::nn::Dropout2d(0.1));
      add(up, 32, 16);
      add(up, 16, 16);
      register_module("down", down);
      register_module("middle", middle);
      register_module("up", up);
      register_module("widen", widen);
      register_module("out", out);
    }
    at::Tensor forward(const at::Tensor& x) {
      const at::Tensor skip = down->forward(x);
      const at::Tensor deep = middle->forward(at::max_pool2d(skip, 2));
      return out->forward(up->forward(at::cat({skip, widen->forward(deep)}, 1)));
    }
  };
  const auto model = std::make_shared<Model>();
  const at::Tensor x = at::randn({4, 1, 32, 32}), y = at::rand({4, 1, 32, 32}).round();
  return {model,
          [model, x, y] { return at::binary_cross_entropy_with_logits(model->forward(x), y); }};
}

struct TrainedKind {
  const char* name;
  Trained (*make)();
};

inline std::vector<TrainedKind> trained() {
  return {{"convolutions", convolutions},
          {"autoencoder", [] { return autoencoder(); }},
          {"gpt", gpt},
          {"lstm", lstm},
          {"unet", unet}};
}

}  // namespace reprise::testing
