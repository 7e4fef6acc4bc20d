// Peaks and times as a picture: one SVG file that needs nothing else.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "apps/cli/io/atomic_file.h"

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

// Joins budgets by a line, and predictions, which are hollow, by a dashed one. Each point has a
// tooltip with its figures.
std::string svg_of(const Chart& chart);

// The file of --svg.
class ChartFile {
 public:
  // Begins the file before anything is measured in vain; no path, no file. Throws UsageError if the
  // file cannot be written or is one of the data.
  ChartFile(const std::string& path, const std::vector<std::string>& data);
  // Throws Error, naming the remedy.
  void write(const Chart& chart) const;

 private:
  std::unique_ptr<AtomicFile> file_;
};

}  // namespace reprise::app
