// PGAC's method as scalar code, twice: by its formulas and by its pseudocode, as they are printed.
#pragma once

#include <reprise/experimental/pgac.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace reprise::testing {

class Reference {
 public:
  Reference(std::size_t layers, const PgacOptions& options)
      : options_(options), averages_(layers, 0), mask_(layers, true) {}

  // Formulas (2.2), (2.3), (2.4).
  void step(const std::vector<double>& scores, double gamma) {
    const bool from_zero = options_.start == PgacOptions::Start::kZero;
    for (std::size_t l = 0; l < scores.size(); ++l) {
      averages_[l] = first_ && !from_zero
                         ? scores[l]
                         : options_.alpha * averages_[l] + (1 - options_.alpha) * scores[l];
    }
    first_ = false;
    threshold_ = gamma * quantile(averages_);
    for (std::size_t l = 0; l < scores.size(); ++l) mask_[l] = averages_[l] >= threshold_;
  }

  // The pseudocode: from the last layer to the first, the threshold when the last one is new.
  void literal_step(const std::vector<double>& scores, double gamma) {
    const std::size_t last = scores.size() - 1;
    for (std::size_t l = scores.size(); l-- > 0;) {
      averages_[l] = options_.alpha * averages_[l] + (1 - options_.alpha) * scores[l];
      if (l == last) threshold_ = gamma * quantile(averages_);
      mask_[l] = averages_[l] >= threshold_;
    }
  }

  const std::vector<double>& averages() const { return averages_; }
  double threshold() const { return threshold_; }
  const std::vector<bool>& mask() const { return mask_; }

 private:
  double quantile(std::vector<double> values) const {
    std::sort(values.begin(), values.end());
    const double place = options_.quantile * static_cast<double>(values.size() - 1);
    const auto i = static_cast<std::size_t>(place);
    if (i + 1 == values.size()) return values[i];
    const double t = place - std::floor(place), step = values[i + 1] - values[i];
    return t < 0.5 ? values[i] + t * step : values[i + 1] - (1 - t) * step;
  }

  PgacOptions options_;
  std::vector<double> averages_;
  std::vector<bool> mask_;
  double threshold_ = 0;
  bool first_ = true;
};

}  // namespace reprise::testing
