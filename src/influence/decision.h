// The formulas of PGAC (pgac.h): from scores to averages, a threshold and a mask. Plain
// arithmetic on what is known of each layer; NaN stands for what is not.
#pragma once

#include <reprise/experimental/pgac.h>

#include <vector>

namespace reprise::influence {

struct Decision {
  std::vector<double> averages;  // (2.2), of each layer
  // The quantile is taken of these. They are the averages, or with PgacOptions::follow_pseudocode
  // those of the step before, except the last layer's.
  std::vector<double> considered;
};

// The averages after a step's scores. A layer without a score keeps its average.
Decision averaged(const std::vector<double>& before, const std::vector<double>& scores,
                  const PgacOptions& options);

// The quantile of those that are numbers (2.3, without its factor); NaN if none is.
double quantile_of(const std::vector<double>& averages, double q);

// (2.4) A layer without an average is kept, and all are while the threshold is NaN.
std::vector<bool> mask_of(const std::vector<double>& averages, double threshold,
                          const std::vector<bool>& before, double hysteresis);

}  // namespace reprise::influence
