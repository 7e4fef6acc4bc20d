// One look for all pictures, close to that of the command line's frontier.
#include "report/drawing.h"

#include <algorithm>
#include <cmath>

#include "report/characters.h"

namespace reprise {

namespace {

constexpr const char* kStyle = R"(<style>
text { font-family: system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; font-size: 13px; fill: #3d4451 }
.title { font-size: 18px; font-weight: 600; fill: #1b1f27 }
.axis { fill: #1b1f27 }
.quiet { fill: #6b7280 }
.grid { stroke: #e5e7eb }
.frame { stroke: #9ca3af; fill: none }
</style>)";

// Figures that are mostly zeros are read more easily with an exponent.
std::string tick_text(double value, double step, double greatest) {
  if (greatest >= 1e7 || step < 1e-5) return significant(value, 4);
  return fixed(value, std::max(0, -static_cast<int>(std::floor(std::log10(step) + 1e-9))));
}

}  // namespace

bool is_drawable(double value, bool is_log) {
  return std::abs(value) <= 1e150 && (!is_log || value >= 1e-150);
}

double nice_step(double range, int count) {
  const double raw = range / count;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double times : {1.0, 2.0, 5.0}) {
    if (raw <= times * power) return times * power;
  }
  return 10 * power;
}

Axis Axis::between(double low, double high, bool is_log) {
  if (is_log) {
    if (high / low < 1 + 1e-9) return {low / 1.1, high * 1.1, true};
    return {low, high, true};
  }
  const double greatest = std::max(std::abs(low), std::abs(high));
  // Less than this is lost in rounding.
  if (high - low <= 1e-12 * greatest || high - low < 1e-290) {
    const double margin = greatest > 1e-280 ? 0.05 * greatest : 1;
    return {low - margin, high + margin, false};
  }
  return {low, high, false};
}

Axis Axis::around(double low, double high, bool is_log) {
  constexpr double kMargin = 0.05;
  Axis axis = between(low, high, is_log);
  if (is_log) {
    const double margin = std::pow(axis.last_ / axis.first_, kMargin);
    return {axis.first_ / margin, axis.last_ * margin, true};
  }
  const double margin = kMargin * (axis.last_ - axis.first_);
  const bool is_zero_near_below = low >= 0 && low < 0.4 * high;
  const bool is_zero_near_above = high <= 0 && high > 0.4 * low;
  return {is_zero_near_below ? 0 : axis.first_ - margin,
          is_zero_near_above ? 0 : axis.last_ + margin, false};
}

void Axis::place(double from, double to) {
  from_ = from;
  to_ = to;
}

double Axis::operator()(double value) const {
  // Differences of logarithms, for quotients may overflow.
  const auto part = [&](double low, double high) {
    return is_log_ ? std::log(high) - std::log(low) : high - low;
  };
  return from_ + part(first_, value) / part(first_, last_) * (to_ - from_);
}

double Axis::clamped(double value) const { return (*this)(std::clamp(value, first_, last_)); }

std::vector<Axis::Tick> Axis::decades() const {
  std::vector<Tick> ticks;
  const int low = static_cast<int>(std::floor(std::log10(first_)));
  const int high = static_cast<int>(std::ceil(std::log10(last_)));
  // Not so many that their texts would meet.
  const int every = 1 + (high - low) / 10;
  for (int power = low; power <= high; power += every) {
    for (const int times : {1, 2, 5}) {
      if (times > 1 && high - low > 3) break;
      const double value = times * std::pow(10, power);
      if (value >= first_ && value <= last_) ticks.push_back({value, significant(value, 4)});
    }
  }
  return ticks;
}

std::vector<Axis::Tick> Axis::ticks(int count) const {
  if (is_log_) {
    std::vector<Tick> found = decades();
    if (found.size() >= 3) return found;
  }
  const double step = nice_step(last_ - first_, count);
  std::vector<Tick> ticks;
  const double greatest = std::max(std::abs(first_), std::abs(last_));
  const double begin = std::ceil(first_ / step - 1e-9);
  for (int i = 0; (begin + i) * step <= last_ + 1e-9 * step && i <= 2 * count; ++i) {
    const double value = (begin + i) * step;
    ticks.push_back({value, tick_text(value, step, greatest)});
  }
  return ticks;
}

Drawing::Drawing(double width, double height, double left, const std::string& title,
                 const std::string& subtitle) {
  const std::string w = fixed(width, 0), h = fixed(height, 0);
  svg_ = R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 )" + w + " " + h + "\" width=\"" +
         w + "\" height=\"" + h + "\" role=\"img\">\n" + kStyle + "\n<title>" + xml_escaped(title) +
         "</title>\n" + R"(<rect width="100%" height="100%" rx="8" fill="#ffffff"/>)" + "\n";
  const double room = width - left - 16;
  constexpr double kTitleCharacterWidth = 9.8;
  write(left, 36, "title", "start",
        shortened(title, static_cast<std::size_t>(room / kTitleCharacterWidth)));
  write(left, 58, "quiet", "start",
        shortened(subtitle, static_cast<std::size_t>(room / kCharacterWidth)));
}

void Drawing::write(double x, double y, const char* kind, const char* anchor,
                    const std::string& text) {
  if (text.empty()) return;
  svg_ += "<text x=\"" + pixel(x) + "\" y=\"" + pixel(y) + "\" class=\"" + kind +
          "\" text-anchor=\"" + anchor + "\">" + xml_escaped(text) + "</text>\n";
}

void Drawing::rule(double x1, double y1, double x2, double y2, const char* kind) {
  svg_ += "<line x1=\"" + pixel(x1) + "\" y1=\"" + pixel(y1) + "\" x2=\"" + pixel(x2) + "\" y2=\"" +
          pixel(y2) + "\" class=\"" + kind + "\"/>\n";
}

std::string pixel(double value) { return fixed(value, 1); }

}  // namespace reprise
