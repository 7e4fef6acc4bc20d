// Tensors that cannot be made again, that nobody holds any more, and that replays would read.

#include <torch/torch.h>

#include "tests/tape/testing.h"

namespace reprise {
namespace {

using at::Tensor;
using testing::leaf;
using testing::Tensors;

// Each layer's noise comes from a tensor that dies at once.
struct Noisy {
  Tensors weights{leaf({64, 64}), leaf({64, 64}), leaf({64, 64}),
                  leaf({64, 64}), leaf({64, 64}), leaf({64, 64})};
  Tensor x = at::randn({512, 64});

  Tensor operator()() const {
    Tensor h = x;
    for (const Tensor& weight : weights) {
      h = at::tanh(at::matmul(h, weight));
      h = h * at::bernoulli(at::full_like(h, 0.9));
      h = h + at::randn_like(h);
    }
    return h;
  }
  Tensors gradients() const { return testing::plain_gradients(*this, weights); }
};

TEST(DeadRoots, TakeNothingBeyondThePlainPeakWhereNothingIsDropped) {
  const Noisy network;
  network.gradients();
  Bytes plain_peak;
  {
    const PeakScope scope;
    network.gradients();
    plain_peak = scope.peak_above_start();
  }
  MemoryBudget budget(GiB(64));
  const PeakScope scope;
  testing::gradients_under(budget, network, network.weights);
  EXPECT_LE(scope.peak_above_start().count, plain_peak.count + 8192);
  EXPECT_EQ(budget.report().dropped, 0);
}

TEST(DeadRoots, NeedNoReplaysInABudgetOfThePlainPeak) {
  const Noisy network;
  const Tensors plain = network.gradients();
  MemoryBudget budget(testing::limit_at(1.02, [&] { network.gradients(); }));
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(
        testing::same_bits(testing::gradients_under(budget, network, network.weights), plain));
    EXPECT_EQ(budget.report().replayed, 0);
    EXPECT_LE(budget.report().peak, budget.limit());
  }
}

TEST(DeadRoots, StayWhereSomethingMadeFromThemWasDropped) {
  const Noisy network;
  EXPECT_TRUE(testing::is_right_when_all_is_dropped(network, network.weights));
  const Tensors plain = network.gradients();
  for (const double share : {0.9, 0.75}) {
    MemoryBudget budget(testing::limit_at(share, [&] { network.gradients(); }));
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(
          testing::same_bits(testing::gradients_under(budget, network, network.weights), plain));
      EXPECT_LE(budget.report().peak, budget.limit());
    }
  }
}

// Much is made of it, all too small to be dropped.
TEST(DeadRoots, AreFreedWhereNothingElseCanGo) {
  const at::NoGradGuard no_grad;
  const auto run = [](Tensors& kept) {
    Tensor root = at::ones({256, 1024});
    for (int i = 0; i < 40; ++i) kept.push_back(root.slice(1, i, i + 1).sum(1));
    root = Tensor();
    kept.push_back(at::full({256, 1024}, 2.0));
    kept.push_back(at::full({16, 1024}, 3.0));
  };
  Tensors plain;
  run(plain);
  const Bytes limit = live_bytes() + KiB(1024 + 64 + 256);
  MemoryBudget budget(limit);
  Tensors mine;
  auto step = budget.step();
  run(mine);
  EXPECT_EQ(budget.report().dropped, 0);
  EXPECT_LE(budget.report().peak, limit);
  step.finish();
  EXPECT_TRUE(testing::same_bits(mine, plain));
}

TEST(DeadRoots, AreNotFreedWhileSomethingMadeFromThemIsBroughtBack) {
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(testing::does_the_same_when_all_is_dropped([] {
    Tensors results;
    for (int i = 0; i < 4; ++i) {
      Tensor a = at::exp(at::full({64}, 0.5 + i));
      Tensor b = a.sin();
      a = Tensor();
      b.add_(1);
      results.push_back(b);
      results.push_back(b.cos());
    }
    return results;
  }));
}

}  // namespace
}  // namespace reprise
