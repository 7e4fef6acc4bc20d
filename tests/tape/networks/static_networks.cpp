// Networks that run the same operators in each step.
#include "models/gpt.h"
#include "tests/tape/networks/networks.h"

namespace reprise::testing {
namespace {

namespace nn = torch::nn;
using at::Tensor;

struct Mlp final : Network {
  nn::Sequential layers;
  std::vector<Tensor> x = batches_of([] { return at::randn({64, 32}); });
  std::vector<Tensor> y = batches_of([] { return at::randint(10, {64}); });

  Mlp() {
    for (int i = 0; i < 6; ++i) {
      layers->push_back(nn::Linear(i == 0 ? 32 : 48, 48));
      layers->push_back(nn::GELU());
      layers->push_back(nn::Dropout(0.2));
    }
    layers->push_back(nn::Linear(48, 10));
    register_module("layers", layers);
  }
  Tensor loss(int step) override {
    return at::cross_entropy_loss(layers->forward(batch_of(x, step)), batch_of(y, step));
  }
};

struct Gpt final : Network {
  models::Gpt model{models::GptOptions{.layers = 3,
                                       .width = 32,
                                       .heads = 4,
                                       .context = 16,
                                       .vocabulary = 64,
                                       .dropout = 0.1,
                                       .fused_attention = false}};
  std::vector<Tensor> tokens = batches_of([] { return at::randint(64, {6, 17}); });

  Gpt() { register_module("model", model); }
  Tensor loss(int step) override {
    const Tensor& batch = batch_of(tokens, step);
    return model->loss(batch.narrow(1, 0, 16), batch.narrow(1, 1, 16));
  }
};

// An encoder whose loss is over the masked tokens alone, with padding at the end of sentences.
struct Bert final : Network {
  nn::Embedding words{64, 32}, places{16, 32};
  nn::LayerNorm norm{nn::LayerNormOptions({32})};
  nn::TransformerEncoder encoder{
      nn::TransformerEncoderLayer(
          nn::TransformerEncoderLayerOptions(32, 4).dim_feedforward(64).activation(torch::kGELU)),
      2};
  nn::Linear head{32, 64};
  std::vector<Tensor> tokens = batches_of([] { return at::randint(2, 64, {16, 6}); });
  std::vector<Tensor> masked = batches_of([] { return at::rand({16, 6}) < 0.3; });
  // Nobody attends to the padding at the end.
  Tensor mask = (at::arange(16) >= 13).to(at::kFloat).mul(-1e9).expand({16, 16});

  Bert() {
    register_module("words", words);
    register_module("places", places);
    register_module("norm", norm);
    register_module("encoder", encoder);
    register_module("head", head);
  }
  Tensor loss(int step) override {
    const Tensor hidden = batch_of(tokens, step).masked_fill(batch_of(masked, step), 1);
    const Tensor x = words->forward(hidden) + places->forward(at::arange(16)).unsqueeze(1);
    const Tensor y = encoder->forward(at::dropout(norm->forward(x), 0.1, true), mask);
    const Tensor asked = batch_of(masked, step).flatten().nonzero().squeeze(1);
    const Tensor logits = head->forward(y.flatten(0, 1).index_select(0, asked));
    return at::cross_entropy_loss(logits, batch_of(tokens, step).flatten().index_select(0, asked));
  }
};

struct Vit final : Network {
  nn::Conv2d patches{nn::Conv2dOptions(3, 32, 4).stride(4)};
  Tensor token = register_parameter("token", at::randn({1, 1, 32}));
  Tensor places = register_parameter("places", at::randn({1, 17, 32}) * 0.02);
  nn::ModuleList norms, attentions, outs;
  nn::Linear head{32, 10};
  std::vector<Tensor> x = batches_of([] { return at::randn({6, 3, 16, 16}); });
  std::vector<Tensor> y = batches_of([] { return at::randint(10, {6}); });

