// std::from_chars knows no locale, no prefix, no leading space, and reports overflow.
#include "apps/cli/io/numbers.h"

#include <fmt/format.h>
#include <reprise/error.h>

#include <charconv>
#include <cmath>
#include <system_error>

namespace reprise::app {

namespace {

template <class T>
bool read_all(std::string_view text, T& value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end;
}

}  // namespace

std::int64_t read_whole(std::string_view option, std::string_view text, WholeRange range) {
  std::int64_t value = 0;
  if (!read_all(text, value) || value < range.least || value > range.most) {
    throw UsageError(fmt::format("{} is '{}': give a whole number between {} and {}", option, text,
                                 range.least, range.most));
  }
  return value;
}

double read_real(std::string_view option, std::string_view text, RealRange range) {
  double value = 0;
  const bool is_number = read_all(text, value) && std::isfinite(value);
  const bool is_low = range.without_least ? value <= range.least : value < range.least;
  const bool is_high = range.without_most ? value >= range.most : value > range.most;
  if (!is_number || is_low || is_high) {
    throw UsageError(fmt::format("{} is '{}': give a number {} {} and {} {}", option, text,
                                 range.without_least ? "above" : "of at least", range.least,
                                 range.without_most ? "below" : "at most", range.most));
  }
  return value;
}

}  // namespace reprise::app
