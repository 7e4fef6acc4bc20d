// Order statistics against NumPy's figures and against properties that hold for every sample.
#include "core/statistics.h"
#include "tests/refusal.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <reprise/error.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

namespace reprise {
namespace {

using Sample = std::vector<double>;

TEST(Quantile, AgreesWithNumPysDefault) {
  const Sample sample{3.5, 1, 10, 2, 7, 4};  // figures by numpy.quantile
  EXPECT_DOUBLE_EQ(quantile(sample, 0), 1);
  EXPECT_DOUBLE_EQ(quantile(sample, 0.1), 1.5);
  EXPECT_DOUBLE_EQ(quantile(sample, 0.25), 2.375);
  EXPECT_DOUBLE_EQ(quantile(sample, 0.9), 8.5);
  EXPECT_DOUBLE_EQ(quantile(sample, 1), 10);
}

TEST(Quantile, OfOneValueIsThatValue) { EXPECT_EQ(quantile(Sample{42}, 0.3), 42); }

TEST(Quantile, KeepsInfinities) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(quantile(Sample{1, infinity, infinity}, 0.75), infinity);
  EXPECT_EQ(quantile(Sample{1, infinity}, 0.5), infinity);
  EXPECT_EQ(quantile(Sample{1, infinity}, 0.9), infinity);
}

TEST(Quantile, LiesBetweenTheExtremesAndGrowsWithQ) {
  EXPECT_TRUE(rc::check([](const std::vector<int>& values, unsigned a, unsigned b) {
    RC_PRE(!values.empty());
    Sample sample(values.begin(), values.end());
    double low = std::min(a % 101, b % 101) / 100.0;
    double high = std::max(a % 101, b % 101) / 100.0;
    RC_ASSERT(quantile(sample, low) <= quantile(sample, high));
    RC_ASSERT(quantile(sample, 0) == *std::min_element(sample.begin(), sample.end()));
    RC_ASSERT(quantile(sample, 1) == *std::max_element(sample.begin(), sample.end()));
  }));
}

TEST(Median, IsTheMiddleOrTheMeanOfTheMiddleTwo) {
  EXPECT_EQ(median(Sample{5, 1, 9}), 5);
  EXPECT_EQ(median(Sample{5, 1, 9, 6}), 5.5);
}

TEST(Median, IsNotBentByOneDisturbedRun) { EXPECT_EQ(median(Sample{1, 1, 1, 1, 1e9}), 1); }

TEST(MedianAbsoluteDeviation, IsTheTypicalDistanceToTheMedian) {
  EXPECT_EQ(median_absolute_deviation(Sample{1, 1, 2, 2, 4, 6, 9}), 1);
  EXPECT_EQ(median_absolute_deviation(Sample{7}), 0);
}

TEST(RelativeSpread, IsTheQuartileDistanceAsAShareOfTheMedian) {
  EXPECT_DOUBLE_EQ(relative_spread(Sample{1, 2, 3, 4, 5}), 2.0 / 3);
  EXPECT_EQ(relative_spread(Sample{0, 0, 0}), 0);
  EXPECT_EQ(relative_spread(Sample{-1, 0, 1}), std::numeric_limits<double>::infinity());
}

TEST(Statistics, RefuseAnEmptySample) {
  EXPECT_NE(refusal_of([] { median(Sample{}); }).find("no values"), std::string::npos);
  EXPECT_NE(refusal_of([] { median_absolute_deviation(Sample{}); }).find("no values"),
            std::string::npos);
}

TEST(Statistics, NameTheValueThatIsNotANumber) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_NE(refusal_of([&] {
              median(Sample{1, nan, 2});
            }).find("value 1 of 3 is not a number"),
            std::string::npos);
}

TEST(Statistics, RefuseAQuantileOutsideZeroToOne) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (double q : {-0.01, 1.01, nan}) {
    EXPECT_NE(refusal_of([&] { quantile(Sample{1}, q); }).find("must be from 0 to 1"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace reprise
