// Scores of a part of an activation, and the error that they say they have.
#include <reprise/experimental/pgac.h>

#include "tests/influence/testing.h"

namespace reprise {
namespace {

using namespace reprise::testing;

TEST(InfluenceMeter, EstimatesFromAPartAndSaysHowWell) {
  torch::manual_seed(6);
  InfluenceMeter all, part({.stride = 16});
  const at::Tensor x = at::randn({1024, 512}).requires_grad_();
  const at::Tensor a = x * at::rand({1024, 1});
  all.watch(0, a);
  part.watch(0, a);
  a.square().sum().backward();
  const InfluenceScore exact = all.take().at(0), estimate = part.take().at(0);
  EXPECT_EQ(exact.error, 0);
  EXPECT_GT(estimate.error, 0);
  EXPECT_LT(estimate.error, 0.1);
  EXPECT_NE(estimate.value, exact.value);
  EXPECT_NEAR(estimate.value / exact.value, 1, 4 * estimate.error);
}

TEST(InfluenceMeter, AnEstimateIsNotOfTheSameColumnsInEachRow) {
  torch::manual_seed(7);
  InfluenceMeter all, part({.stride = 16});
  // Rows are as long as a stride; but for their first columns they are a hundred times as large.
  at::Tensor scale = at::full({1024}, 100.0);
  scale.slice(0, 0, 64).fill_(1);
  const at::Tensor x = at::randn({512, 1024}).requires_grad_();
  const at::Tensor a = x * scale;
  all.watch(0, a);
  part.watch(0, a);
  a.square().sum().backward();
  const InfluenceScore exact = all.take().at(0), estimate = part.take().at(0);
  EXPECT_NEAR(estimate.value / exact.value, 1, 5 * estimate.error);
  EXPECT_LT(estimate.error, 0.1);
}

TEST(InfluenceMeter, OfLittleEveryElementIsLookedAt) {
  InfluenceMeter all, part({.stride = 16});
  const at::Tensor a = leaf({1000}) * 2;
  all.watch(0, a);
  part.watch(0, a);
  a.square().sum().backward();
  const InfluenceScore exact = all.take().at(0), score = part.take().at(0);
  EXPECT_EQ(score.value, exact.value);
  EXPECT_EQ(score.error, 0);
}

TEST(InfluenceMeter, TheErrorOfEstimatesIsTheOneThatIsSeen) {
  // Over many draws about two thirds lie within one standard error.
  int within = 0;
  constexpr int kDraws = 60;
  for (int i = 0; i < kDraws; ++i) {
    torch::manual_seed(100 + i);
    InfluenceMeter all, part({.stride = 8});
    const at::Tensor x = at::randn({64, 1024}).requires_grad_();
    const at::Tensor a = x * 1;
    all.watch(0, a);
    part.watch(0, a);
    a.square().sum().backward();
    const InfluenceScore exact = all.take().at(0), estimate = part.take().at(0);
    within += std::abs(estimate.value / exact.value - 1) <= estimate.error ? 1 : 0;
  }
  EXPECT_GT(within, kDraws * 5 / 10);
  EXPECT_LT(within, kDraws * 9 / 10);
}

}  // namespace
}  // namespace reprise
