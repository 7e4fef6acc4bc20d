// Heat maps: which cells there are, where, and in which colour.
#include <gmock/gmock.h>
#include <reprise/report.h>

#include "tests/refusal.h"
#include "tests/report/not_finite.h"
#include "tests/report/pictures.h"

namespace reprise {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kLightest = "#e9f0f9";
constexpr const char* kDarkest = "#0d2652";

HeatMap map_of(std::vector<std::vector<double>> values) {
  HeatMap map{.title = "M", .values = std::move(values)};
  for (std::size_t i = 0; i < map.values.size(); ++i) map.rows.push_back("row" + std::to_string(i));
  return map;
}

// The colours of the cells, row by row.
std::vector<std::string> colors_in(const std::string& svg) {
  return all_between(all_between(svg, "crispEdges\">", "</g>").at(0), "fill=\"", "\"");
}
std::vector<std::string> cells_in(const std::string& svg) {
  return all_between(all_between(svg, "crispEdges\">", "</g>").at(0), "d=\"", "\"");
}
std::vector<std::string> names_in(const std::string& svg) {
  return all_between(svg, "class=\"quiet\" text-anchor=\"end\">", "<");
}

TEST(HeatMap, ColoursFromLeastToGreatest) {
  const std::string svg = svg_of(map_of({{1, 2}, {2, 3}}));
  EXPECT_EQ(malformation_of(svg), "");
  const auto colors = colors_in(svg);
  ASSERT_EQ(colors.size(), 4U);
  EXPECT_EQ(colors[0], kLightest);
  EXPECT_EQ(colors[1], colors[2]);
  EXPECT_EQ(colors[3], kDarkest);
  EXPECT_THAT(names_in(svg), ElementsAre("row0", "row1"));
}

TEST(HeatMap, LeavesBlankWhatHasNoValue) {
  const std::string svg = svg_of(map_of({{1, kNaN, kInfinity, 3}}));
  EXPECT_THAT(colors_in(svg), ElementsAre(kLightest, kDarkest));
  EXPECT_THAT(svg, HasSubstr("hatched: none"));
  EXPECT_EQ(svg_of(map_of({{1, 2}})).find("hatched: none"), std::string::npos);
}

TEST(HeatMap, OnALogarithmicScaleHasEvenStepsForFactors) {
  HeatMap map = map_of({{1, 10, 100, 0, -1}});
  map.log_color = true;
  const auto colors = colors_in(svg_of(map));
  ASSERT_EQ(colors.size(), 3U);
  EXPECT_EQ(colors[1], colors_in(svg_of(map_of({{0, 1, 2}})))[1]);
}

TEST(HeatMap, EndsItsColoursWhereItIsTold) {
  HeatMap map = map_of({{-1, 1, 5}});
  map.least = 0;
  map.greatest = 2;
  const auto colors = colors_in(svg_of(map));
  ASSERT_EQ(colors.size(), 3U);
  EXPECT_EQ(colors[0], kLightest);
  EXPECT_EQ(colors[2], kDarkest);
}

TEST(HeatMap, DrawsManyColumnsAsMeansOfNeighbours) {
  // 401 columns are 134 bins of three, the last of two.
  std::vector<double> row;
  for (int i = 0; i < 401; ++i) row.push_back(i % 3 == 0 ? kNaN : i / 3 % 2 == 0 ? 1 : 3);
  row[0] = 100;  // alone in the first with the two ones: a mean of 34
  const std::string svg = svg_of(map_of({row}));
  const auto colors = colors_in(svg);
  ASSERT_EQ(colors.size(), 134U);
  EXPECT_EQ(colors[0], kDarkest);
  EXPECT_EQ(colors[2], kLightest);
  EXPECT_NE(colors[1], kLightest);
  // To the right edge of the plot, which begins beside names of four characters.
  EXPECT_THAT(cells_in(svg).front(), HasSubstr("M60.8 "));
  EXPECT_THAT(cells_in(svg).back(), HasSubstr("H700.8"));
}

TEST(HeatMap, JoinsEqualNeighbours) {
  EXPECT_THAT(cells_in(svg_of(map_of({{1, 1, 1, 2}}))), testing::SizeIs(2));
}

TEST(HeatMap, NumbersItsColumnsFromTheFirst) {
  HeatMap map = map_of({{1, 2, 3}});
  map.first_column = 41;
  const std::string svg = svg_of(map);
  EXPECT_THAT(all_between(svg, "class=\"quiet\" text-anchor=\"middle\">", "<"),
              ElementsAre("41", "42", "43"));
}

TEST(HeatMap, OfOneValueHasAColourBarAroundIt) {
  const std::string svg = svg_of(map_of({{7}}));
  EXPECT_EQ(malformation_of(svg), "");
  EXPECT_THAT(svg, HasSubstr(">7.0</text>"));
}

TEST(HeatMap, RefusesWhatItCannotDraw) {
  EXPECT_THAT(refusal_of([] { svg_of(map_of({})); }),
              HasSubstr("the heat map 'M' has no value to show; leave it out"));
  EXPECT_THAT(refusal_of([] { svg_of(map_of({{}, {}})); }), HasSubstr("no value to show"));
  EXPECT_THAT(refusal_of([] { svg_of(map_of({{kNaN}})); }), HasSubstr("no value to show"));
  EXPECT_THAT(refusal_of([] {
                svg_of(map_of({{1, 2}, {1}}));
              }),
              HasSubstr("row 1 has 1 columns and the first 2; fill up with NaN"));
  HeatMap map = map_of({{1, 2}});
  map.rows.push_back("more");
  EXPECT_THAT(refusal_of([&] { svg_of(map); }), HasSubstr("has 2 names for 1 rows"));
  map = map_of({{1, 2}});
  map.least = 3;
  map.greatest = 1;
  EXPECT_THAT(refusal_of([&] { svg_of(map); }), HasSubstr("give the lesser value first"));
  map.log_color = true;
  map.least = 0;
  EXPECT_THAT(refusal_of([&] { svg_of(map); }),
              HasSubstr("its colours end at 0.000000; give a finite, positive value"));
}

}  // namespace
}  // namespace reprise
