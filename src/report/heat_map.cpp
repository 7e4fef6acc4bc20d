// Rows of cells, coloured by their values.
#include <reprise/error.h>
#include <reprise/report.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "report/characters.h"
#include "report/drawing.h"

namespace reprise {

namespace {

constexpr std::size_t kMostColumns = 200;
constexpr std::size_t kLongestRowName = 28;
constexpr double kPlotWidth = 640, kPlotTop = 108;
constexpr double kBlank = std::numeric_limits<double>::quiet_NaN();

using Values = std::vector<double>;

// From light to dark in even steps of lightness, and one hue, for readers who do not tell colours
// apart.
struct Rgb {
  double red, green, blue;
};
constexpr std::array<Rgb, 5> kRamp = {
    {{233, 240, 249}, {160, 195, 232}, {90, 146, 212}, {38, 92, 166}, {13, 38, 82}}};
// Neighbours in one of so many colours are one cell.
constexpr int kShades = 64;

std::string color_of(int shade) {
  const double place = static_cast<double>(shade) / (kShades - 1) * (kRamp.size() - 1);
  const auto below = std::min(static_cast<std::size_t>(place), kRamp.size() - 2);
  const double part = place - static_cast<double>(below);
  const auto mixed = [&](double Rgb::*channel) {
    const double value = kRamp[below].*channel * (1 - part) + kRamp[below + 1].*channel * part;
    return static_cast<unsigned>(std::lround(value));
  };
  std::string color = "#";
  for (const unsigned channel : {mixed(&Rgb::red), mixed(&Rgb::green), mixed(&Rgb::blue)}) {
    constexpr const char* kDigits = "0123456789abcdef";
    color += kDigits[channel / 16];
    color += kDigits[channel % 16];
  }
  return color;
}

// The means of each `width` neighbours.
Values binned(const Values& row, std::size_t width, bool is_log) {
  Values bins;
  for (std::size_t begin = 0; begin < row.size(); begin += width) {
    double sum = 0, count = 0;
    for (std::size_t i = begin; i < std::min(begin + width, row.size()); ++i) {
      if (!is_drawable(row[i], is_log)) continue;
      sum += row[i];
      ++count;
    }
    bins.push_back(count > 0 ? sum / count : kBlank);
  }
  return bins;
}

void check(const HeatMap& map) {
  const std::string name = "the heat map '" + map.title + "'";
  if (map.rows.size() != map.values.size()) {
    throw UsageError(name + " has " + std::to_string(map.rows.size()) + " names for " +
                     std::to_string(map.values.size()) + " rows; give each row one");
  }
  for (std::size_t i = 0; i < map.values.size(); ++i) {
    if (map.values[i].size() == map.values[0].size()) continue;
    throw UsageError(name + ": row " + std::to_string(i) + " has " +
                     std::to_string(map.values[i].size()) + " columns and the first " +
                     std::to_string(map.values[0].size()) + "; fill up with NaN");
  }
  for (const std::optional<double>& end : {map.least, map.greatest}) {
    if (!end || is_drawable(*end, map.log_color)) continue;
    throw UsageError(name + ": its colours end at " + std::to_string(*end) + "; give a finite" +
                     (map.log_color ? ", positive" : "") + " value");
  }
}

class HeatPlot {
 public:
  explicit HeatPlot(const HeatMap& map) : map_(map), colors_(Axis::between(0, 1, false)) {
    check(map);
    const std::size_t columns = map.values.empty() ? 0 : map.values[0].size();
    width_of_bin_ = (columns + kMostColumns - 1) / kMostColumns;
    for (const Values& row : map.values) {
      bins_.push_back(binned(row, std::max<std::size_t>(width_of_bin_, 1), map.log_color));
    }
    find_colors();
    std::size_t longest = 0;
    for (const std::string& name : map.rows) longest = std::max(longest, characters(name));
    left_ = 32 + kCharacterWidth * static_cast<double>(std::min(longest, kLongestRowName));
    const auto rows = static_cast<double>(map.rows.size());
    height_of_row_ = std::clamp(360 / rows, 4.0, 26.0);
    bottom_ = kPlotTop + rows * height_of_row_;
    column_width_ = kPlotWidth / static_cast<double>(columns);
  }

  std::string text() && {
    const double bar_bottom = std::max(bottom_, kPlotTop + 130);
    const double label = kCharacterWidth * static_cast<double>(characters(map_.value_label));
    Drawing drawing(left_ + kPlotWidth + std::max(140.0, 40 + label), bar_bottom + 70, left_,
                    map_.title, map_.subtitle);
    draw_cells(drawing);
    draw_axes(drawing);
    draw_colors(drawing, bar_bottom);
    return std::move(drawing).text();
  }

 private:
  void find_colors() {
    double least = kBlank, greatest = kBlank;
    for (const Values& row : bins_) {
      for (const double value : row) {
        if (std::isnan(value)) {
          has_blanks_ = true;
          continue;
        }
        least = std::fmin(least, value);
        greatest = std::fmax(greatest, value);
      }
    }
    if (std::isnan(least)) {
      throw UsageError("the heat map '" + map_.title + "' has no value to show; leave it out");
    }
    least = map_.least.value_or(map_.greatest ? std::min(least, *map_.greatest) : least);
    greatest = map_.greatest.value_or(std::max(least, greatest));
    if (least > greatest) {
      throw UsageError("the heat map '" + map_.title + "' has colours from " +
                       std::to_string(least) + " to " + std::to_string(greatest) +
                       "; give the lesser value first");
    }
    colors_ = Axis::between(least, greatest, map_.log_color);
    colors_.place(0, kShades - 1);
  }

