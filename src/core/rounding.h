// Sizes as allocators and kernels round them.
#pragma once

#include <cstdint>

namespace reprise {

// Neither may be negative, and `multiple` not zero.
constexpr std::int64_t rounded_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace reprise
