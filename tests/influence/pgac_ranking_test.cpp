// By what PGAC chooses, where that is not this process's own averages.
#include <reprise/experimental/pgac.h>

#include <algorithm>
#include <set>

#include "core/statistics.h"
#include "tests/influence/testing.h"
#include "tests/refusal.h"

namespace reprise {
namespace {

using namespace reprise::testing;
using torch::nn::Sequential;

void step_with(Pgac& pgac, Sequential model, const at::Tensor& sample) {
  step_of(model, sample, [&](const at::Tensor& x) { return pgac.run(model, x); });
}

TEST(Pgac, RandomRankingKeepsAsManyAsInfluenceAndGoesByItsSeedAlone) {
  Sequential model = six_layers();
  const at::Tensor sample = sample_of();
  const auto mask_of_seed = [&](std::uint64_t seed, double scale) {
    Pgac pgac({.ranking = PgacRanking::kRandom, .seed = seed});
    step_with(pgac, model, sample * scale);
    pgac.observe(0);
    EXPECT_EQ(std::ranges::count(pgac.report().wanted, true), 3);
    EXPECT_GT(pgac.report().scores[0], 0) << "of the step, all the same";
    return pgac.report().wanted;
  };
  std::set<std::vector<bool>> masks;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<bool> mask = mask_of_seed(seed, 1);
    EXPECT_EQ(mask_of_seed(seed, 3), mask);
    masks.insert(mask);
  }
  EXPECT_GT(masks.size(), 5u);
}

TEST(Pgac, CombinedAveragesDecideForAllProcesses) {
  // Two "processes" with other batches, which share the means of their averages.
  Sequential model = six_layers();
  const at::Tensor samples[] = {sample_of(), sample_of().flip(0) * 3};
  std::vector<double> own[2], mean;
  const auto averages_alone = [&](int i) {
    Pgac pgac;
    step_with(pgac, model, samples[i]);
    pgac.observe(0);
    return pgac.report().averages;
  };
  for (int i = 0; i < 2; ++i) own[i] = averages_alone(i);
  for (std::size_t i = 0; i < 6; ++i) mean.push_back((own[0][i] + own[1][i]) / 2);
  std::vector<bool> masks[2];
  for (int i = 0; i < 2; ++i) {
    Pgac pgac({.combine = [&](std::vector<double>& averages) {
      EXPECT_EQ(averages, own[i]);
      averages = mean;
    }});
    step_with(pgac, model, samples[i]);
    pgac.observe(0);
    EXPECT_EQ(pgac.report().averages, own[i]);
    EXPECT_EQ(pgac.report().threshold, quantile(mean, 0.5));
    masks[i] = pgac.report().wanted;
  }
  EXPECT_EQ(masks[0], masks[1]);
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(masks[0][i], mean[i] >= quantile(mean, 0.5));
  Pgac wrong({.combine = [](std::vector<double>& averages) { averages.pop_back(); }});
  step_with(wrong, model, samples[0]);
  EXPECT_TRUE(contains(refusal_of([&] { wrong.observe(0); }), "left 5 averages of 6"));
}

}  // namespace
}  // namespace reprise
