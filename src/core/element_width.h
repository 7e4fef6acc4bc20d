// Memory whose elements are bit patterns of a width that is known when the program runs.
#pragma once

#include <cstdint>

namespace reprise {

// Calls `f` with a number of that width in bytes: 1, 2, 4 or 8.
template <class F>
auto with_element(int width, F&& f) {
  switch (width) {
    case 1:
      return f(std::uint8_t{});
    case 2:
      return f(std::uint16_t{});
    case 4:
      return f(std::uint32_t{});
    default:
      return f(std::uint64_t{});
  }
}

}  // namespace reprise
