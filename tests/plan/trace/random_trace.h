// Small random programs with all that a trace can hold: shared inputs, views, several results,
// writes, copies, releases.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "plan/trace/trace_builder.h"

namespace reprise::plan {

inline Trace random_trace(std::uint64_t seed, int length) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  TraceBuilder builder;
  std::vector<std::string> held;
  int names = 0;
  const auto new_name = [&] { return "t" + std::to_string(names++); };
  const auto bytes = [&] { return static_cast<std::int64_t>(below(4) == 0 ? 0 : 1 + below(20)); };
  for (int i = 0; i < 2; ++i) {
    held.push_back(new_name());
    builder.constant(held.back(), bytes());
  }
  for (int i = 0; i < length; ++i) {
    std::vector<std::string_view> arguments;
    for (std::size_t a = 0; a < 1 + below(3); ++a) arguments.push_back(held[below(held.size())]);
    const auto nanoseconds = static_cast<std::int64_t>(below(50));
    const std::size_t what = below(10);
    if (what < 6) {
      std::vector<std::string> made(1 + below(3));
      std::vector<TraceBuilder::Result> results;
      for (std::string& each : made) {
        each = new_name();
        results.push_back({.name = each, .bytes = bytes(), .view_of = below(4) == 0 ? 0 : -1});
      }
      builder.call("op", arguments, results, nanoseconds);
      held.insert(held.end(), made.begin(), made.end());
    } else if (what == 6) {
      const std::int64_t first[] = {0};
      builder.mutate("op_", arguments, first, nanoseconds);
    } else if (what == 7) {
      const std::string name = new_name();
      builder.copy(name, arguments[0]);
      held.push_back(name);
    }
    if (held.size() > 3 && below(3) != 0) {
      const std::size_t gone = below(held.size());
      builder.release(held[gone]);
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(gone));
    }
  }
  return std::move(builder).finish();
}

}  // namespace reprise::plan
