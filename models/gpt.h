// A GPT of any size: the model that the command line trains and the benchmarks measure.
//
// Pre-norm blocks with learned positions (Radford et al., "Language Models are Unsupervised
// Multitask Learners", 2019; initialised as there): x + attention(norm(x)), then x + mlp(norm(x)),
// where the MLP is four times as wide and uses GELU. Dropout follows the embeddings, the attention
// weights and both residual branches. The parts can be run one by one (embed, each block, head),
// which is what a checkpointing strategy needs.
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

struct GptOptions {
  std::int64_t layers = 8;
  std::int64_t width = 256;  // of the residual stream; a multiple of `heads`
  std::int64_t heads = 8;
  std::int64_t context = 128;     // the longest sequence, in tokens
  std::int64_t vocabulary = 256;  // 256: one token a byte
  double dropout = 0.1;           // probability in [0, 1)
  bool fused_attention = true;    // as in transformer.h
  // true, as GPT-2: the head multiplies by the token embedding. false: the head has its own matrix.
  bool tied_head = true;
};

// GPT-2 Medium: 354,823,168 parameters.
GptOptions gpt2_medium();

// Throws UsageError, naming the value and its bound, for a model that cannot be built.
void check(const GptOptions& options);

// One block: [batch, time, width] in and out.
using GptBlock = TransformerBlock;
TransformerOptions block_options(const GptOptions& options);

class GptImpl : public torch::nn::Module {
 public:
  // Weights are drawn from the default CPU generator. Throws UsageError as check() does.
  explicit GptImpl(const GptOptions& options);

  // tokens: int64 [batch, time], time at most `context` (else UsageError). Result: [batch, time,
  // width].
  at::Tensor embed(const at::Tensor& tokens);
  const std::vector<GptBlock>& blocks() const { return blocks_; }
  // [batch, time, width] to logits [batch, time, vocabulary].
  at::Tensor head(const at::Tensor& x);

  // Logits, with the blocks run one after the other.
  at::Tensor forward(const at::Tensor& tokens);
  // Mean cross entropy in nats: next_token_loss(forward(tokens), targets).
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets);

  const GptOptions& options() const { return options_; }

 private:
  GptOptions options_;
  torch::nn::Embedding token_embedding_, position_embedding_;
  std::vector<GptBlock> blocks_;
  torch::nn::LayerNorm final_norm_;
  torch::nn::Linear own_head_{nullptr};
};
TORCH_MODULE(Gpt);

// Mean cross entropy of logits [batch, time, vocabulary] against targets, int64 [batch, time].
at::Tensor next_token_loss(const at::Tensor& logits, const at::Tensor& targets);

}  // namespace reprise::models