  int shade_of(double value) const { return static_cast<int>(std::lround(colors_.clamped(value))); }

  double x_of(std::size_t bin) const {
    const std::size_t columns = map_.values[0].size();
    return left_ + static_cast<double>(std::min(bin * width_of_bin_, columns)) * column_width_;
  }

  void draw_cells(Drawing& drawing) const {
    drawing.add(R"(<pattern id="blank" width="6" height="6" patternUnits="userSpaceOnUse">)"
                R"(<path d="M0 6L6 0" stroke="#d1d5db"/></pattern>)"
                "\n<rect x=\"" +
                pixel(left_) + "\" y=\"" + pixel(kPlotTop) + "\" width=\"" + pixel(kPlotWidth) +
                "\" height=\"" + pixel(bottom_ - kPlotTop) +
                "\" fill=\"url(#blank)\"/>\n<g shape-rendering=\"crispEdges\">\n");
    for (std::size_t r = 0; r < bins_.size(); ++r) {
      const Values& row = bins_[r];
      const double y = kPlotTop + static_cast<double>(r) * height_of_row_;
      for (std::size_t begin = 0, end = 0; begin < row.size(); begin = end) {
        end = begin + 1;
        if (std::isnan(row[begin])) continue;
        const int shade = shade_of(row[begin]);
        while (end < row.size() && !std::isnan(row[end]) && shade_of(row[end]) == shade) ++end;
        drawing.add("<path d=\"M" + pixel(x_of(begin)) + " " + pixel(y) + "H" + pixel(x_of(end)) +
                    "v" + pixel(height_of_row_) + "H" + pixel(x_of(begin)) + "z\" fill=\"" +
                    color_of(shade) + "\"/>\n");
      }
    }
    drawing.add("</g>\n");
  }

  void draw_axes(Drawing& drawing) const {
    // Names that would meet are left out.
    const auto every = static_cast<std::size_t>(std::ceil(14 / height_of_row_));
    for (std::size_t r = 0; r < map_.rows.size(); r += every) {
      drawing.write(left_ - 10, kPlotTop + (static_cast<double>(r) + 0.5) * height_of_row_ + 4,
                    "quiet", "end", shortened(map_.rows[r], kLongestRowName));
    }
    const auto columns = static_cast<double>(map_.values[0].size());
    // At columns, not between them.
    const double step = std::max(1.0, nice_step(columns, 8));
    const auto first = static_cast<double>(map_.first_column);
    const double begin = std::ceil(first / step);
    for (int i = 0; (begin + i) * step < first + columns; ++i) {
      const double value = (begin + i) * step;
      const double x = left_ + (value - first + 0.5) * column_width_;
      drawing.rule(x, bottom_, x, bottom_ + 5, "frame");
      drawing.write(x, bottom_ + 22, "quiet", "middle", fixed(value, 0));
    }
    drawing.add("<rect x=\"" + pixel(left_) + "\" y=\"" + pixel(kPlotTop) + "\" width=\"" +
                pixel(kPlotWidth) + "\" height=\"" + pixel(bottom_ - kPlotTop) +
                "\" class=\"frame\"/>\n");
    drawing.write(left_ + kPlotWidth / 2, bottom_ + 48, "axis", "middle", map_.x_label);
    drawing.write(left_, kPlotTop - 12, "axis", "start", map_.y_label);
  }

  void draw_colors(Drawing& drawing, double bottom) const {
    const double left = left_ + kPlotWidth + 24;
    const double height = (bottom - kPlotTop) / kShades;
    // From the top, each down to the end, so that no gap shows between them.
    for (int shade = kShades; shade-- > 0;) {
      drawing.add("<path d=\"M" + pixel(left) + " " + pixel(bottom - (shade + 1) * height) +
                  "h14V" + pixel(bottom) + "h-14z\" fill=\"" + color_of(shade) + "\"/>\n");
    }
    Axis bar = colors_;
    bar.place(bottom, kPlotTop);
    for (const Axis::Tick& tick : bar.ticks(5)) {
      drawing.rule(left + 14, bar(tick.value), left + 18, bar(tick.value), "frame");
      drawing.write(left + 22, bar(tick.value) + 4, "quiet", "start", tick.text);
    }
    drawing.write(left, kPlotTop - 12, "axis", "start", map_.value_label);
    if (has_blanks_) drawing.write(left, bottom + 22, "quiet", "start", "hatched: none");
  }

  const HeatMap& map_;
  std::vector<Values> bins_;
  Axis colors_;
  bool has_blanks_ = false;
  std::size_t width_of_bin_ = 1;
  double left_ = 0, height_of_row_ = 0, bottom_ = 0, column_width_ = 0;
};

}  // namespace

std::string svg_of(const HeatMap& map) { return HeatPlot(map).text(); }

}  // namespace reprise
