// The small transformer that the block benchmarks step through, the twin of peers/blocks.py: the
// same operators in the same order on the same shapes, so that a comparison with Python compares
// frameworks and not models. It is kept apart from models/, which may change for reasons of its
// own.
#pragma once

#include <torch/nn.h>

#include <cstdint>
#include <vector>

namespace reprise::bench {

struct BlockShape {
  std::int64_t width;
  std::int64_t heads;
  std::int64_t length;  // tokens of a sequence
  std::int64_t batch;
  double dropout;
};

// A pre-norm block: unfused attention without a mask, and a GELU network of four times the width.
class BlockImpl : public torch::nn::Module {
 public:
  explicit BlockImpl(const BlockShape& shape);
  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor attend(const at::Tensor& x);
  at::Tensor drop(const at::Tensor& x) const;

  BlockShape shape_;
  torch::nn::LayerNorm norm1_, norm2_;
  torch::nn::Linear qkv_, proj_, up_, down_;
};
TORCH_MODULE(Block);

struct Model {
  std::vector<Block> blocks;
  std::vector<at::Tensor> parameters;
  at::Tensor input;  // [batch, length, width], requires no gradient

  // As an optimizer's zero_grad() does by default: the next step makes new ones.
  void drop_gradients();
};

Model make_model(int count, const BlockShape& shape, c10::Device device = c10::kCPU);

}  // namespace reprise::bench
