// A Vision Transformer of any size: an image as a sequence of patches.
//
// Dosovitskiy et al., "An Image is Worth 16x16 Words", arXiv:2010.11929: a convolution whose stride
// is its size makes a vector of each patch, a learned one for the class goes before them, learned
// positions are added, and pre-norm blocks follow in which every place attends to all; the head
// reads the place of the class. Dropout as in transformer.h, and after the positions. The parts can
// be run one by one, as those of gpt.h.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <vector>

#include "models/transformer.h"

namespace reprise::models {

struct VitOptions {
  std::int64_t layers = 8;
  std::int64_t width = 64;  // a multiple of `heads`
  std::int64_t heads = 4;
  std::int64_t image = 8;        // height and width, in pixels; a multiple of `patch`
  std::int64_t channels = 1;     // 1: grey, 3: red, green and blue
  std::int64_t patch = 2;        // height and width, in pixels
  std::int64_t classes = 10;     // at least 2
  double dropout = 0.1;          // probability in [0, 1)
  bool fused_attention = false;  // as in transformer.h
};

// ViT-B/16: 86,567,656 parameters.
VitOptions vit_base();

// Throws UsageError, naming the value and its bound, for a model that cannot be built.
void check(const VitOptions& options);

class VitImpl : public torch::nn::Module {
 public:
  // Weights are drawn from the default CPU generator after the program of the paper's authors:
  // matrices uniformly after Glorot and Bengio, 2010, the convolution from N(0, 1 / its inputs),
  // positions from N(0, 0.02²), biases and the class's vector zero. But not the head's matrix, for
  // zeros there would leave the blocks without gradients in the first step. Throws UsageError as
  // check() does.
  explicit VitImpl(const VitOptions& options);

  // images: floats [batch, channels, image, image] (else UsageError). Result: [batch, 1 + patches,
  // width], of which the first place is the class's.
  at::Tensor embed(const at::Tensor& images);
  const std::vector<TransformerBlock>& blocks() const { return blocks_; }
  // [batch, 1 + patches, width] to logits [batch, classes].
  at::Tensor head(const at::Tensor& x);

  // Logits, with the blocks run one after the other.
  at::Tensor forward(const at::Tensor& images);

  const VitOptions& options() const { return options_; }

 private:
  void initialise();

  VitOptions options_;
  torch::nn::Conv2d patches_;
  at::Tensor class_token_, positions_;
  std::vector<TransformerBlock> blocks_;
  torch::nn::LayerNorm final_norm_;
  torch::nn::Linear head_;
};
TORCH_MODULE(Vit);

}  // namespace reprise::models
