// Charts as their readers' programs see them: well-formed, finite, everything inside the page.
#include <gmock/gmock.h>
#include <rapidcheck.h>
#include <reprise/report.h>

#include <cmath>
#include <cstdint>
#include <locale>

#include "tests/refusal.h"
#include "tests/report/not_finite.h"
#include "tests/report/pictures.h"

namespace reprise {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

LineChart chart_of(std::vector<LineChart::Point> points) {
  return {.title = "T", .series = {{"s", std::move(points)}}};
}

LineChart::Series many(const std::string& name, int count) {
  LineChart::Series series{name, {}};
  for (int i = 0; i < count; ++i) {
    series.points.push_back({double(i), double(i), {}, Interval{i - 1.0, i + 1.0}});
  }
  return series;
}

// The data of the line of the first series.
std::string line_in(const std::string& svg) {
  for (const std::string& path : all_between(svg, "<path ", "/>")) {
    if (path.find("stroke-linejoin") != path.npos) return all_between(path, "d=\"", "\"").at(0);
  }
  return "";
}

TEST(LineChart, PlacesPointsByTheirCoordinates) {
  // The axes go from 0 to 105 % of what is there.
  const std::string svg = svg_of(chart_of({{0, 0}, {100, 10}, {50, 5}}));
  EXPECT_EQ(malformation_of(svg), "");
  EXPECT_THAT(all_between(svg, "<g><title>", "</title>"), testing::Contains("s: 100, 10"));
  const auto xs = all_between(svg, "cx=\"", "\"");
  const auto ys = all_between(svg, "cy=\"", "\"");
  // The fourth is the legend's.
  ASSERT_EQ(xs.size(), 4U);
  EXPECT_THAT(xs, ElementsAre("76.0", "723.6", "399.8", testing::_));
  EXPECT_THAT(ys, ElementsAre("470.0", "125.2", "297.6", testing::_));
  EXPECT_EQ(line_in(svg), "M76.0 470.0L723.6 125.2L399.8 297.6");
}

TEST(LineChart, EscapesTextsAndMendsBrokenOnes) {
  LineChart chart = chart_of({{1, 1, {}, {}, "<point> & \"co\""}});
  chart.title = "a<b & \x01 \xff\xe2\x82";
  chart.series[0].name = "ends with \xf0\x9f";
  const std::string svg = svg_of(chart);
  EXPECT_EQ(malformation_of(svg), "");
  EXPECT_THAT(svg, HasSubstr("<title>a&lt;b &amp;   ���</title>"));
  EXPECT_THAT(svg, HasSubstr("&lt;point&gt; &amp; &quot;co&quot;: 1, 1"));
}

TEST(LineChart, LeavesOutWhatIsNotFiniteAndShowsTheGap) {
  const std::string svg =
      svg_of(chart_of({{1, 1}, {2, 2}, {3, kNaN}, {4, kInfinity}, {5, 2}, {6, 1}, {kNaN, 1}}));
  EXPECT_EQ(count_of(line_in(svg), "M"), 2U);
  EXPECT_EQ(count_of(line_in(svg), "L"), 2U);
  EXPECT_EQ(count_of(svg, "<circle"), 5U);
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
}

TEST(LineChart, OnALogarithmicAxisLeavesOutWhatIsNotPositive) {
  LineChart chart = chart_of({{1, 1}, {2, 0}, {3, -1}, {4, 1000}});
  chart.log_y = true;
  const std::string svg = svg_of(chart);
  EXPECT_EQ(count_of(svg, "<circle"), 3U);
  // A decade is as high as the next.
  const auto rules = all_between(svg, "class=\"quiet\" text-anchor=\"end\">", "<");
  EXPECT_THAT(rules, ElementsAre("1", "10", "100", "1000"));
}

TEST(LineChart, DrawsABarThatBeginsBelowALogarithmicAxisFromTheAxisOn) {
  LineChart chart = chart_of({{1, 1, {}, Interval{-1, 2}}, {2, 10}});
  chart.log_y = true;
  EXPECT_THAT(svg_of(chart), HasSubstr(" 470.0L"));
}

TEST(LineChart, IsNotFlattenedByOneWideBar) {
  const std::string svg = svg_of(chart_of({{1, 1, {}, Interval{-1e6, 1e6}}, {2, 2}}));
  const auto labels = all_between(svg, "class=\"quiet\" text-anchor=\"end\">", "<");
  EXPECT_EQ(labels.front(), "0");
  EXPECT_EQ(labels.back(), "3");
  EXPECT_THAT(svg, HasSubstr("1 (-1e+06 to 1e+06)"));
}

TEST(LineChart, DrawsManyPointsAsALineWithABand) {
  LineChart chart{.title = "T", .series = {many("s", 200)}};
  const std::string svg = svg_of(chart);
  EXPECT_EQ(count_of(svg, "<circle"), 0U);
  EXPECT_EQ(count_of(svg, "opacity=\"0.14\""), 1U);
  chart.series[0].is_joined = false;
  EXPECT_EQ(count_of(svg_of(chart), "<circle"), 201U);
}

TEST(LineChart, HasItsLegendBesideThePlot) {
  LineChart chart{.title = "T", .series = {}};
  for (int i = 0; i < 30; ++i) chart.series.push_back(many("series " + std::to_string(i), 3));
  const std::string svg = svg_of(chart);
  EXPECT_EQ(malformation_of(svg), "");
  EXPECT_THAT(svg, HasSubstr(">series 29</text>"));
  // The page is high enough for all of them, and the plot ends left of it.
  const double height = std::stod(all_between(svg, "height=\"", "\"").at(0));
  double lowest = 0;
  for (const std::string& y : all_between(svg, "y=\"", "\""))
    lowest = std::max(lowest, std::stod(y));
  EXPECT_LT(lowest, height);
  EXPECT_THAT(svg, HasSubstr("stroke-dasharray"));
  EXPECT_EQ(count_of(svg_of(chart_of({{1, 1}})), ">s</text>"), 1U);
}

TEST(LineChart, RefusesToDrawNothing) {
  EXPECT_THAT(refusal_of([] { svg_of(LineChart{.title = "Loss"}); }),
              HasSubstr("the chart 'Loss' has no point that can be drawn; leave it out"));
  EXPECT_THAT(refusal_of([] { svg_of(chart_of({{1, kNaN}})); }), HasSubstr("no point"));
}

TEST(LineChart, DrawsNumbersOfAnySizeInsideItsPage) {
  using Parts = std::pair<std::int16_t, std::int16_t>;
  EXPECT_TRUE(rc::check([](const std::vector<std::pair<Parts, Parts>>& values, bool is_log) {
    // Overflow and underflow are among them.
    const auto number = [](const Parts& parts) {
      return std::ldexp(parts.first, parts.second % 1100);
    };
    LineChart chart{.title = "T", .log_y = is_log, .series = {{"s", {}}}};
    for (const auto& [first, second] : values) {
      const double x = number(first), y = number(second);
      chart.series[0].points.push_back({x, y, Interval{x - 1, x + 1}, Interval{y / 2, y * 2}});
    }
    // One that is there in any case.
    chart.series[0].points.push_back({1, 1});
    const std::string svg = svg_of(chart);
    RC_ASSERT(malformation_of(svg) == "");
    const auto y_labels = all_between(svg, "class=\"quiet\" text-anchor=\"end\">", "<");
    RC_ASSERT(y_labels.size() >= 2U && y_labels.size() <= 32U);
    for (const char* name : {"cx=\"", "cy=\"", "x=\"", "y=\"", "x1=\"", "y1=\""}) {
      for (const std::string& text : all_between(svg, name, "\"")) {
        const double value = std::stod(text);
        RC_ASSERT(value >= 0 && value <= 1200);
      }
    }
  }));
}

// Writes numbers as German does.
struct Commas : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

TEST(LineChart, HasPointsInItsNumbersInAnyLocale) {
  const LineChart chart = chart_of({{1, 1.5}, {25000, 3}});
  const std::string plain = svg_of(chart);
  const std::locale before = std::locale::global(std::locale(std::locale(), new Commas));
  const std::string german = svg_of(chart);
  std::locale::global(before);
  EXPECT_EQ(german, plain);
}

}  // namespace
}  // namespace reprise
