// One measured figure, the bar that it has to clear, and the two ways to print it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace reprise::bench {

// What a figure must satisfy; nothing set: no bar. All that are set must hold.
struct Bar {
  std::optional<double> at_most = {};
  std::optional<double> at_least = {};
  std::optional<double> ratio_at_most = {};       // of ours to the peer's
  std::optional<double> above_peer_at_most = {};  // of ours less the peer's
};

struct Figure {
  std::string bench;
  std::string name;  // of the case
  double ours;
  std::optional<double> peer = {};
  std::string unit;
  int runs;
  double spread;  // distance between the quartiles as a share of the median
  Bar bar = {};

  std::optional<double> ratio() const;
  // Empty without a bar, and where the bar needs a peer that is missing.
  std::optional<bool> ok() const;
};

// "<= 1.5, ratio <= 0.02"; empty without a bar.
std::string to_string(const Bar& bar);

// One JSON object on one line: bench, case, ours, peer, unit, ratio, runs, spread; bar and ok where
// there is a bar.
std::string to_json(const Figure& figure);
// Aligned columns with a head line.
std::string to_table(std::span<const Figure> figures);

// A figure out of one value a run.
Figure make_figure(std::string bench, std::string name, std::string unit,
                   std::span<const double> ours, std::span<const double> peer, const Bar& bar = {});

}  // namespace reprise::bench
