// OnExceeded::kPass: where nothing more can be dropped, the limit is passed in silence.
#include <torch/torch.h>

#include "tests/tape/testing.h"

namespace reprise {
namespace {

using at::Tensor;
using testing::leaf;
using testing::Tensors;

constexpr std::int64_t kPassedMega = 1 << 18;  // floats in a MiB

TEST(PassedLimit, IsPassedWithoutAWordAndGradientsAreThePlainOnes) {
  const Tensor x = leaf({kPassedMega});
  const auto f = [&] {
    Tensor y = x;
    for (int i = 0; i < 16; ++i) y = y.sin();
    return y;
  };
  const Tensors plain = testing::plain_gradients(f, {x});
  const Bytes half = testing::limit_at(0.5, [&] { testing::plain_gradients(f, {x}); });
  MemoryBudget budget(live_bytes() + MiB(1), {.on_exceeded = OnExceeded::kPass});
  const testing::WarningLog warnings;
  EXPECT_TRUE(testing::same_bits(testing::gradients_under(budget, f, {x}), plain));
  EXPECT_TRUE(warnings.texts.empty());
  EXPECT_GT(budget.report().peak, budget.limit());
  EXPECT_LT(budget.report().peak, half) << "droppable values are dropped first";
}

TEST(PassedLimit, IsAQuarterAboveTheNeedForTheRestOfTheStepAndNoLonger) {
  const Tensor x = torch::ones({4 * kPassedMega});
  MemoryBudget budget(live_bytes() + MiB(1), {.on_exceeded = OnExceeded::kPass});
  const auto step_with = [&](const auto& f) {
    auto step = budget.step();
    f();
    const std::int64_t dropped = budget.report().dropped + budget.report().packed;
    step.finish();
    return dropped;
  };
  const auto fits_into_a_quarter = [&] {
    const Tensor kept = torch::empty({12 * kPassedMega});
    const Bytes need = live_bytes();
    const Tensor quarter = x.slice(0, 0, (need.count / 8) / 4).sin();
    const Tensor more = x.slice(0, 0, (need.count / 16) / 4).sin();
    EXPECT_LT(live_bytes().count, need.count * 5 / 4);
  };
  EXPECT_EQ(step_with(fits_into_a_quarter), 0);
  // Each result takes most of the room that the limit leaves.
  EXPECT_GT(step_with([&] {
              const Tensor part = x.slice(0, 0, kPassedMega * 3 / 4);
              const Tensor a = part.sin(), b = part.cos();
            }),
            0);
}

}  // namespace
}  // namespace reprise
