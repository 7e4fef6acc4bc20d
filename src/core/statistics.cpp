// Order statistics by sorting a copy: samples are a few hundred timings, so that clarity wins over
// selection algorithms.
#include "core/statistics.h"

#include <reprise/error.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace reprise {

namespace {

std::vector<double> sorted(std::span<const double> sample) {
  if (sample.empty()) {
    throw UsageError("a statistic of no values was asked for; measure at least one run");
  }
  std::vector<double> values(sample.begin(), sample.end());
  auto nan = std::find_if(values.begin(), values.end(), [](double v) { return std::isnan(v); });
  if (nan != values.end()) {
    throw UsageError("value " + std::to_string(nan - values.begin()) + " of " +
                     std::to_string(values.size()) +
                     " is not a number; drop failed runs before summing up");
  }
  std::sort(values.begin(), values.end());
  return values;
}

double quantile_of_sorted(const std::vector<double>& values, double q) {
  double position = q * static_cast<double>(values.size() - 1);
  auto below = static_cast<std::size_t>(position);
  std::size_t above = std::min(below + 1, values.size() - 1);
  double share = position - static_cast<double>(below);
  // Between equal infinities the interpolation would be inf - inf.
  if (share == 0 || values[below] == values[above]) return values[below];
  // From the nearer of the two, as NumPy does, so that it is exact at both.
  const double step = values[above] - values[below];
  if (std::isinf(step)) return values[below] + step;
  return share < 0.5 ? values[below] + step * share : values[above] - step * (1 - share);
}

}  // namespace

double quantile(std::span<const double> sample, double q) {
  if (!(q >= 0 && q <= 1)) {
    throw UsageError("quantile " + std::to_string(q) + " does not exist; q must be from 0 to 1");
  }
  return quantile_of_sorted(sorted(sample), q);
}

double median(std::span<const double> sample) { return quantile(sample, 0.5); }

double median_absolute_deviation(std::span<const double> sample) {
  double middle = median(sample);
  std::vector<double> distances;
  distances.reserve(sample.size());
  for (double value : sample) distances.push_back(std::abs(value - middle));
  return median(distances);
}

double relative_spread(std::span<const double> sample) {
  std::vector<double> values = sorted(sample);
  double range = quantile_of_sorted(values, 0.75) - quantile_of_sorted(values, 0.25);
  double middle = quantile_of_sorted(values, 0.5);
  if (range == 0) return 0;
  if (middle == 0) return std::numeric_limits<double>::infinity();
  return range / std::abs(middle);
}

}  // namespace reprise
