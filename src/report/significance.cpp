// Student's t and Holm's correction, for means of few measurements.
#include <reprise/error.h>
#include <reprise/report.h>

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

namespace reprise {

namespace {

void check_confidence(double confidence) {
  if (!(confidence > 0 && confidence < 1)) {
    throw UsageError("a confidence of " + std::to_string(confidence) +
                     " gives no interval; it must be between 0 and 1, such as 0.95");
  }
}

// A sample's mean, and how far the mean of such a sample strays.
struct Spread {
  double mean = 0;
  double standard_error = 0;
};

Spread spread_of(std::span<const double> sample) {
  if (sample.size() < 2) {
    throw UsageError("an interval of " + std::to_string(sample.size()) +
                     " value(s) was asked for; it takes at least 2, so measure more runs");
  }
  for (std::size_t i = 0; i < sample.size(); ++i) {
    if (std::isfinite(sample[i])) continue;
    throw UsageError("value " + std::to_string(i) + " of " + std::to_string(sample.size()) +
                     " is not a finite number; drop failed runs before summing up");
  }
  const auto is_first = [&](double value) { return value == sample[0]; };
  // Rounding would make the mean another one.
  if (std::ranges::all_of(sample, is_first)) return {sample[0], 0};
  const auto n = static_cast<double>(sample.size());
  const double mean = std::accumulate(sample.begin(), sample.end(), 0.0) / n;
  double squares = 0;
  for (const double value : sample) squares += (value - mean) * (value - mean);
  const double error = std::sqrt(squares / (n - 1) / n);
  if (!std::isfinite(mean) || !std::isfinite(error)) {
    throw UsageError("the sample's squares overflow; give it in a larger unit");
  }
  return {mean, error};
}

Interval interval_of(const Spread& spread, std::size_t degrees, double confidence) {
  // Nothing strays, whatever the quantile.
  if (spread.standard_error == 0) return {spread.mean, spread.mean};
  const boost::math::students_t_distribution<double> student(static_cast<double>(degrees));
  const double reach = spread.standard_error * boost::math::quantile(boost::math::complement(
                                                   student, (1 - confidence) / 2));
  return {spread.mean - reach, spread.mean + reach};
}

PairedTest test_of(std::span<const double> differences, double confidence) {
  const Spread spread = spread_of(differences);
  PairedTest test;
  test.mean = spread.mean;
  test.degrees_of_freedom = differences.size() - 1;
  test.interval = interval_of(spread, test.degrees_of_freedom, confidence);
  if (spread.standard_error == 0) {
    if (spread.mean == 0) return test;
    test.t = std::copysign(std::numeric_limits<double>::infinity(), spread.mean);
    test.p = 0;
    return test;
  }
  test.t = spread.mean / spread.standard_error;
  const boost::math::students_t_distribution<double> student(
      static_cast<double>(test.degrees_of_freedom));
  // The upper tail alone loses nothing to 1 - p.
  test.p = 2 * boost::math::cdf(boost::math::complement(student, std::abs(test.t)));
  return test;
}

void check_lengths(std::span<const double> a, std::span<const double> b) {
  if (a.size() == b.size()) return;
  throw UsageError("samples of " + std::to_string(a.size()) + " and " + std::to_string(b.size()) +
                   " values are no pairs; give those that were measured under both conditions");
}

}  // namespace

MeanInterval mean_interval(std::span<const double> sample, double confidence) {
  check_confidence(confidence);
  const Spread spread = spread_of(sample);
  return {spread.mean, interval_of(spread, sample.size() - 1, confidence)};
}

PairedTest paired_t_test(std::span<const double> a, std::span<const double> b, double confidence) {
  check_confidence(confidence);
  check_lengths(a, b);
  std::vector<double> differences;
  for (std::size_t i = 0; i < a.size(); ++i) differences.push_back(a[i] - b[i]);
  return test_of(differences, confidence);
}

PairedTest paired_ratio_test(std::span<const double> a, std::span<const double> b,
                             double confidence) {
  check_confidence(confidence);
  check_lengths(a, b);
  std::vector<double> differences;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!(a[i] > 0 && b[i] > 0)) {
      throw UsageError("pair " + std::to_string(i) + " of " + std::to_string(a.size()) + " is " +
                       std::to_string(a[i]) + " and " + std::to_string(b[i]) +
                       "; a ratio needs two positive values");
    }
    differences.push_back(std::log(a[i]) - std::log(b[i]));
  }
  PairedTest test = test_of(differences, confidence);
  test.mean = std::exp(test.mean);
  test.interval = {std::exp(test.interval.low), std::exp(test.interval.high)};
  return test;
}

std::vector<double> holm(std::span<const double> p) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < p.size(); ++i) {
    if (std::isnan(p[i])) continue;
    if (p[i] < 0 || p[i] > 1) {
      throw UsageError("p-value " + std::to_string(i) + " is " + std::to_string(p[i]) +
                       "; probabilities are from 0 to 1");
    }
    order.push_back(i);
  }
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return p[i]; });
  std::vector<double> adjusted(p.begin(), p.end());
  double before = 0;
  for (std::size_t k = 0; k < order.size(); ++k) {
    const double times = static_cast<double>(order.size() - k);
    before = std::min(1.0, std::max(before, times * p[order[k]]));
    adjusted[order[k]] = before;
  }
  return adjusted;
}

}  // namespace reprise
