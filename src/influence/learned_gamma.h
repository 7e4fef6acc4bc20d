// The factor of the threshold as a small network of the training's fraction, trained by
// simultaneous perturbation (pgac.h, GammaSchedule::Kind::kLearned).
#pragma once

#include <array>
#include <cstdint>
#include <functional>

namespace reprise::influence {

// first * exp(f(fraction)), f(x) = v tanh(w x + b) + c with 8 hidden units.
class LearnedGamma {
 public:
  static constexpr std::size_t kHidden = 8;
  using Weights = std::array<double, 3 * kHidden + 1>;  // w, b, v, c

  LearnedGamma(double first, std::uint64_t seed);

  double at(double fraction) const { return at(fraction, weights_); }

  // One step of descent on what `cost` says of two factors.
  void learn(double fraction, const std::function<double(double gamma)>& cost);

  const Weights& weights() const { return weights_; }
  std::int64_t steps() const { return steps_; }
  void restore(const Weights& weights, std::int64_t steps);

 private:
  double at(double fraction, const Weights& weights) const;

  double first_;
  std::uint64_t seed_;
  Weights weights_{};
  std::int64_t steps_ = 0;
};

}  // namespace reprise::influence
