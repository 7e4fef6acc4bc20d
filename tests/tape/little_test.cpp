// Values that are too small to be dropped: nothing is recorded of what makes them, and what is
// dropped around them comes back all the same.

#include <torch/torch.h>

#include "tape/value.h"
#include "tests/tape/testing.h"

namespace reprise {
namespace {

using at::Tensor;
using testing::leaf;
using testing::Tensors;

TEST(Little, NothingIsRecordedOfWhatMakesNothingWorthDropping) {
  MemoryBudget budget(GiB(64));
  const Tensor small = torch::ones({16});
  const auto step = budget.step();
  Tensor first = small.exp();
  const std::int64_t records = tape::living_records();
  EXPECT_GT(records, 0);
  std::vector<Tensor> more;
  for (int i = 0; i < 10; ++i) {
    more.push_back(small.exp());
    more.push_back(torch::dropout(more.back(), 0.5, /*train=*/true));
  }
  // Of the dropout's operators, the first time each is met.
  EXPECT_LT(tape::living_records(), records + 16);
  EXPECT_GT(budget.report().operators, 20);
}

TEST(Little, WhatMakesMuchOfLittleIsRecorded) {
  MemoryBudget budget(GiB(64), {.min_bytes = KiB(4), .paranoid = true});
  const Tensor small = torch::rand({64});
  for (int i = 0; i < 3; ++i) {
    auto step = budget.step();
    const Tensor large = torch::outer(small.exp(), small);
    EXPECT_TRUE(torch::equal(large, torch::outer(small.exp(), small)));
    step.finish();
    EXPECT_GT(budget.report().replayed, 0);
  }
}

// Normalization by small statistics, a small tensor that is changed in place, small ones that die
// before what was made of them is dropped: all of it in every step anew.
Tensor mixed(const Tensor& x, const Tensor& scale) {
  const Tensor mean = x.mean(1);
  const Tensor spread = ((x - mean.unsqueeze(1)).square().mean(1) + 1e-5).sqrt();
  Tensor factor = (scale * 2).tanh();
  const Tensor before = x * factor.detach();
  factor = factor.clone().mul_(spread.mean());
  const Tensor after = (x - mean.unsqueeze(1)) / spread.unsqueeze(1) * factor;
  return torch::dropout(before.tanh() + after.tanh(), 0.2, /*train=*/true) * torch::rand({64});
}

TEST(Little, GradientsAreThePlainOnes) {
  const Tensor x = leaf({64, 64});
  const Tensor scale = leaf({64});
  const auto f = [&] { return mixed(x, scale); };
  const Tensors plain = testing::plain_gradients(f, {x, scale});
  for (const bool verify : {false, true}) {
    MemoryBudget budget(GiB(64), {.min_bytes = KiB(1), .verify = verify, .paranoid = true});
    for (int i = 0; i < 4; ++i) {
      EXPECT_TRUE(testing::same_bits(testing::gradients_under(budget, f, {x, scale}), plain)) << i;
      EXPECT_GT(budget.report().replayed, 0);
    }
  }
}

TEST(Little, ASmallTensorThatIsChangedLaterIsReadAsItWas) {
  MemoryBudget budget(GiB(64), {.min_bytes = KiB(1), .paranoid = true});
  const Tensor x = torch::rand({64, 64});
  for (int i = 0; i < 3; ++i) {
    auto step = budget.step();
    Tensor small = torch::ones({64}).exp();
    const Tensor large = x * small;
    small.mul_(2);
    small.copy_(torch::zeros({64}));
    const Tensor expected = x * torch::ones({64}).exp();
    EXPECT_TRUE(torch::equal(large, expected)) << i;
    step.finish();
  }
}

// What replays need of small tensors that died stays; but not any number of bytes.
TEST(Little, WhatStaysForReplaysIsBounded) {
  MemoryBudget budget(GiB(64), {.min_bytes = KiB(8), .paranoid = true});
  const Tensor x = torch::rand({1000});
  Bytes live;
  for (int i = 0; i < 2; ++i) {
    auto step = budget.step();
    const Bytes before = live_bytes();
    std::vector<Tensor> large;
    for (int k = 0; k < 400; ++k) {
      const Tensor small = x.exp();
      large.push_back(torch::cat({small, small, small}));
    }
    live = live_bytes() - before;
    for (const Tensor& each : large) ASSERT_TRUE(torch::equal(each.slice(0, 0, 1000), x.exp()));
    step.finish();
  }
  // Of 1.6 MB.
  EXPECT_GT(live, KiB(200));
  EXPECT_LT(live, KiB(300));
}

}  // namespace
}  // namespace reprise
