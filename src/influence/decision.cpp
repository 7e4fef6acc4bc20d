#include "influence/decision.h"

#include <cmath>
#include <limits>

#include "core/statistics.h"

namespace reprise::influence {

Decision averaged(const std::vector<double>& before, const std::vector<double>& scores,
                  const PgacOptions& options) {
  const bool from_zero = options.follow_pseudocode || options.start == PgacOptions::Start::kZero;
  Decision decision{before, {}};
  for (std::size_t i = 0; i < scores.size(); ++i) {
    double& average = decision.averages[i];
    if (std::isnan(scores[i])) continue;
    if (std::isnan(average) && !from_zero) {
      average = scores[i];
      continue;
    }
    const double last = std::isnan(average) ? 0 : average;
    average = options.alpha * last + (1 - options.alpha) * scores[i];
  }
  decision.considered = decision.averages;
  if (options.follow_pseudocode && !before.empty()) {
    decision.considered = before;
    decision.considered.back() = decision.averages.back();
  }
  return decision;
}

double quantile_of(const std::vector<double>& averages, double q) {
  std::vector<double> known;
  for (const double each : averages) {
    if (!std::isnan(each)) known.push_back(each);
  }
  if (known.empty()) return std::numeric_limits<double>::quiet_NaN();
  return quantile(known, q);
}

std::vector<bool> mask_of(const std::vector<double>& averages, double threshold,
                          const std::vector<bool>& before, double hysteresis) {
  std::vector<bool> mask(averages.size(), true);
  if (std::isnan(threshold)) return mask;
  for (std::size_t i = 0; i < averages.size(); ++i) {
    if (std::isnan(averages[i])) continue;
    const double edge = threshold * (before[i] ? 1 - hysteresis : 1 + hysteresis);
    mask[i] = averages[i] >= edge;
  }
  return mask;
}

}  // namespace reprise::influence
