// Series of points on two axes.
#include <reprise/error.h>
#include <reprise/report.h>

#include <algorithm>
#include <iterator>

#include "report/characters.h"
#include "report/drawing.h"

namespace reprise {

namespace {

constexpr double kLeft = 76, kRight = 756, kTop = 108, kLeastBottom = 470;
constexpr double kLegendLine = 20;
constexpr std::size_t kLongestName = 36;  // in the legend
constexpr std::size_t kMostMarkers = 60;  // in a joined series
constexpr const char* kColors[] = {"#2f6fbf", "#d97706", "#15803d", "#9333ea", "#be123c",
                                   "#0891b2", "#6b7280", "#db2777", "#1b1f27", "#84cc16"};

// How a series looks.
struct Look {
  std::string color;
  bool is_second_round;  // of the colours

  explicit Look(std::size_t series)
      : color(kColors[series % std::size(kColors)]),
        is_second_round(series / std::size(kColors) % 2 == 1) {}

  std::string stroke() const {
    return " stroke=\"" + color + "\"" + (is_second_round ? " stroke-dasharray=\"6 4\"" : "");
  }
  std::string marker(double x, double y) const {
    return "<circle cx=\"" + pixel(x) + "\" cy=\"" + pixel(y) + "\" r=\"4.5\" fill=\"" +
           (is_second_round ? "#fff" : color) + "\" stroke=\"" +
           (is_second_round ? color : "#fff") + "\" stroke-width=\"1.5\"/>";
  }
};

// What the points reach, and how far their bars would stretch that.
struct Extent {
  double low = 0, high = 0;
  double low_bar = 0, high_bar = 0;
  bool is_empty = true;

  void add(double value) {
    low = is_empty ? value : std::min(low, value);
    high = is_empty ? value : std::max(high, value);
    is_empty = false;
  }
  Axis axis(bool is_log) const {
    double least = std::min(low, low_bar), most = std::max(high, high_bar);
    // One wide bar should not flatten the rest.
    if (high > low) {
      least = std::max(least, is_log ? low * (low / high) : low - (high - low));
      most = std::min(most, is_log ? high * (high / low) : high + (high - low));
    }
    return Axis::around(least, most, is_log);
  }
};

class LinePlot {
 public:
  explicit LinePlot(const LineChart& chart)
      : chart_(chart),
        x_(axis_of(&LineChart::Point::x, &LineChart::Point::x_range, false)),
        y_(axis_of(&LineChart::Point::y, &LineChart::Point::y_range, chart.log_y)),
        bottom_(
            std::max(kLeastBottom, kTop + kLegendLine * static_cast<double>(chart.series.size()))),
        drawing_(kRight + legend_width(), bottom_ + 70, kLeft, chart.title, chart.subtitle) {
    x_.place(kLeft, kRight);
    y_.place(bottom_, kTop);
  }

  std::string text() && {
    draw_axes();
    for (std::size_t i = 0; i < chart_.series.size(); ++i) draw_line(chart_.series[i], Look(i));
    for (std::size_t i = 0; i < chart_.series.size(); ++i) draw_points(chart_.series[i], Look(i));
    draw_legend();
    return std::move(drawing_).text();
  }

 private:
  using Range = std::optional<Interval>;

  bool is_drawn(const LineChart::Point& point) const {
    return is_drawable(point.x, false) && is_drawable(point.y, chart_.log_y);
  }
  static bool is_drawn(const Range& range, bool is_log) {
    return range && is_drawable(range->low, false) && is_drawable(range->high, is_log) &&
           range->low <= range->high;
  }

  Axis axis_of(double LineChart::Point::*value, Range LineChart::Point::*range, bool is_log) const {
    Extent extent;
    for_each_drawn([&](const LineChart::Point& point) { extent.add(point.*value); });
    if (extent.is_empty) {
      throw UsageError("the chart '" + chart_.title +
                       "' has no point that can be drawn; leave it out");
    }
    extent.low_bar = extent.low;
    extent.high_bar = extent.high;
    for_each_drawn([&](const LineChart::Point& point) {
      const Range& bar = point.*range;
      if (!is_drawn(bar, is_log)) return;
      if (is_drawable(bar->low, is_log)) extent.low_bar = std::min(extent.low_bar, bar->low);
      extent.high_bar = std::max(extent.high_bar, bar->high);
    });
    return extent.axis(is_log);
  }

  template <class F>
  void for_each_drawn(F&& use) const {
    for (const LineChart::Series& series : chart_.series) {
      for (const LineChart::Point& point : series.points) {
        if (is_drawn(point)) use(point);
      }
    }
  }

  bool has_legend() const { return chart_.series.size() > 1 || !chart_.series[0].name.empty(); }

  double legend_width() const {
    if (!has_legend()) return 32;
    std::size_t longest = 0;
    for (const LineChart::Series& series : chart_.series) {
      longest = std::max(longest, std::min(kLongestName, characters(series.name)));
    }
    return 64 + kCharacterWidth * static_cast<double>(longest);
  }

