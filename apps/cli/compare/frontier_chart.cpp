// Coordinates are pixels, from the upper left corner.
#include "apps/cli/compare/frontier_chart.h"

#include <fmt/format.h>
#include <reprise/error.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

namespace reprise::app {

namespace {

constexpr double kWidth = 880, kHeight = 540;
constexpr double kLeft = 76, kRight = 848, kTop = 108, kBottom = 470;
constexpr const char* kStyle = R"(<style>
text { font-family: system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; font-size: 13px; fill: #3d4451 }
.title { font-size: 18px; font-weight: 600; fill: #1b1f27 }
.axis { font-size: 13px; fill: #1b1f27 }
.quiet { fill: #6b7280 }
.value { font-size: 12px; font-weight: 600; fill: #1d4f91; paint-order: stroke; stroke: #fff; stroke-width: 3px }
.regions { fill: #b45309 }
.misfit { fill: #b91c1c }
.grid { stroke: #e5e7eb }
.frame { stroke: #9ca3af }
.line { fill: none; stroke: #2f6fbf; stroke-width: 2 }
.spread { stroke: #2f6fbf; stroke-width: 1.5; opacity: 0.55 }
</style>)";

constexpr const char* kColors[] = {"#2f6fbf", "#d97706", "#15803d", "#9333ea",
                                   "#be123c", "#0f766e", "#6b7280"};

const char* color_of(std::size_t series) { return kColors[series % std::size(kColors)]; }

std::string escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    if (c == '<') {
      safe += "&lt;";
    } else if (c == '&') {
      safe += "&amp;";
    } else {
      safe += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return safe;
}

// 1, 2 or 5 times a power of ten, so that about `count` of them span the range.
double nice_step(double range, int count) {
  const double raw = range / count;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double times : {1.0, 2.0, 5.0}) {
    if (raw <= times * power) return times * power;
  }
  return 10 * power;
}

// From data to pixels.
struct Scale {
  double first, last;  // of the data
  double from, to;     // in pixels
  double operator()(double value) const {
    return from + (value - first) / (last - first) * (to - from);
  }
};

class ChartWriter {
 public:
  explicit ChartWriter(const Chart& chart) : chart_(chart) {
    double megabytes = 0, slowest = 1.05, fastest = 1;
    for (const ChartPoint& point : chart.points) {
      megabytes = std::max(megabytes, point.megabytes);
      // One slow round should not flatten the rest.
      slowest = std::max({slowest, point.ratio, std::min(point.highest, 1.25 * point.ratio)});
      fastest = std::min({fastest, point.ratio, std::max(point.lowest, 0.8 * point.ratio)});
    }
    x_step_ = nice_step(std::max(megabytes, 1e-3), 8);
    y_step_ = nice_step(slowest - fastest, 6);
    x_ = {0, megabytes * 1.06 + 1e-9, kLeft, kRight};
    y_ = {std::floor(fastest / y_step_ + 1e-9) * y_step_,
          std::ceil(slowest / y_step_ + 0.4) * y_step_, kBottom, kTop};
  }

  std::string text() {
    draw_frame();
    for (std::size_t i = 0; i < std::max<std::size_t>(chart_.series.size(), 1); ++i) {
      draw_line(i, ChartPoint::Kind::kBudget);
      draw_line(i, ChartPoint::Kind::kPrediction);
    }
    draw_legend();
    for (const ChartPoint& point : chart_.points) draw(point);
    draw_labels();
    draw_misfits();
    return std::move(svg_) + "</svg>\n";
  }

 private:
  void draw_frame() {
    svg_ = fmt::format(
        R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0:.0f} {1:.0f}" width="{0:.0f}" height="{1:.0f}" role="img">)"
        "\n",
        kWidth, kHeight);
    svg_ += kStyle;
    svg_ += fmt::format("\n<title>{}</title>\n", escaped(chart_.title));
    svg_ += R"(<rect width="100%" height="100%" rx="8" fill="#ffffff"/>)";
    write(kLeft, 36, "title", "start", chart_.title);
    write(kLeft, 58, "quiet", "start", chart_.subtitle);
    for (double value = y_.first; value <= y_.last + y_step_ / 2; value += y_step_) {
      rule(kLeft, y_(value), kRight, y_(value), "grid");
      const int digits = y_step_ < 0.1 ? 2 : y_step_ < 1 ? 1 : 0;
      write(kLeft - 10, y_(value) + 4, "quiet", "end", fmt::format("{:.{}f}×", value, digits));
    }
    for (int i = 0; i * x_step_ <= x_.last; ++i) {
      const double value = i * x_step_;
      rule(x_(value), kBottom, x_(value), kBottom + 5, "frame");
      write(x_(value), kBottom + 22, "quiet", "middle", fmt::format("{:g}", value));
    }
    rule(kLeft, kBottom, kRight, kBottom, "frame");
    write((kLeft + kRight) / 2, kBottom + 48, "axis", "middle",
          "peak above what is live before the step (MB)");
    write(kLeft, kTop - 12, "axis", "start", "time of a step, × plain");
  }

  void draw_misfits() {
    for (const double megabytes : chart_.misfits) {
      const double x = x_(std::max(megabytes, 0.0));
      if (x > kRight) continue;
      svg_ += fmt::format(
          "<path d=\"M{:.1f} {:.1f}l9 9m0-9l-9 9\" stroke=\"#b91c1c\" stroke-width=\"2\"/>\n",
          x - 4.5, kBottom - 16);
      label(x, kBottom - 11.5, "misfit", "does not fit");
    }
  }

  void draw_line(std::size_t series, ChartPoint::Kind kind) {
    std::vector<std::pair<double, double>> line;
    // Where there is one line, it begins at the plain step.
    const bool with_plain = chart_.series.empty() && kind == ChartPoint::Kind::kBudget;
    for (const ChartPoint& point : chart_.points) {
      const bool is_plain = point.kind == ChartPoint::Kind::kPlain;
      if (is_plain ? !with_plain : point.kind != kind || point.series != series) continue;
      line.emplace_back(point.megabytes, point.ratio);
    }
    if (line.empty()) return;
    std::ranges::sort(line);
    std::string path;
    for (const auto& [megabytes, ratio] : line) {
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x_(megabytes), y_(ratio));
    }
    svg_ += fmt::format("<path class=\"line\" style=\"stroke:{}{}\" d=\"{}\"/>\n", color_of(series),
                        kind == ChartPoint::Kind::kPrediction ? ";stroke-dasharray:4 4" : "", path);
  }

  // From the right to the left.
  void draw_legend() {
    if (chart_.series.empty()) return;
    double x = kRight;
    for (std::size_t i = chart_.series.size(); i-- > 0;) {
      x -= 7.2 * static_cast<double>(chart_.series[i].size());
      write(x, 82, "axis", "start", chart_.series[i]);
      x -= 10;
      svg_ += fmt::format(R"(<circle cx="{:.1f}" cy="78" r="5" fill="{}"/>)", x, color_of(i));
      x -= 16;
    }
    write(kRight, 36, "quiet", "end", "filled: measured, hollow: predicted");
  }

  void draw(const ChartPoint& point) {
    const double x = x_(point.megabytes), y = y_(point.ratio);
    taken_.push_back({x - 7, y - 7, x + 7, y + 7});
    svg_ += fmt::format("<g><title>{}: {:.1f} MB, {:.3f}× plain ({:.3f} to {:.3f})</title>\n",
                        escaped(point.label), point.megabytes, point.ratio, point.lowest,
                        point.highest);
    if (point.kind == ChartPoint::Kind::kPrediction) {
      svg_ += fmt::format(
          R"(<circle cx="{:.1f}" cy="{:.1f}" r="5" fill="#fff" stroke="{}" stroke-width="1.5"/></g>)"
          "\n",
          x, y, color_of(point.series));
      return;
    }
    rule(x, y_(std::max(point.lowest, y_.first)), x, y_(std::min(point.highest, y_.last)),
         "spread");
    if (point.kind == ChartPoint::Kind::kBudget) {
      svg_ += fmt::format(
          R"(<circle cx="{:.1f}" cy="{:.1f}" r="5" fill="{}" stroke="#fff" stroke-width="1.5"/>)",
          x, y, color_of(point.series));
    } else {
      const bool is_plain = point.kind == ChartPoint::Kind::kPlain;
      const std::string turn =
          is_plain ? "" : fmt::format(" transform=\"rotate(45 {:.1f} {:.1f})\"", x, y);
      svg_ += fmt::format(
          R"(<rect x="{:.1f}" y="{:.1f}" width="11" height="11" fill="{}" stroke="#fff"{}/>)",
          x - 5.5, y - 5.5, is_plain ? "#1b1f27" : "#d97706", turn);
    }
    svg_ += "</g>\n";
  }

  void draw_labels() {
    for (const auto kind :
         {ChartPoint::Kind::kPlain, ChartPoint::Kind::kRegions, ChartPoint::Kind::kBudget}) {
      for (const ChartPoint& point : chart_.points) {
        if (point.kind != kind) continue;
        const std::string ratio = fmt::format("{:.2f}×", point.ratio);
        const bool is_budget = kind == ChartPoint::Kind::kBudget;
        label(x_(point.megabytes), y_(point.ratio),
              is_budget                            ? "value"
              : kind == ChartPoint::Kind::kRegions ? "regions"
                                                   : "axis",
              is_budget ? ratio : point.label + " " + ratio);
      }
    }
  }

  struct Box {
    double left, top, right, bottom;
    bool meets(const Box& other) const {
      return left < other.right && other.left < right && top < other.bottom && other.top < bottom;
    }
  };

  // At the first place around the point where it covers nothing; left out if there is none.
  void label(double x, double y, const char* kind, const std::string& text) {
    const double width = 7.2 * static_cast<double>(text.size());
    const std::pair<double, double> places[] = {{x - width / 2, y - 11}, {x - width / 2, y + 22},
                                                {x + 10, y + 20},        {x - 10 - width, y + 20},
                                                {x + 10, y - 10},        {x - 10 - width, y - 10},
                                                {x - width / 2, y - 28}};
    for (const auto& [left, base] : places) {
      const Box box = {left, base - 12, left + width, base + 3};
      const auto covers = [&](const Box& other) { return box.meets(other); };
      const bool is_out = box.left < kLeft || box.right > kWidth - 4 || box.bottom > kBottom;
      if (is_out || std::ranges::any_of(taken_, covers)) continue;
      taken_.push_back(box);
      return write(left, base, kind, "start", text);
    }
  }

  void write(double x, double y, const char* kind, const char* anchor, const std::string& text) {
    svg_ +=
        fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"{}\" text-anchor=\"{}\">{}</text>\n",
                    x, y, kind, anchor, escaped(text));
  }

  void rule(double x1, double y1, double x2, double y2, const char* kind) {
    svg_ += fmt::format(
        "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"{}\"/>\n", x1, y1,
        x2, y2, kind);
  }

  const Chart& chart_;
  double x_step_ = 1, y_step_ = 1;
  Scale x_{}, y_{};
  std::string svg_;
  std::vector<Box> taken_;
};

}  // namespace

std::string svg_of(const Chart& chart) { return ChartWriter(chart).text(); }

ChartFile::ChartFile(const std::string& path, const std::vector<std::string>& data) {
  if (path.empty()) return;
  refuse_overlap("--svg", path, data);
  file_ = std::make_unique<AtomicFile>(path, "--svg");
}

void ChartFile::write(const Chart& chart) const {
  if (!file_) return;
  try {
    file_->write(svg_of(chart));
    file_->take_place();
  } catch (const Error& error) {
    throw Error(fmt::format("{}; free space or choose another file with --svg", error.what()));
  }
}

}  // namespace reprise::app
