// The formulas against scalar reference implementations, which are written as the proposal writes
// them: one loop over layers, one line a formula.
#include "influence/decision.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <limits>
#include <random>

#include "influence/learned_gamma.h"
#include "tests/influence/reference.h"

namespace reprise::influence {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Drawn {
  PgacOptions options;
  std::size_t layers;
  std::mt19937_64 random;

  explicit Drawn(std::uint64_t seed) : layers(1 + seed % 9), random(seed) {
    std::uniform_real_distribution<double> share(0, 1);
    options.alpha = share(random) * 0.99;
    options.quantile = share(random);
    options.follow_pseudocode = seed % 2 == 1;
    if (seed % 3 == 0) options.start = PgacOptions::Start::kZero;
  }

  std::vector<double> scores() {
    std::lognormal_distribution<double> draw(0, 2);
    std::vector<double> drawn;
    for (std::size_t i = 0; i < layers; ++i) drawn.push_back(draw(random));
    return drawn;
  }
};

TEST(Decision, AgreesWithTheFormulasForAThousandSteps) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    Drawn drawn(seed);
    const bool literal = drawn.options.follow_pseudocode;
    testing::Reference reference(drawn.layers, drawn.options);
    std::vector<double> averages(drawn.layers, literal ? 0 : kNan);
    std::vector<bool> mask(drawn.layers, true);
    for (int step = 0; step < 1000; ++step) {
      const double gamma = 0.5 + 0.001 * step;
      const std::vector<double> scores = drawn.scores();
      literal ? reference.literal_step(scores, gamma) : reference.step(scores, gamma);
      const Decision decision = averaged(averages, scores, drawn.options);
      averages = decision.averages;
      const double threshold = gamma * quantile_of(decision.considered, drawn.options.quantile);
      mask = mask_of(averages, threshold, mask, 0);
      ASSERT_EQ(averages, reference.averages()) << seed << ' ' << step;
      ASSERT_EQ(threshold, reference.threshold()) << seed << ' ' << step;
      ASSERT_EQ(mask, reference.mask()) << seed << ' ' << step;
    }
  }
}

TEST(Decision, ALayerWithoutAScoreKeepsItsAverage) {
  PgacOptions options{.alpha = 0.5};
  std::vector<double> averages(3, kNan);
  averages = averaged(averages, {4, kNan, 2}, options).averages;
  EXPECT_EQ(averages[0], 4);
  EXPECT_TRUE(std::isnan(averages[1]));
  averages = averaged(averages, {kNan, 8, 4}, options).averages;
  EXPECT_EQ(averages, (std::vector<double>{4, 8, 3}));
  EXPECT_EQ(quantile_of({4, kNan, 3}, 0.5), 3.5) << "of those that are known";
  EXPECT_TRUE(std::isnan(quantile_of({kNan, kNan}, 0.5)));
  EXPECT_EQ(mask_of({4, kNan, 3}, 3.5, {true, false, true}, 0),
            (std::vector<bool>{true, true, false}));
  EXPECT_EQ(mask_of({4, 1, 3}, kNan, {true, false, true}, 0), std::vector<bool>(3, true));
}

TEST(Decision, AveragesStartWhereTheOptionSays) {
  const std::vector<double> none(1, kNan);
  EXPECT_EQ(averaged(none, {8}, {.alpha = 0.75}).averages[0], 8);
  EXPECT_EQ(averaged(none, {8}, {.alpha = 0.75, .start = PgacOptions::Start::kZero}).averages[0],
            2);
  EXPECT_EQ(averaged({0}, {8}, {.alpha = 0.75, .follow_pseudocode = true}).averages[0], 2);
  EXPECT_EQ(averaged({0}, {8}, {.alpha = 0}).averages[0], 8);
}

TEST(Decision, HysteresisHoldsWhatIsNearTheThreshold) {
  const std::vector<double> averages{8, 8.9, 9.1, 10.9, 11.1, 12};
  EXPECT_EQ(mask_of(averages, 10, std::vector<bool>(6, true), 0.1),
            (std::vector<bool>{false, false, true, true, true, true}));
  EXPECT_EQ(mask_of(averages, 10, std::vector<bool>(6, false), 0.1),
            (std::vector<bool>{false, false, false, false, true, true}));
  EXPECT_EQ(mask_of(averages, 10, std::vector<bool>(6, false), 0),
            (std::vector<bool>{false, false, false, true, true, true}));
}

TEST(LearnedGamma, FindsTheFactorThatCostsLeast) {
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    LearnedGamma gamma(1, seed);
    EXPECT_EQ(gamma.at(0), 1);
    EXPECT_EQ(gamma.at(0.7), 1);
    // In steps, as masks are.
    const auto distance = [&] { return std::abs(std::log(gamma.at(0.5) / 0.4)); };
    const double before = distance();
    for (int i = 0; i < 1000; ++i) {
      gamma.learn(i % 100 / 100.0, [&](double factor) {
        return 1 + std::round(10 * std::abs(std::log(factor / 0.4))) / 20;
      });
    }
    EXPECT_LT(distance(), before / 3) << seed;
  }
}

TEST(LearnedGamma, GoesOnFromWhatWasSaved) {
  const auto cost = [](double factor) { return (factor - 0.4) * (factor - 0.4); };
  LearnedGamma whole(1, 7), begun(1, 7), resumed(1, 7);
  for (int i = 0; i < 20; ++i) whole.learn(0.3, cost);
  for (int i = 0; i < 10; ++i) begun.learn(0.3, cost);
  resumed.restore(begun.weights(), begun.steps());
  for (int i = 0; i < 10; ++i) resumed.learn(0.3, cost);
  EXPECT_EQ(resumed.weights(), whole.weights());
  LearnedGamma other(1, 8);
  for (int i = 0; i < 20; ++i) other.learn(0.3, cost);
  EXPECT_NE(other.weights(), whole.weights());
}

}  // namespace
}  // namespace reprise::influence
