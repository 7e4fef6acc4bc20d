// Bytes of activations a layer, as CUDA's operators save them, beside the formulas of Korthikanti
// et al., arXiv:2205.05198, for s tokens, b sequences, width h and a heads in 16 bits: s b h (34 +
// 5 a s / h), and s b h 34 where attention weights are not stored.
#include <gmock/gmock.h>
#include <reprise/estimate.h>
#include <torch/torch.h>

#include <string>

#include "models/gpt.h"

namespace reprise {
namespace {

struct Sizes {
  std::int64_t batch, time, width, heads;
};

double of_attention_weights(const Sizes& sizes) {
  return 5 * double(sizes.heads * sizes.time) / double(sizes.width);
}

// What one layer more keeps, in units of s b h.
double kept_by_a_layer(const Sizes& sizes, bool fused, double dropout = 0.1) {
  const auto kept = [&](std::int64_t layers) {
    std::optional<models::Gpt> model;
    {
      const MetaTensorsScope unallocated;
      model.emplace(models::GptOptions{.layers = layers,
                                       .width = sizes.width,
                                       .heads = sizes.heads,
                                       .context = sizes.time,
                                       .dropout = dropout,
                                       .fused_attention = fused});
      (*model)->to(at::kBFloat16);
    }
    const auto tokens =
        at::empty({sizes.batch, sizes.time}, at::TensorOptions(at::kLong).device(at::kMeta));
    return estimate_step(**model, [&] { return (*model)->loss(tokens, tokens); },
                         {.device = c10::kCUDA})
        .activations.count;
  };
  return double(kept(3) - kept(2)) / double(sizes.time * sizes.batch * sizes.width);
}

TEST(MegatronFormula, IsThatOfTheUnfusedBlockIn16Bits) {
  // GPT-3's shapes and a smaller one; the second term between a third and all of the first.
  for (const Sizes sizes :
       {Sizes{4, 2048, 12288, 96}, Sizes{2, 1024, 4096, 32}, Sizes{8, 2048, 2048, 16}}) {
    const double expected = 34 + of_attention_weights(sizes);
    EXPECT_NEAR(kept_by_a_layer(sizes, /*fused=*/false) / expected, 1, 0.01)
        << sizes.width << " wide";
  }
}

TEST(MegatronFormula, LosesItsSecondTermWithFusedAttention) {
  const Sizes sizes{4, 2048, 12288, 96};
  // The kernel saves its result, which is also the next layer's input where that lies as it does,
  // and a sum for every row in place of the weights.
  EXPECT_NEAR(kept_by_a_layer(sizes, /*fused=*/true) / 34, 1, 0.01);
}

}  // namespace
}  // namespace reprise
