// What audits have found of the layers' part in the error of a step's gradients, and the most that
// is to be expected of it (docs/pgac.md, "Audits" and "Margin").
#pragma once

#include <array>
#include <cstddef>
#include <vector>

namespace reprise::influence {

// Of one layer in one audit.
struct AuditedLayer {
  // The square of the relative error of the step's gradients, divided by the noise in the layer's
  // values that made it; 0: the layer had none.
  double sensitivity = 0;
  // The square of the layer's score, divided by that of the step's gradients; 0: not known. The
  // sensitivity grows with it: gradients of single samples that cancel are small, and the noise in
  // them does not cancel.
  double incoherence = 0;
  // How many elements of a gradient carry the error: (sum e^2)^2 / sum e^4; 0: not known.
  double carriers = 0;

  bool operator==(const AuditedLayer&) const = default;
};

class Sensitivities {
 public:
  // Fewer audits say nothing.
  static constexpr std::size_t kLeast = 8;
  // Audits, and steps, that are remembered.
  static constexpr std::size_t kWindow = 32;
  // An error that fewer elements carry changes too much from one step to the next. What such an
  // audit found of the layer does not count.
  static constexpr double kLeastCarriers = 64;
  // Of a layer's audits: the share of such ones above which it is refused.
  static constexpr double kMostOutlying = 0.25;
  // Of the logarithms of a layer's sensitivities: the standard deviation above which a layer is
  // refused.
  static constexpr double kMostSpread = 1;
  // Noise that a layer makes a hundred times as large is none that adds up without surprises.
  static constexpr double kMostSensitive = 1e4;

  struct State {
    std::vector<std::vector<AuditedLayer>> audits;  // from the oldest on; each one's layers
    std::vector<double> ratios;                     // of the last audits in which there is one
    std::vector<std::vector<double>> incoherences;  // of the last steps
    bool operator==(const State&) const = default;
  };

  // `ratio`: the square of the error that was measured by that which the audit's own sensitivities
  // come to; 0: none was measured.
  void add_audit(std::vector<AuditedLayer> layers, double ratio);
  // Of a step: each layer's incoherence, 0 where it is not known.
  void add_step(std::vector<double> incoherences);
  void clear() { state_ = {}; }

  // The most that is to be expected (upper_limit()), by the largest incoherence of the last steps
  // and the upper limit of the ratios. -1 where too little is known, and for refused layers.
  double limit(std::size_t layer) const;
  // Few elements carry the error too often, or what audits found of the layer is too far apart, or
  // too large.
  bool is_refused(std::size_t layer) const;
  // Whether the last audit's step was not like others: in a layer that is not refused few elements
  // carried the error.
  bool is_last_outlying() const;
  bool is_known() const { return state_.audits.size() >= kLeast; }

  const State& state() const { return state_; }
  void restore(State state) { state_ = std::move(state); }

 private:
  std::vector<double> sensitivities(std::size_t layer) const;

  State state_;
};

// The most of what is to be expected where `values`, above 0, were seen: the largest of them, or
// k standard deviations of the logarithms above their mean, whichever is more. With k = 3 + 11 / n,
// of n values, 99 % of a log-normal distribution lie below that, with 95 % confidence (a one-sided
// tolerance limit: k is 4.36 for 8 and 3.03 for 32; here 4.38 and 3.34).
double upper_limit(const std::vector<double>& values);

}  // namespace reprise::influence
