// A BERT of any size: the encoder, with a head that guesses masked words or one that classifies.
//
// Devlin, Chang, Lee and Toutanova, "BERT: Pre-training of Deep Bidirectional Transformers",
// arXiv:1810.04805: sums of token, position and segment embeddings, then post-norm blocks in which
// every place attends to all. The head for masked words is a dense layer, GELU, a norm and the
// token embedding as a matrix, with a bias of its own; that for classes a dense layer and tanh of
// the first token ([CLS]), dropout, and a matrix. Next-sentence prediction is left out. All tokens
// are attended to, padding among them. The parts can be run one by one, as those of gpt.h.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <vector>

#include "models/transformer.h"

namespace reprise::models {

struct BertOptions {
  std::int64_t layers = 8;
  std::int64_t width = 128;  // a multiple of `heads`
  std::int64_t heads = 4;
  std::int64_t context = 128;  // the longest sequence, in tokens
  std::int64_t vocabulary = 260;
  std::int64_t segments = 2;     // kinds of segment, such as the first text and the second
  double dropout = 0.1;          // probability in [0, 1)
  bool fused_attention = false;  // as in transformer.h
  // true, as BERT: the head for masked words multiplies by the token embedding. false: it has its own
  // matrix.
  bool tied_head = true;
  // 0: the head for masked words. Otherwise the head that tells so many classes apart, at least 2.
  std::int64_t classes = 0;
};

// BERT-Base, uncased: 109,514,298 parameters with the head for masked words, 109,483,778 with that
// for two classes.
BertOptions bert_base();

// Throws UsageError, naming the value and its bound, for a model that cannot be built.
void check(const BertOptions& options);

class BertImpl : public torch::nn::Module {
 public:
  // Weights are drawn from the default CPU generator: N(0, 0.02²), as there. Throws UsageError as
  // check() does.
  explicit BertImpl(const BertOptions& options);

  // tokens: int64 [batch, time], time at most `context` (else UsageError); segments: the same
  // shape, each below options().segments, or undefined: all 0. Result: [batch, time, width].
  at::Tensor embed(const at::Tensor& tokens, const at::Tensor& segments = {});
  const std::vector<TransformerBlock>& blocks() const { return blocks_; }
  // [..., width] to logits: [..., vocabulary], or [batch, classes] of [batch, time, width].
  at::Tensor head(const at::Tensor& x);
  // Mean cross entropy in nats of what embed() and the blocks made. targets: of masked words, int64
  // [batch, time], the word where one was masked and kNotMasked elsewhere; the head runs at those
  // places alone, and UsageError if there are none. Of classes: int64 [batch].
  at::Tensor head_loss(const at::Tensor& x, const at::Tensor& targets);

  // Logits, with the blocks run one after the other.
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& segments = {});

  const BertOptions& options() const { return options_; }

  static constexpr std::int64_t kNotMasked = -100;

 private:
  BertOptions options_;
  torch::nn::Embedding token_embedding_, position_embedding_, segment_embedding_;
  torch::nn::LayerNorm embedding_norm_;
  std::vector<TransformerBlock> blocks_;
  torch::nn::Linear head_dense_;
  torch::nn::LayerNorm head_norm_{nullptr};
  torch::nn::Linear own_head_{nullptr};
  at::Tensor vocabulary_bias_;
  torch::nn::Linear classifier_{nullptr};
};
TORCH_MODULE(Bert);

}  // namespace reprise::models
