// Tests and intervals against SciPy's figures, Holm's correction against its definition.
#include <gmock/gmock.h>
#include <rapidcheck.h>
#include <reprise/report.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <random>

#include "tests/refusal.h"
#include "tests/report/not_finite.h"

namespace reprise {
namespace {

using testing::HasSubstr;
using Sample = std::vector<double>;

const Sample kOurs{12.1, 13.4, 11.8, 12.9, 12.2};
const Sample kTheirs{11.7, 12.6, 11.9, 12.1, 11.5};

TEST(PairedTTest, AgreesWithSciPy) {
  const PairedTest test = paired_t_test(kOurs, kTheirs);  // scipy.stats.ttest_rel
  EXPECT_NEAR(test.mean, 0.52, 1e-12);
  EXPECT_NEAR(test.t, 3.032701586302984, 1e-12);
  EXPECT_EQ(test.degrees_of_freedom, 4U);
  EXPECT_NEAR(test.p, 0.038677915075722415, 1e-12);
  EXPECT_NEAR(test.interval.low, 0.043938833539221234, 1e-12);
  EXPECT_NEAR(test.interval.high, 0.9960611664607792, 1e-12);
  const PairedTest wider = paired_t_test(kOurs, kTheirs, 0.99);
  EXPECT_NEAR(wider.interval.low, -0.2694378213520707, 1e-12);
  EXPECT_NEAR(wider.interval.high, 1.3094378213520712, 1e-12);
}

TEST(PairedTTest, OfTwoPairsIsCauchys) {
  const PairedTest test = paired_t_test(Sample{1, 2}, Sample{3, 7});
  EXPECT_DOUBLE_EQ(test.t, -7.0 / 3);
  // With one degree of freedom the distribution function is an arc tangent.
  EXPECT_NEAR(test.p, 1 - 2 * std::atan(7.0 / 3) / std::numbers::pi, 1e-14);
  EXPECT_NEAR(test.interval.low, -22.55930710426204, 1e-10);
  EXPECT_NEAR(test.interval.high, 15.55930710426204, 1e-10);
}

TEST(PairedTTest, KeepsTheDigitsOfTinyPValues) {
  Sample a, b;
  for (int i = 0; i < 20; ++i) {
    a.push_back(100 + i * 0.01);
    b.push_back(i * 0.013);
  }
  EXPECT_NEAR(paired_t_test(a, b).p / 6.046832280516449e-73, 1, 1e-8);
}

TEST(PairedTTest, OfEqualDifferencesLeavesNothingToChance) {
  const PairedTest same = paired_t_test(Sample{1, 2, 3}, Sample{1, 2, 3});
  EXPECT_EQ(same.p, 1);
  EXPECT_EQ(same.t, 0);
  const PairedTest less = paired_t_test(Sample{1, 2, 3}, Sample{2, 3, 4});
  EXPECT_EQ(less.p, 0);
  EXPECT_EQ(less.t, -kInfinity);
  EXPECT_EQ(less.mean, -1);
  EXPECT_EQ(less.interval.low, -1);
  EXPECT_EQ(less.interval.high, -1);
}

TEST(PairedTTest, TurnsItsSignWithTheOrder) {
  EXPECT_TRUE(rc::check([](const std::vector<std::pair<int, int>>& pairs) {
    RC_PRE(pairs.size() >= 2);
    Sample a, b;
    for (const auto& [x, y] : pairs) {
      a.push_back(x);
      b.push_back(y);
    }
    const PairedTest there = paired_t_test(a, b), back = paired_t_test(b, a);
    RC_ASSERT(there.mean == -back.mean);
    RC_ASSERT(there.t == -back.t);
    RC_ASSERT(there.p == back.p);
    RC_ASSERT(there.p >= 0 && there.p <= 1);
    RC_ASSERT(there.interval.low <= there.mean && there.mean <= there.interval.high);
    // Zero is outside of the interval just where chance is less likely than what is left.
    RC_ASSERT((there.interval.low > 0 || there.interval.high < 0) == (there.p < 0.05));
  }));
}

TEST(PairedRatioTest, AgreesWithSciPysTestOfLogarithms) {
  const PairedTest test = paired_ratio_test(kOurs, kTheirs);
  EXPECT_NEAR(test.mean, 1.0428624436701581, 1e-12);
  EXPECT_NEAR(test.t, 3.0552982990447277, 1e-9);
  EXPECT_NEAR(test.p, 0.03783180798373789, 1e-10);
  EXPECT_NEAR(test.interval.low, 1.003837828725713, 1e-12);
  EXPECT_NEAR(test.interval.high, 1.083404156823081, 1e-12);
}

TEST(PairedRatioTest, RefusesWhatHasNoRatio) {
  EXPECT_THAT(refusal_of([] {
                paired_ratio_test(Sample{1, 2}, Sample{1, 0});
              }),
              HasSubstr("pair 1 of 2 is 2.000000 and 0.000000; a ratio needs two positive values"));
  EXPECT_THAT(refusal_of([] {
                paired_ratio_test(Sample{kNaN, 2}, Sample{1, 1});
              }),
              HasSubstr("pair 0 of 2 is nan"));
}

TEST(MeanInterval, AgreesWithSciPy) {
  const Sample sample{5.5, 4, 6.5, 5};  // scipy.stats.t.interval
  const MeanInterval wide = mean_interval(sample);
  EXPECT_EQ(wide.mean, 5.25);
  EXPECT_NEAR(wide.interval.low, 3.5938024327910725, 1e-12);
  EXPECT_NEAR(wide.interval.high, 6.9061975672089275, 1e-12);
  const MeanInterval narrow = mean_interval(sample, 0.5);
  EXPECT_NEAR(narrow.interval.low, 4.851937411677048, 1e-12);
  EXPECT_NEAR(narrow.interval.high, 5.648062588322952, 1e-12);
}

TEST(MeanInterval, OfEqualValuesIsThatValue) {
  // Their sum over their count is not.
  const MeanInterval interval = mean_interval(Sample{0.1, 0.1, 0.1});
  EXPECT_EQ(interval.mean, 0.1);
  EXPECT_EQ(interval.interval.low, 0.1);
  EXPECT_EQ(interval.interval.high, 0.1);
}

TEST(MeanInterval, RefusesWhatItCannotSumUp) {
  EXPECT_THAT(refusal_of([] { mean_interval(Sample{1}); }),
              HasSubstr("an interval of 1 value(s) was asked for; it takes at least 2"));
  EXPECT_THAT(refusal_of([] { mean_interval(Sample{}); }), HasSubstr("of 0 value(s)"));
  EXPECT_THAT(refusal_of([] {
                mean_interval(Sample{1, kInfinity, 2});
              }),
              HasSubstr("value 1 of 3 is not a finite number"));
  EXPECT_THAT(refusal_of([] { mean_interval(Sample{1e200, -1e200}); }), HasSubstr("overflow"));
  for (const double confidence : {0.0, 1.0, -1.0, kNaN}) {
    EXPECT_THAT(refusal_of([&] {
                  mean_interval(Sample{1, 2}, confidence);
                }),
                HasSubstr("it must be between 0 and 1"));
  }
}

TEST(PairedTTest, RefusesWhatIsNotPaired) {
  EXPECT_THAT(refusal_of([] {
                paired_t_test(Sample{1, 2, 3}, Sample{1, 2});
              }),
              HasSubstr("samples of 3 and 2 values are no pairs"));
  EXPECT_THAT(refusal_of([] { paired_t_test(Sample{1}, Sample{1}); }), HasSubstr("at least 2"));
}

TEST(Holm, AdjustsTheTextbooksCase) {
  EXPECT_THAT(holm(Sample{0.01, 0.04, 0.03, 0.005}),
              testing::Pointwise(testing::DoubleEq(), Sample{0.03, 0.06, 0.06, 0.02}));
  EXPECT_EQ(holm(Sample{0.6, 0.7}), (Sample{1, 1}));
  EXPECT_EQ(holm(Sample{}), Sample{});
}

TEST(Holm, LeavesOutTestsThatWereNotMade) {
  const Sample adjusted = holm(Sample{0.01, kNaN, 0.02});
  EXPECT_DOUBLE_EQ(adjusted[0], 0.02);
  EXPECT_TRUE(std::isnan(adjusted[1]));
  EXPECT_DOUBLE_EQ(adjusted[2], 0.02);
}

TEST(Holm, RefusesWhatIsNoProbability) {
  EXPECT_THAT(refusal_of([] {
                holm(Sample{0.5, 1.5});
              }),
              HasSubstr("p-value 1 is 1.500000; probabilities are from 0 to 1"));
  EXPECT_THAT(refusal_of([] { holm(Sample{-0.1}); }), HasSubstr("p-value 0"));
}

Sample probabilities_of(const std::vector<unsigned>& parts) {
  Sample p;
  for (const unsigned part : parts) p.push_back(part % 1001 / 1000.0);
  return p;
}

TEST(Holm, DoesNotDependOnTheOrder) {
  EXPECT_TRUE(rc::check([](const std::vector<unsigned>& parts, unsigned seed) {
    const Sample p = probabilities_of(parts);
    std::vector<std::size_t> order(p.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::shuffle(order, std::minstd_rand(seed));
    Sample shuffled;
    for (const std::size_t i : order) shuffled.push_back(p[i]);
    const Sample plain = holm(p), mixed = holm(shuffled);
    for (std::size_t i = 0; i < order.size(); ++i) RC_ASSERT(mixed[i] == plain[order[i]]);
  }));
}

TEST(Holm, RejectsJustWhatTheStepwiseProcedureRejects) {
  EXPECT_TRUE(rc::check([](const std::vector<unsigned>& parts, unsigned level_part) {
    const Sample p = probabilities_of(parts);
    // Between two possible products, so that rounding decides nothing.
    const double level = (level_part % 1000 + 0.5) / 1000;
    const Sample adjusted = holm(p);
    // Holm's own words: compare the smallest with level / n, the next with level / (n - 1), and
    // stop at the first that is not below.
    Sample sorted = p;
    std::ranges::sort(sorted);
    double last_rejected = -1;
    for (std::size_t k = 0; k < sorted.size(); ++k) {
      if (sorted[k] * static_cast<double>(sorted.size() - k) > level) break;
      last_rejected = sorted[k];
    }
    for (std::size_t i = 0; i < p.size(); ++i) {
      RC_ASSERT((adjusted[i] <= level) == (p[i] <= last_rejected));
      RC_ASSERT(adjusted[i] >= p[i]);
      RC_ASSERT(adjusted[i] <= 1);
    }
  }));
}

}  // namespace
}  // namespace reprise