  Vit() {
    for (int i = 0; i < 2; ++i) {
      norms->push_back(nn::LayerNorm(nn::LayerNormOptions({32})));
      norms->push_back(nn::LayerNorm(nn::LayerNormOptions({32})));
      attentions->push_back(
          nn::MultiheadAttention(nn::MultiheadAttentionOptions(32, 4).dropout(0.1)));
      outs->push_back(nn::Sequential(nn::Linear(32, 64), nn::GELU(), nn::Linear(64, 32)));
    }
    register_module("patches", patches);
    register_module("norms", norms);
    register_module("attentions", attentions);
    register_module("outs", outs);
    register_module("head", head);
  }
  Tensor loss(int step) override {
    const Tensor& images = batch_of(x, step);
    Tensor h = patches->forward(images).flatten(2).transpose(1, 2);
    h = (at::cat({token.expand({images.size(0), 1, 32}), h}, 1) + places).transpose(0, 1);
    for (std::size_t i = 0; i < 2; ++i) {
      const Tensor n = norms[2 * i]->as<nn::LayerNorm>()->forward(h);
      h = h + std::get<0>(attentions[i]->as<nn::MultiheadAttention>()->forward(n, n, n));
      h = h +
          outs[i]->as<nn::Sequential>()->forward(norms[2 * i + 1]->as<nn::LayerNorm>()->forward(h));
    }
    return at::cross_entropy_loss(head->forward(h.select(0, 0)), batch_of(y, step));
  }
};

nn::Conv2d convolution(int from, int to, int stride = 1) {
  return nn::Conv2d(nn::Conv2dOptions(from, to, 3).stride(stride).padding(1).bias(false));
}

struct ResNet final : Network {
  struct Block : nn::Module {
    nn::Sequential way, shortcut;
    Block(int from, int to, int stride)
        : way(convolution(from, to, stride), nn::BatchNorm2d(to), nn::ReLU(nn::ReLUOptions(true)),
              convolution(to, to), nn::BatchNorm2d(to)) {
      register_module("way", way);
      if (from == to) return;
      shortcut->push_back(nn::Conv2d(nn::Conv2dOptions(from, to, 1).stride(stride)));
      shortcut->push_back(nn::BatchNorm2d(to));
      register_module("shortcut", shortcut);
    }
    Tensor forward(const Tensor& x) {
      Tensor y = way->forward(x);
      y += shortcut->is_empty() ? x : shortcut->forward(x);
      return y.relu_();
    }
  };
  nn::Sequential layers{convolution(3, 16),
                        nn::BatchNorm2d(16),
                        nn::ReLU(),
                        nn::ModuleHolder<Block>(16, 16, 1),
                        nn::ModuleHolder<Block>(16, 16, 1),
                        nn::ModuleHolder<Block>(16, 32, 2)};
  nn::Linear head{32, 10};
  std::vector<Tensor> x = batches_of([] { return at::randn({8, 3, 12, 12}); });
  std::vector<Tensor> y = batches_of([] { return at::randint(10, {8}); });

  ResNet() {
    register_module("layers", layers);
    register_module("head", head);
  }
  Tensor loss(int step) override {
    const Tensor features = at::adaptive_avg_pool2d(layers->forward(batch_of(x, step)), {1, 1});
    return at::cross_entropy_loss(head->forward(features.flatten(1)), batch_of(y, step));
  }
};

struct UNet final : Network {
  nn::Sequential down, middle, up, out;
  nn::ConvTranspose2d widen{nn::ConvTranspose2dOptions(32, 16, 2).stride(2)};
  std::vector<Tensor> x = batches_of([] { return at::randn({4, 1, 12, 12}); });
  std::vector<Tensor> y = batches_of([] { return at::rand({4, 1, 12, 12}).round(); });

  static void add(nn::Sequential& way, int from, int to) {
    way->push_back(convolution(from, to));
    way->push_back(nn::GroupNorm(4, to));
    way->push_back(nn::SiLU());
  }
  UNet() : out(nn::Conv2d(nn::Conv2dOptions(16, 1, 1))) {
    add(down, 1, 16);
    add(down, 16, 16);
    add(middle, 16, 32);
    middle->push_back(nn::Dropout2d(0.1));
    add(up, 32, 16);
    add(up, 16, 16);
    register_module("down", down);
    register_module("middle", middle);
    register_module("up", up);
    register_module("out", out);
    register_module("widen", widen);
  }
  Tensor loss(int step) override {
    const Tensor skip = down->forward(batch_of(x, step));
    const Tensor deep = middle->forward(at::max_pool2d(skip, 2));
    const Tensor wide =
        widen->forward(deep) + at::upsample_nearest2d(deep, {12, 12}).narrow(1, 0, 16);
    const Tensor logits = out->forward(up->forward(at::cat({skip, wide}, 1)));
    return at::binary_cross_entropy_with_logits(logits, batch_of(y, step));
  }
};

}  // namespace

std::vector<NetworkKind> static_networks() {
  return {{"Mlp", make_network<Mlp>},
          {"Gpt", make_network<Gpt>},
          {"Bert", make_network<Bert>, /*reads_values=*/true},
          {"Vit", make_network<Vit>},
          {"ResNet", make_network<ResNet>},
          {"UNet", make_network<UNet>}};
}

}  // namespace reprise::testing
