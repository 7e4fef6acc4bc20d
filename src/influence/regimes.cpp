#include "influence/regimes.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mean.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace reprise::influence {
namespace {

// How far two of one regime may be apart, in each feature.
constexpr Features kNear = {0.1, 0.22, 0.7, 0.1, 0.1};
constexpr double kNearWeights = 0.1;

double finite_log(double value) { return value > 0 && std::isfinite(value) ? std::log(value) : 0; }

bool are_near(const Features& a, const Features& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!(std::abs(a[i] - b[i]) <= kNear[i])) return false;
  }
  return true;
}

bool are_near(const std::vector<double>& a, const std::vector<double>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](double x, double y) { return std::abs(x - y) <= kNearWeights; });
}

bool has_near(const std::vector<Features>& inputs, const Features& input) {
  return std::any_of(inputs.begin(), inputs.end(),
                     [&](const Features& each) { return are_near(each, input); });
}

}  // namespace

Features features_of(const at::Tensor& input) {
  if (!input.defined() || !input.is_cpu() || input.layout() != at::kStrided ||
      !at::isFloatingType(input.scalar_type()) || input.numel() == 0) {
    return {};
  }
  const at::NoGradGuard no_grad;
  const at::Tensor x = input.detach();
  const auto count = static_cast<double>(x.numel());
  const double root = at::linalg_vector_norm(x).item<double>() / std::sqrt(count);
  const auto [least, largest] = at::aminmax(x);
  const double peak = std::max(std::abs(least.item<double>()), std::abs(largest.item<double>()));
  const double absolute = at::linalg_vector_norm(x, 1).item<double>() / count;
  const double mean = at::mean(x).item<double>();
  if (!(root > 0) || !std::isfinite(root)) return {std::log(count)};
  return {std::log(count), std::log(root), finite_log(peak / root), finite_log(absolute / root),
          mean / root};
}

void Regimes::add(Audited step) {
  for (std::vector<Features>& inputs : step.inputs) {
    std::vector<Features> distinct;
    for (const Features& input : inputs) {
      if (!has_near(distinct, input)) distinct.push_back(input);
    }
    inputs = std::move(distinct);
  }
  if (audited_.size() >= kWindow) audited_.erase(audited_.begin());
  audited_.push_back(std::move(step));
}

bool Regimes::knows(std::size_t layer, const Features& input) const {
  const auto near = std::count_if(audited_.begin(), audited_.end(), [&](const Audited& step) {
    return has_near(step.inputs[layer], input);
  });
  return static_cast<std::size_t>(near) >= kLeast;
}

bool Regimes::knows_weights(const std::vector<double>& weights) const {
  const auto near = std::count_if(audited_.begin(), audited_.end(), [&](const Audited& step) {
    return are_near(step.weights, weights);
  });
  return static_cast<std::size_t>(near) >= kLeast;
}

}  // namespace reprise::influence
