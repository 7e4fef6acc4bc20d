// Numbers as a user writes them, read strictly: the whole text must be one decimal number within
// its bounds. What C's readers would make of an octal, a hexadecimal or an overflowing one is
// seldom what was meant.
#pragma once

#include <cstdint>
#include <string_view>

namespace reprise::app {

struct WholeRange {
  std::int64_t least, most;
};

struct RealRange {
  double least, most;
  bool without_least = false, without_most = false;  // whether the bound itself is out
};

// Throw UsageError, naming the option, the text and the bounds, for anything but a number of the
// range. "010" is ten.
std::int64_t read_whole(std::string_view option, std::string_view text, WholeRange range);
double read_real(std::string_view option, std::string_view text, RealRange range);

}  // namespace reprise::app
