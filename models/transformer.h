// The block that GPT-2, BERT and ViT are stacks of, and what building such a model takes besides.
//
// Attention and an MLP four times as wide, each with a residual branch around it (Vaswani et al.,
// arXiv:1706.03762, section 3.1). The models differ in where the norms stand, in what a place may
// attend to, and in the form of GELU; those are options. Dropout follows the attention weights and
// both branches.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace reprise::models {

// pre: x + f(norm(x)), as GPT-2 and ViT. post: norm(x + f(x)), as BERT.
enum class NormPlace { kPre, kPost };

// kTanh: the approximation 0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³))), as GPT-2. kExact: x Φ(x).
enum class Gelu { kTanh, kExact };

struct TransformerOptions {
  std::int64_t width = 256;  // of the residual stream; a multiple of `heads`
  std::int64_t heads = 8;
  double dropout = 0.1;  // probability in [0, 1)
  // true: a place attends to itself and those before it. false: to all.
  bool causal = true;
  NormPlace norm = NormPlace::kPre;
  double norm_epsilon = 1e-5;  // added to the variance
  Gelu gelu = Gelu::kTanh;
  // true: at::scaled_dot_product_attention, which never stores the [time, time] weights where
  // LibTorch has a fused kernel (on the CPU: with dropout 0). false: matmul, mask, softmax,
  // dropout, matmul, whose activations grow with the square of the time; the case that
  // checkpointing helps most.
  bool fused_attention = true;
};

// Throws UsageError, naming the value and its bound, for a block that cannot be built.
void check(const TransformerOptions& options);
// The same for one size of a model, called `name` in the text: at least 1, at most 2^20.
void check_size(const char* name, std::int64_t value);
// Throws UsageError for a sequence that is longer than a model's context.
void check_length(std::int64_t time, std::int64_t context);

// [batch, time, width] in and out.
class TransformerBlockImpl : public torch::nn::Module {
 public:
  // Throws UsageError as check() does.
  explicit TransformerBlockImpl(const TransformerOptions& options);
  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor attend(const at::Tensor& x);
  at::Tensor fused_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);
  at::Tensor unfused_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);
  at::Tensor drop(const at::Tensor& x) const;
  // The two residual branches, without norms.
  at::Tensor attention_branch(const at::Tensor& x);
  at::Tensor mlp_branch(const at::Tensor& x);

  TransformerOptions options_;
  torch::nn::LayerNorm attention_norm_, mlp_norm_;
  torch::nn::Linear qkv_, attention_out_, mlp_in_, mlp_out_;
};
TORCH_MODULE(TransformerBlock);

// The deviation that GPT-2 and BERT draw weights with, and ViT its positions.
inline constexpr double kInitialDeviation = 0.02;

// Draws the parameters anew, from the default CPU generator: matrices and larger tensors from
// N(0, 0.02²), those that write to the residual stream (named *_out.weight) with `branch_deviation`
// instead; biases are zero; the scales of norms stay as they are.
void draw_weights(torch::nn::Module& model, double branch_deviation = kInitialDeviation);

// The number of trained values of a module.
std::int64_t parameter_count(const torch::nn::Module& module);

}  // namespace reprise::models
