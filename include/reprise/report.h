// Reports: what an experiment's figures say, as statistics, tables and pictures.
//
//   auto test = reprise::paired_t_test(ours, theirs);        // the same seeds in the same order
//   reprise::Table table{{"method", "ms"}, {}, {{"ours", "41.2"}, {"theirs", "43.0"}}};
//   std::cout << reprise::markdown(table);
//   reprise::LineChart chart{.title = "Loss", .series = {{"ours", {{1, 5.5}, {2, 5.1}}}}};
//   std::ofstream("loss.svg") << reprise::svg_of(chart);
//
// Everything here is plain data and arithmetic: nothing is measured, and nothing is read or
// written. The same input gives the same bytes, whatever the locale. Texts are UTF-8. Any thread
// may call any of it. Errors are UsageErrors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace reprise {

// ---- Statistics of few, repeated measurements ----
//
// Samples are taken as drawn from normal distributions (of differences, or of logarithms), which
// is what makes intervals of three or five seeds possible at all; with so few it cannot be checked.

struct Interval {
  double low = 0, high = 0;
};

struct MeanInterval {
  double mean = 0;
  Interval interval;
};

// The mean of the sample, and the interval that covers the mean of what it was drawn from with
// probability `confidence`, by Student's t distribution with n - 1 degrees of freedom (Student, The
// probable error of a mean, Biometrika 6, 1908, pages 1 to 25). UsageError for fewer than two
// values, for one that is not finite, for values whose squares overflow, and for a confidence that
// is not between 0 and 1.
MeanInterval mean_interval(std::span<const double> sample, double confidence = 0.95);

struct PairedTest {
  // Of a - b the mean, or of a / b the geometric mean; and where that lies with the confidence that
  // was asked for.
  double mean = 0;
  Interval interval;
  // The mean over its standard error (for ratios, both of the logarithms). Infinite, with the sign
  // of the mean, where all differences are exactly equal and not zero; 0 where all are zero.
  double t = 0;
  std::size_t degrees_of_freedom = 0;  // pairs - 1
  // How likely a |t| of at least this is where a and b do not differ: the two-sided p-value. 1
  // where all differences are zero, 0 where all are exactly equal otherwise, for then nothing
  // speaks for chance; the interval is a single point in both cases.
  double p = 1;
};

// Student's t test of pairs: a[i] and b[i] were measured under the same conditions (seed, data), so
// that what these contribute cancels out. UsageError for samples of different lengths, for fewer
// than two pairs, and as mean_interval().
PairedTest paired_t_test(std::span<const double> a, std::span<const double> b,
                         double confidence = 0.95);

// The same for quantities that differ by factors, such as times: the test of log a - log b, whose
// mean and interval come back as ratios. UsageError also for a value that is not positive.
PairedTest paired_ratio_test(std::span<const double> a, std::span<const double> b,
                             double confidence = 0.95);

// The p-values of several tests, adjusted so that among those below a level the probability of any
// false one stays below that level, however the tests depend on each other: Holm, A simple
// sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6, 1979, pages
// 65 to 70. The k-th smallest of n is multiplied by n - k + 1, is at least the one before it, and
// at most 1. In the order of `p`; a NaN stands for a test that was not made: it does not count, and
// stays. UsageError for a value outside of 0 to 1.
std::vector<double> holm(std::span<const double> p);

// ---- Tables ----

struct Table {
  enum class Align { kLeft, kRight };

  std::vector<std::string> header = {};
  // Of each column; empty: the first to the left, the others, which mostly are figures, to the
  // right.
  std::vector<Align> align = {};
  std::vector<std::vector<std::string>> rows = {};
};

// As Markdown with pipes, columns padded to their widest cell by characters. A `|` in a cell is
// escaped, a line break becomes a space. UsageError for a table without columns, and for a row or
// an alignment with another number of cells than the header.
std::string markdown(const Table& table);

// ---- Pictures: each one SVG file that needs nothing else ----

struct LineChart {
  struct Point {
    double x = 0, y = 0;
    // Error bars.
    std::optional<Interval> x_range = {}, y_range = {};
    // What the tooltip says before the figures; empty: the name of the series.
    std::string label = {};
  };

  struct Series {
    std::string name = {};
    std::vector<Point> points = {};
    bool is_joined = true;  // by lines, in the order given
  };

  std::string title = {}, subtitle = {}, x_label = {}, y_label = {};
  bool log_y = false;
  // In the legend, which stands beside the plot, in this order. Colours repeat after ten, then
  // with dashed lines and hollow points.
  std::vector<Series> series = {};
};

// A point with a coordinate that is not finite, or on a logarithmic axis not positive, is left out,
// and a line has a gap there (beyond 1e150, and on a logarithmic axis below 1e-150, counts as not
// finite). So is an error bar with such an end; but one that only begins at or below zero on a
// logarithmic axis is drawn from the axis on. Axes span the points, and of error bars what reaches
// no further beyond the points than these reach themselves; the tooltip has the whole. A joined
// series of more than 60 points is drawn as a line without them, and its error bars as a band.
// UsageError if no point is left.
std::string svg_of(const LineChart& chart);

struct HeatMap {
  std::string title = {}, subtitle = {}, x_label = {}, y_label = {};
  std::string value_label = {};        // above the colour bar
  std::vector<std::string> rows = {};  // their names, from the top
  // values[row][column]; NaN: blank.
  std::vector<std::vector<double>> values = {};
  std::int64_t first_column = 1;  // its number on the x axis
  bool log_color = false;
  // What the ends of the colour bar stand for; those not given are the least and greatest values
  // shown.
  std::optional<double> least = {}, greatest = {};
};

// More than 200 columns are drawn as means of equally many neighbours each (the last of what is
// left), blank ones left out. Values that are infinite, or on a logarithmic scale not positive, are
// blank; those beyond `least` and `greatest` have the colour of that end. UsageError for other than
// one row of values a name, for rows of unequal lengths, if nothing is left to show, and for ends
// that are not finite, not in order, or on a logarithmic scale not positive.
std::string svg_of(const HeatMap& map);

}  // namespace reprise
