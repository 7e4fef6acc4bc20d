// PGAC within bytes: what is predicted, what is measured, how layers are ranked.
#include <reprise/experimental/pgac.h>
#include <reprise/planners.h>

#include <algorithm>

#include "influence/fitting.h"
#include "tests/influence/testing.h"
#include "tests/plan/chain/chains.h"
#include "tests/refusal.h"

namespace reprise {
namespace {

using namespace reprise::testing;
using influence::Fitted;
using influence::Fitting;
using torch::nn::Sequential;

Sequential wide_layers() {
  torch::manual_seed(21);
  Sequential model;
  for (int i = 0; i < 8; ++i) {
    if (i % 3 == 1) {
      model->push_back(torch::nn::Linear(128, 512));
      model->push_back(torch::nn::GELU());
      model->push_back(torch::nn::Linear(512, 128));
    } else {
      model->push_back(Residual(128));
    }
  }
  return model;
}

struct Measured {
  Bytes peak;
  Tensors gradients;
};

Measured measured_step(Sequential model, const at::Tensor& x, Pgac* pgac) {
  model->zero_grad();
  torch::manual_seed(8);
  Measured measured;
  {
    const PeakScope peak;
    const at::Tensor y = pgac != nullptr ? pgac->run(model, x) : model->forward(x);
    y.sum().backward();
    measured.peak = peak.peak_above_start();
  }
  measured.gradients = take_gradients(model->parameters());
  return measured;
}

TEST(PgacBudget, TheMeasuredPeakObeysItUnderEveryRanking) {
  Sequential model = wide_layers();
  torch::manual_seed(22);
  const at::Tensor x = at::randn({256, 128});
  const Measured plain = measured_step(model, x, nullptr);
  for (const PgacRanking ranking : {PgacRanking::kInfluence, PgacRanking::kCost,
                                    PgacRanking::kInfluenceTimesCost, PgacRanking::kRandom}) {
    for (const int percent : {95, 80, 65}) {
      for (const bool fills : {false, true}) {
        const Bytes budget(plain.peak.count * percent / 100);
        Pgac pgac({.alpha = 0.5, .budget = budget, .ranking = ranking, .fill_budget = fills});
        pgac.run(model, x);  // measures
        for (int step = 0; step < 6; ++step) {
          const Measured found = measured_step(model, x, &pgac);
          EXPECT_LE(found.peak, budget) << percent << ' ' << step;
          // The loss and its gradient are not the model's.
          EXPECT_LE(found.peak, pgac.report().predicted_peak + KiB(1));
          EXPECT_GT(static_cast<double>(found.peak.count),
                    0.8 * static_cast<double>(pgac.report().predicted_peak.count));
          EXPECT_TRUE(same_bits(found.gradients, plain.gradients));
          pgac.observe(step);
        }
      }
    }
  }
}

TEST(PgacBudget, SaysTheLeastBytesThatWouldDo) {
  Sequential model = wide_layers();
  const at::Tensor x = sample_of(128, 256);
  Pgac small({.budget = KiB(64)});
  const std::string text = refusal_of<BudgetError>([&] { small.run(model, x); });
  ASSERT_TRUE(contains(text,
                       "Pgac: the budget is 65.5 KB (65536 bytes), but under every mask the "
                       "layers need at least "));
  const auto at = text.rfind('(');
  const std::int64_t least = std::stoll(text.substr(at + 1));
  // Each Pgac measures anew.
  const Bytes budget(least);
  for (int i = 0; i < 5; ++i) {
    Pgac enough({.budget = budget});
    enough.run(model, x);
    EXPECT_LE(measured_step(model, x, &enough).peak, budget);
  }
  Pgac short_of({.budget = Bytes(least / 100 * 97)});
  EXPECT_THROW(short_of.run(model, x), BudgetError);
}

TEST(PgacBudget, TheFirstStepKeepsAllOrWhatIsFastest) {
  Sequential model = wide_layers();
  const at::Tensor x = sample_of(128, 256);
  const Bytes plain = measured_step(model, x, nullptr).peak;
  Pgac ample({.budget = plain * 2});
  ample.run(model, x);
  EXPECT_EQ(ample.report().mask, std::vector<bool>(ample.layers().size(), true));
  EXPECT_EQ(ample.report().predicted_recompute.count(), 0);
  Pgac tight({.budget = Bytes(plain.count * 3 / 4)});
  tight.run(model, x);
  EXPECT_LE(tight.report().predicted_peak, Bytes(plain.count * 3 / 4));
  EXPECT_GT(tight.report().predicted_recompute.count(), 0);
}

TEST(PgacBudget, AnotherShapeIsMeasuredAndFittedByItself) {
  Sequential model = wide_layers();
  const Bytes plain = measured_step(model, sample_of(128, 256), nullptr).peak;
  Pgac pgac({.budget = Bytes(plain.count * 8 / 10)});
  for (int step = 0; step < 6; ++step) {
    const at::Tensor x = sample_of(128, step % 2 == 0 ? 256 : 64);
    if (step < 2) pgac.run(model, x);
    EXPECT_LE(measured_step(model, x, &pgac).peak, Bytes(plain.count * 8 / 10)) << step;
    if (step % 2 == 1 && step > 1) {
      EXPECT_EQ(pgac.report().mask, plan::as_run(pgac.report().wanted))
          << "what is small fits as it is wanted";
    }
    pgac.observe(step);
  }
}

TEST(PgacBudget, TheLeastRankGoesFirstAndTheHighestComesBack) {
  const Fitting fitting(plan::uniform_chain(6));
  const plan::KeepMask all(6, true);
  const influence::Preference ranks{{5, 1, 4, 2, 6, 3}, {5, 1, 4, 2, 6, 3}};
  const Bytes plain = fitting.fit(all, ranks, std::nullopt, false).peak;
  const Fitted one = fitting.fit(all, ranks, plain - Bytes(1), false);
  EXPECT_EQ(one.mask, (plan::KeepMask{true, false, true, true, true, true}));
  EXPECT_FALSE(one.by_search);
  const Fitted filled =
      fitting.fit(plan::KeepMask{false, false, false, false, false, true}, ranks, one.peak, true);
  EXPECT_LE(filled.peak, one.peak);
  EXPECT_TRUE(filled.mask[4]) << "the highest rank";
  EXPECT_LT(filled.recompute.count(), 5);
  const Fitted least = fitting.fit(all, ranks, fitting.least(), false);
  EXPECT_TRUE(least.by_search);
  EXPECT_LE(least.peak, fitting.least());
}

TEST(PgacBudget, RankingsAreWhatTheySay) {
  Chain chain = plan::uniform_chain(3);
  chain.stages[1].forward = plan::seconds(3);
  chain.stages[2].saved = Bytes(60);
  const Fitting fitting(chain);
  const std::vector<double> averages{2, std::nan(""), 4};
  EXPECT_EQ(fitting.preference(PgacRanking::kCost, averages).ranks,
            (std::vector<double>{1 / 30.0, 3 / 30.0, 1 / 60.0}));
  const auto by_influence = fitting.preference(PgacRanking::kInfluence, averages).ranks;
  EXPECT_EQ(by_influence[0], 2);
  EXPECT_GT(by_influence[1], 4) << "without an average above all others";
  const auto both = fitting.preference(PgacRanking::kInfluenceTimesCost, averages);
  const auto& by_both = both.ranks;
  EXPECT_DOUBLE_EQ(by_both[0], 2 / 30.0);
  EXPECT_DOUBLE_EQ(by_both[2], 4 / 60.0);
  EXPECT_GT(by_both[1], by_both[2]);
  EXPECT_EQ(both.losses[0], 2) << "without the bytes, for sums";
}

TEST(PgacBudget, ALearnedGammaLowersThePredictedSeconds) {
  Sequential model = wide_layers();
  const at::Tensor x = sample_of(128, 256);
  const Bytes plain = measured_step(model, x, nullptr).peak;
  // The budget holds nearly all, but half of the layers are below the threshold, until it is
  // learned that this costs more than it must.
  const auto discarded_with = [&](const GammaSchedule& gamma) {
    Pgac pgac({.alpha = 0,
               .quantile = 0.5,
               .gamma = gamma,
               .steps = 100,
               .budget = Bytes(plain.count * 97 / 100),
               .seed = 5});
    for (int step = 0; step < 100; ++step) {
      measured_step(model, x, &pgac);
      pgac.observe(step);
    }
    const std::vector<bool> mask = pgac.report().mask;
    return std::count(mask.begin(), mask.end(), false);
  };
  EXPECT_LT(discarded_with(GammaSchedule::learned(1)), discarded_with(GammaSchedule::constant(1)));
}

TEST(PgacBudget, FrozenLayersKeepNothingAndCountNothing) {
  Sequential model = wide_layers();
  const auto layers = model->children();
  for (std::size_t i = 0; i < 6; ++i) {
    for (at::Tensor& parameter : layers[i]->parameters()) parameter.requires_grad_(false);
  }
  const at::Tensor x = sample_of(128, 256);
  const Measured plain = measured_step(model, x, nullptr);
  Pgac pgac({.budget = plain.peak + KiB(16)});
  pgac.run(model, x);
  const Measured found = measured_step(model, x, &pgac);
  EXPECT_TRUE(same_bits(found.gradients, plain.gradients));
  EXPECT_EQ(pgac.report().mask, std::vector<bool>(pgac.layers().size(), true))
      << "the plain step fits";
}

TEST(PgacBudget, AFirstRunThatDoesNotFitLeavesNothingBehind) {
  Sequential model = wide_layers(), other = six_layers(128);
  Pgac pgac({.budget = MB(3)});
  EXPECT_THROW(pgac.run(model, at::randn({4096, 128})), BudgetError);
  EXPECT_TRUE(pgac.layers().empty());
  const Tensors expected = measured_step(other, sample_of(128, 64), nullptr).gradients;
  pgac.run(other, sample_of(128, 64));
  EXPECT_EQ(pgac.layers().size(), 6u);
  EXPECT_TRUE(same_bits(measured_step(other, sample_of(128, 64), &pgac).gradients, expected));
}

TEST(PgacBudget, LayersAtTheEndThatRunAsKeptAreDiscardedBeforeTheSearch) {
  const Fitting fitting(plan::uniform_chain(6));
  const influence::Preference ranks{{6, 5, 4, 3, 2, 1}, {6, 5, 4, 3, 2, 1}};
  const plan::KeepMask wanted{true, true, true, true, true, false};
  const Bytes plain = fitting.fit(plan::KeepMask(6, true), ranks, std::nullopt, false).peak;
  const Fitted fitted = fitting.fit(wanted, ranks, plain - Bytes(1), false);
  EXPECT_FALSE(fitted.by_search);
  EXPECT_EQ(fitted.mask, (plan::KeepMask{true, true, true, true, false, true}));
}

}  // namespace
}  // namespace reprise
