// Bytes that regions with named policies keep and take, beside the plain step's, in the blocks of
// every model.
#include <gmock/gmock.h>
#include <reprise/checkpoint.h>
#include <reprise/memory.h>
#include <reprise/selective.h>

#include <functional>
#include <string>
#include <vector>

#include "models/bert.h"
#include "models/gpt.h"
#include "models/vit.h"

namespace reprise::models {
namespace {

struct Used {
  Bytes kept;  // between forward and backward
  Bytes peak;
};

// A step of blocks, each a region unless there is no policy.
Used step(const std::vector<TransformerBlock>& blocks, const at::Tensor& x,
          const OperatorPolicy* policy) {
  CheckpointOptions options;
  if (policy != nullptr) options.context = selective(*policy);
  for (const TransformerBlock& block : blocks) {
    for (at::Tensor& parameter : block->parameters()) {
      parameter.mutable_grad() = at::zeros_like(parameter);
    }
  }
  torch::manual_seed(5);
  Used used;
  const PeakScope peak;
  const Bytes before = live_bytes();
  at::Tensor y = x;
  for (const TransformerBlock& block : blocks) {
    y = policy != nullptr ? checkpoint(options, block.ptr(), y) : block.ptr()->forward(y);
  }
  const at::Tensor loss = y.sum();
  used.kept = live_bytes() - before;
  loss.backward();
  used.peak = peak.peak_above_start();
  return used;
}

struct NamedPolicy {
  const char* name;
  OperatorPolicy policy;
};

std::vector<NamedPolicy> named_policies() {
  return {{"save_matmuls", save_matmuls()},
          {"save_all_but_cheap", save_all_but_cheap()},
          {"recompute_attention", recompute_attention()},
          {"save_all_but", save_all_but({"_softmax", "gelu", "add", "mul", "div", "clone"})},
          {"save_largest_cost_per_byte", save_largest_cost_per_byte(KiB(512))},
          {"every_nth", every_nth("addmm", 2)}};
}

void expect_no_more_than_plain(const std::string& model,
                               const std::vector<TransformerBlock>& blocks, const at::Tensor& x) {
  const Used plain = step(blocks, x, nullptr);
  for (const auto& [name, policy] : named_policies()) {
    const Used found = step(blocks, x, &policy);
    EXPECT_LE(found.kept, plain.kept) << model << ", " << name;
    EXPECT_LE(found.peak, plain.peak) << model << ", " << name;
  }
}

TEST(SelectiveBytes, NoNamedPolicyTakesMoreThanThePlainStep) {
  for (const double dropout : {0.0, 0.1}) {
    for (const bool fused : {false, true}) {
      const std::string how = " with dropout " + std::to_string(dropout) + (fused ? ", fused" : "");
      const Gpt gpt(GptOptions{.layers = 4,
                               .width = 64,
                               .heads = 4,
                               .context = 128,
                               .dropout = dropout,
                               .fused_attention = fused});
      expect_no_more_than_plain("gpt" + how, gpt->blocks(), at::randn({4, 128, 64}));
      const Bert bert(BertOptions{
          .layers = 4, .width = 64, .heads = 4, .dropout = dropout, .fused_attention = fused});
      expect_no_more_than_plain("bert" + how, bert->blocks(), at::randn({4, 128, 64}));
      const Vit vit(VitOptions{
          .layers = 4, .width = 64, .heads = 4, .dropout = dropout, .fused_attention = fused});
      expect_no_more_than_plain("vit" + how, vit->blocks(), at::randn({32, 17, 64}));
    }
  }
}

TEST(SelectiveBytes, AttentionsCoreIsNotKept) {
  // Korthikanti et al., arXiv:2205.05198, table 2: without the core a block keeps 34 s b h bytes at
  // two bytes an element and one an element of a dropout mask, of which there are two outside of
  // the core; so 16 s b h elements and the masks.
  constexpr std::int64_t kTime = 1024, kWidth = 256, kHeads = 4, kBatch = 2, kBlocks = 3;
  constexpr std::int64_t kElements = kBatch * kTime * kWidth;
  const Bytes formula(kBlocks * (16 * 4 * kElements + 2 * kElements));
  // Softmax, its mask and what the mask leaves, at four, one and four bytes.
  const Bytes core(kBlocks * 9 * kBatch * kHeads * kTime * kTime);
  for (const bool causal : {true, false}) {
    std::vector<TransformerBlock> blocks;
    for (std::int64_t i = 0; i < kBlocks; ++i) {
      blocks.emplace_back(TransformerOptions{
          .width = kWidth, .heads = kHeads, .causal = causal, .fused_attention = false});
    }
    // The result is there too, which the next block would count as its input.
    const at::Tensor x = at::randn({kBatch, kTime, kWidth});
    const OperatorPolicy policy = recompute_attention();
    const Used found = step(blocks, x, &policy);
    EXPECT_LE(static_cast<double>(found.kept.count), 1.05 * static_cast<double>(formula.count))
        << causal;
    EXPECT_GE(step(blocks, x, nullptr).kept, found.kept + core) << causal;
  }
}

}  // namespace
}  // namespace reprise::models
