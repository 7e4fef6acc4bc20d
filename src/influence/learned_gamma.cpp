#include "influence/learned_gamma.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace reprise::influence {
namespace {

// Gains of Spall, "Implementation of the simultaneous perturbation algorithm" (IEEE Transactions on
// Aerospace and Electronic Systems 34, 1998): a / (k + 1 + A)^0.602 and c / (k + 1)^0.101. Costs
// are shares of the plain step's time and fall in steps, so the perturbation is wide enough to
// reach the next mask.
constexpr double kGain = 2, kStability = 20, kGainDecay = 0.602;
constexpr double kWidth = 0.1, kWidthDecay = 0.101;
// No observed step moves a weight further.
constexpr double kLongestMove = 0.2;

}  // namespace

LearnedGamma::LearnedGamma(double first, std::uint64_t seed) : first_(first), seed_(seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> draw(-1, 1);
  // v and c are zero, and with them f.
  for (std::size_t i = 0; i < 2 * kHidden; ++i) weights_[i] = draw(random);
}

double LearnedGamma::at(double fraction, const Weights& weights) const {
  double sum = weights[3 * kHidden];
  for (std::size_t i = 0; i < kHidden; ++i) {
    sum += weights[2 * kHidden + i] * std::tanh(weights[i] * fraction + weights[kHidden + i]);
  }
  // Far beyond what any threshold can tell apart, and finite.
  constexpr double kFurthest = 50;
  return first_ * std::exp(std::clamp(sum, -kFurthest, kFurthest));
}

void LearnedGamma::learn(double fraction, const std::function<double(double)>& cost) {
  const auto k = static_cast<double>(steps_ + 1);
  const double width = kWidth / std::pow(k, kWidthDecay);
  const double gain = kGain / std::pow(k + kStability, kGainDecay);
  // Of the step alone, so that a restored schedule goes on with the same draws.
  const auto step = static_cast<std::uint64_t>(steps_);
  std::seed_seq of_step{seed_, seed_ >> 32, step, step >> 32};
  std::mt19937_64 random(of_step);
  Weights signs{}, up = weights_, down = weights_;
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    signs[i] = (random() & 1) != 0 ? 1 : -1;
    up[i] += width * signs[i];
    down[i] -= width * signs[i];
  }
  const double slope = (cost(at(fraction, up)) - cost(at(fraction, down))) / (2 * width);
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    const double move = gain * slope / signs[i];
    weights_[i] -= std::clamp(move, -kLongestMove, kLongestMove);
  }
  ++steps_;
}

void LearnedGamma::restore(const Weights& weights, std::int64_t steps) {
  weights_ = weights;
  steps_ = steps;
}

}  // namespace reprise::influence
