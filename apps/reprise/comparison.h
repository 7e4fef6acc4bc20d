// Steps under several strategies, measured side by side.
//
// Round after round every strategy runs one step on the same weights, batch and random state, so
// that a machine that slows down or warms up does so for all. Nothing is updated. The first round
// measures memory and the time spent recomputing; later ones only the clock. Gradients are
// allocated beforehand: what is measured is forward and backward.
#pragma once

#include <c10/core/Device.h>
#include <reprise/bytes.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "apps/reprise/gradients.h"
#include "apps/reprise/network.h"
#include "apps/reprise/options.h"
#include "apps/reprise/recompute_clock.h"
#include "apps/reprise/text_data.h"
#include "models/strategy.h"

namespace reprise::app {

struct Measured {
  explicit Measured(models::Strategy s) : strategy(std::move(s)) {}

  models::Strategy strategy;
  Bytes peak;         // most bytes alive during the step
  Bytes activations;  // of those, what was not alive before it
  std::vector<double> milliseconds;
  double recompute_share = 0;                    // of the step's time
  std::optional<GradientDifference> difference;  // of the first round that had one

  double typical_milliseconds() const;
};

// "none", which the others are compared with, and then the named ones, each once; prepared for the
// device. Throws UsageError.
std::vector<Measured> strategies_to_measure(
    const std::vector<std::string>& names, c10::Device device,
    std::span<const models::StrategyKind> kinds = models::strategy_kinds());

class Comparison {
 public:
  Comparison(const CompareOptions& options, const TextData& data, c10::Device device);

  void run(std::vector<Measured>& all);
  Network& network() { return network_; }

 private:
  double seconds_of_step(const Measured& measured, std::int64_t round);
  void examine(Measured& measured);
  void time(Measured& measured, std::int64_t round);

  const CompareOptions& options_;
  const TextData& data_;
  Network network_;
  RecomputeClock clock_;
};

// One line on stderr for each strategy with a gradient that differs; the exit code, 1 if there is
// one.
int report_differences(const std::vector<Measured>& all);

}  // namespace reprise::app
