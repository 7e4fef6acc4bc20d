// The frontier as a picture: one SVG file that needs nothing else.
#pragma once

#include <string>
#include <vector>

namespace reprise::app {

struct ChartPoint {
  enum class Kind { kPlain, kRegions, kBudget, kPrediction };
  Kind kind = Kind::kBudget;
  std::string label;
  double megabytes = 0;            // above what is live before the step
  double ratio = 1;                // of the plain step's time
  double lowest = 1, highest = 1;  // of the rounds
  std::size_t series = 0;          // of Chart::series, if there are any
};

struct Chart {
  std::string title, subtitle;
  std::vector<ChartPoint> points;
  // Budgets in which the step cannot be run.
  std::vector<double> misfits;
  // Names of several lines of budgets, each in a colour of its own.
  std::vector<std::string> series;
};

// Budgets are joined by a line, predictions, which are hollow, by a dashed one; what is said of
// each is also its tooltip.
std::string svg_of(const Chart& chart);

}  // namespace reprise::app