  void draw_axes() {
    for (const Axis::Tick& tick : y_.ticks(6)) {
      drawing_.rule(kLeft, y_(tick.value), kRight, y_(tick.value), "grid");
      drawing_.write(kLeft - 10, y_(tick.value) + 4, "quiet", "end", tick.text);
    }
    for (const Axis::Tick& tick : x_.ticks(8)) {
      drawing_.rule(x_(tick.value), bottom_, x_(tick.value), bottom_ + 5, "frame");
      drawing_.write(x_(tick.value), bottom_ + 22, "quiet", "middle", tick.text);
    }
    drawing_.rule(kLeft, bottom_, kRight, bottom_, "frame");
    drawing_.write((kLeft + kRight) / 2, bottom_ + 48, "axis", "middle", chart_.x_label);
    drawing_.write(kLeft, kTop - 12, "axis", "start", chart_.y_label);
  }

  static bool has_markers(const LineChart::Series& series) {
    return !series.is_joined || series.points.size() <= kMostMarkers;
  }

  // The line of a joined series, and where it is too dense for bars their band; each in pieces
  // between points that are left out.
  void draw_line(const LineChart::Series& series, const Look& look) {
    if (!series.is_joined) return;
    std::string line, upper, lower, bands;
    const auto end_band = [&] {
      if (!upper.empty()) bands += "M" + upper + lower + "Z";
      upper.clear();
      lower.clear();
    };
    bool is_new = true;
    for (const LineChart::Point& point : series.points) {
      if (!is_drawn(point)) {
        is_new = true;
        end_band();
        continue;
      }
      const std::string x = pixel(x_(point.x));
      line += (is_new ? "M" : "L") + x + " " + pixel(y_(point.y));
      is_new = false;
      if (has_markers(series) || !is_drawn(point.y_range, chart_.log_y)) {
        end_band();
        continue;
      }
      upper += (upper.empty() ? "" : "L") + x + " " + pixel(y_.clamped(point.y_range->high));
      lower.insert(0, "L" + x + " " + pixel(y_.clamped(point.y_range->low)));
    }
    end_band();
    if (!bands.empty()) {
      drawing_.add("<path d=\"" + bands + "\" fill=\"" + look.color + "\" opacity=\"0.14\"/>\n");
    }
    if (line.empty()) return;
    drawing_.add("<path d=\"" + line +
                 "\" fill=\"none\" stroke-width=\"2\" stroke-linejoin=\"round\"" + look.stroke() +
                 "/>\n");
  }

  void draw_points(const LineChart::Series& series, const Look& look) {
    if (!has_markers(series)) return;
    for (const LineChart::Point& point : series.points) {
      if (!is_drawn(point)) continue;
      const double x = x_(point.x), y = y_(point.y);
      drawing_.add("<g><title>" + xml_escaped(tooltip_of(point, series)) + "</title>");
      if (is_drawn(point.x_range, false)) {
        bar(look, x_.clamped(point.x_range->low), y, x_.clamped(point.x_range->high), y);
      }
      if (is_drawn(point.y_range, chart_.log_y)) {
        bar(look, x, y_.clamped(point.y_range->low), x, y_.clamped(point.y_range->high));
      }
      drawing_.add(look.marker(x, y) + "</g>\n");
    }
  }

  void bar(const Look& look, double x1, double y1, double x2, double y2) {
    drawing_.add("<path d=\"M" + pixel(x1) + " " + pixel(y1) + "L" + pixel(x2) + " " + pixel(y2) +
                 "\" fill=\"none\" stroke-width=\"1.5\" opacity=\"0.55\" stroke=\"" + look.color +
                 "\"/>");
  }

  static std::string figure_of(double value, const Range& range) {
    std::string text = significant(value, 5);
    if (range) {
      text += " (" + significant(range->low, 5) + " to " + significant(range->high, 5) + ")";
    }
    return text;
  }
  static std::string tooltip_of(const LineChart::Point& point, const LineChart::Series& series) {
    return (point.label.empty() ? series.name : point.label) + ": " +
           figure_of(point.x, point.x_range) + ", " + figure_of(point.y, point.y_range);
  }

  void draw_legend() {
    if (!has_legend()) return;
    double y = kTop + 8;
    for (std::size_t i = 0; i < chart_.series.size(); ++i) {
      const LineChart::Series& series = chart_.series[i];
      const Look look(i);
      drawing_.add("<g><title>" + xml_escaped(series.name) + "</title>");
      if (series.is_joined) {
        drawing_.add("<path d=\"M" + pixel(kRight + 18) + " " + pixel(y) +
                     "h20\" stroke-width=\"2\"" + look.stroke() + "/>");
      }
      if (has_markers(series)) drawing_.add(look.marker(kRight + 28, y));
      drawing_.write(kRight + 46, y + 4, "axis", "start", shortened(series.name, kLongestName));
      drawing_.add("</g>\n");
      y += kLegendLine;
    }
  }

  const LineChart& chart_;
  Axis x_, y_;
  double bottom_;
  Drawing drawing_;
};

}  // namespace

std::string svg_of(const LineChart& chart) { return LinePlot(chart).text(); }

}  // namespace reprise
