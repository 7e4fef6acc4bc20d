// The frontier as a picture: one SVG file that needs nothing else.
#pragma once

#include <string>
#include <vector>

namespace reprise::app {

struct ChartPoint {
  enum class Kind { kPlain, kRegions, kBudget };
  Kind kind = Kind::kBudget;
  std::string label;
  double megabytes = 0;            // above what is live before the step
  double ratio = 1;                // of the plain step's time
  double lowest = 1, highest = 1;  // of the rounds
};

struct Chart {
  std::string title, subtitle;
  std::vector<ChartPoint> points;
  // Budgets in which the step cannot be run.
  std::vector<double> misfits;
};

// Budgets are joined by a line; what is said of each is also its tooltip.
std::string svg_of(const Chart& chart);

}  // namespace reprise::app
