// What the pictures of reports are drawn with: a page of SVG, and axes from data to pixels.
//
// Coordinates are pixels, from the upper left corner.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace reprise {

// About as wide as a character is at the size of most texts, and what keeps them apart.
inline constexpr double kCharacterWidth = 7.2;

// Whether a coordinate can be drawn: finite, on a logarithmic axis positive, and not so large or
// small that extents would overflow.
bool is_drawable(double value, bool is_log);

// 1, 2 or 5 times a power of ten, so that about `count` of them span the range, which is positive.
double nice_step(double range, int count);

// From data to pixels, linear or logarithmic.
class Axis {
 public:
  struct Tick {
    double value;
    std::string text;
  };

  // Spans at least `low` to `high`: drawable, in order, and positive on a logarithmic axis. Zero is
  // on a linear one that it would not stretch by much.
  static Axis around(double low, double high, bool is_log);
  // Spans just that, or a little more where both are the same.
  static Axis between(double low, double high, bool is_log);

  // Where `first()` and `last()` are drawn.
  void place(double from, double to);

  double first() const { return first_; }
  double last() const { return last_; }
  double operator()(double value) const;
  double clamped(double value) const;
  std::vector<Tick> ticks(int count) const;

 private:
  Axis(double first, double last, bool is_log) : first_(first), last_(last), is_log_(is_log) {}
  std::vector<Tick> decades() const;

  double first_, last_;
  double from_ = 0, to_ = 1;
  bool is_log_;
};

class Drawing {
 public:
  // A white page with its heading, which is cut to what fits; the title is also its tooltip.
  Drawing(double width, double height, double left, const std::string& title,
          const std::string& subtitle);

  // `kind` is a class of the style; `anchor` is start, middle or end.
  void write(double x, double y, const char* kind, const char* anchor, const std::string& text);
  void rule(double x1, double y1, double x2, double y2, const char* kind);
  // Elements as they are.
  void add(const std::string& elements) { svg_ += elements; }
  std::string text() && { return std::move(svg_) + "</svg>\n"; }

 private:
  std::string svg_;
};

// A coordinate as SVG has it, to a tenth of a pixel.
std::string pixel(double value);

}  // namespace reprise
