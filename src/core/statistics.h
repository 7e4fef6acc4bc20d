// Summaries of repeated measurements that a few disturbed runs cannot bend: medians, not means.
//
// Used by the benchmarks, where several timings of one thing are reported.
// Every function throws UsageError for an empty sample and for one that contains a NaN.
#pragma once

#include <span>

namespace reprise {

// The value below which the share `q` of the sample lies, with linear interpolation between the two
// nearest order statistics (NumPy's default method, to the last bit; Hyndman and Fan 1996, type 7).
// Throws UsageError unless 0 <= q <= 1.
double quantile(std::span<const double> sample, double q);

// quantile(sample, 0.5): for an even number of values the mean of the middle two.
double median(std::span<const double> sample);

// The median distance of the values to their median, unscaled (for normally distributed values
// about 0.67 standard deviations). Zero for a single value.
double median_absolute_deviation(std::span<const double> sample);

// The distance between the quartiles as a share of the median: how far to trust the figure. A
// sample with median zero has spread zero if all its values are equal, else infinity.
double relative_spread(std::span<const double> sample);

}  // namespace reprise
