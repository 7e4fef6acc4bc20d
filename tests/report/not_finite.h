// What reports must cope with, by short names.
#pragma once

#include <limits>

namespace reprise {

inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace reprise
