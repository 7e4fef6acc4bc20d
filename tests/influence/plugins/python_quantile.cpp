// The quantile that the threshold is made of, for a script that has NumPy's beside it.
#include <cstddef>
#include <vector>

#include "influence/decision.h"

extern "C" double influence_quantile(const double* values, std::size_t count, double q) {
  return reprise::influence::quantile_of(std::vector<double>(values, values + count), q);
}
