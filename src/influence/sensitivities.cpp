#include "influence/sensitivities.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace reprise::influence {
namespace {

constexpr double kUnknown = -1;

struct Logarithms {
  double mean = 0, deviation = 0;
};

Logarithms logarithms_of(const std::vector<double>& values) {
  Logarithms of;
  const auto count = static_cast<double>(values.size());
  for (const double value : values) of.mean += std::log(value) / count;
  for (const double value : values) of.deviation += std::pow(std::log(value) - of.mean, 2);
  of.deviation = values.size() > 1 ? std::sqrt(of.deviation / (count - 1)) : 0;
  return of;
}

bool is_outlying(const AuditedLayer& layer) {
  return layer.carriers > 0 && layer.carriers < Sensitivities::kLeastCarriers;
}

template <class T>
void add_to_window(std::vector<T>& window, T value) {
  if (window.size() >= Sensitivities::kWindow) window.erase(window.begin());
  window.push_back(std::move(value));
}

}  // namespace

double upper_limit(const std::vector<double>& values) {
  const double deviations = 3 + 11 / static_cast<double>(values.size());
  const Logarithms of = logarithms_of(values);
  return std::max(*std::max_element(values.begin(), values.end()),
                  std::exp(of.mean + deviations * of.deviation));
}

void Sensitivities::add_audit(std::vector<AuditedLayer> layers, double ratio) {
  add_to_window(state_.audits, std::move(layers));
  if (ratio > 0 && std::isfinite(ratio)) add_to_window(state_.ratios, ratio);
}

void Sensitivities::add_step(std::vector<double> incoherences) {
  add_to_window(state_.incoherences, std::move(incoherences));
}

// As they would be by the largest incoherence of the last steps.
std::vector<double> Sensitivities::sensitivities(std::size_t layer) const {
  double largest = 0;
  for (const std::vector<double>& step : state_.incoherences) {
    if (layer < step.size()) largest = std::max(largest, step[layer]);
  }
  std::vector<double> found;
  for (const std::vector<AuditedLayer>& audit : state_.audits) {
    const AuditedLayer& of = audit[layer];
    if (of.sensitivity <= 0 || is_outlying(of)) continue;
    const bool is_told = of.incoherence > 0 && largest > 0;
    found.push_back(of.sensitivity * (is_told ? largest / of.incoherence : 1));
  }
  return found;
}

bool Sensitivities::is_refused(std::size_t layer) const {
  double outlying = 0, all = 0;
  for (const std::vector<AuditedLayer>& audit : state_.audits) {
    if (audit[layer].sensitivity <= 0) continue;
    ++all;
    if (is_outlying(audit[layer])) ++outlying;
  }
  if (outlying > kMostOutlying * all) return true;
  const std::vector<double> found = sensitivities(layer);
  if (found.size() < kLeast * 3 / 4) return false;
  const Logarithms of = logarithms_of(found);
  return of.deviation > kMostSpread || of.mean > std::log(kMostSensitive);
}

bool Sensitivities::is_last_outlying() const {
  if (state_.audits.empty()) return false;
  const std::vector<AuditedLayer>& last = state_.audits.back();
  for (std::size_t i = 0; i < last.size(); ++i) {
    if (is_outlying(last[i]) && !is_refused(i)) return true;
  }
  return false;
}

double Sensitivities::limit(std::size_t layer) const {
  if (!is_known() || is_refused(layer)) return kUnknown;
  const std::vector<double> found = sensitivities(layer);
  // One in four may be outlying.
  if (found.size() < kLeast * 3 / 4) return kUnknown;
  const double ratio = state_.ratios.empty() ? 1 : upper_limit(state_.ratios);
  const double limit = ratio * upper_limit(found);
  return std::isfinite(limit) ? limit : kUnknown;
}

}  // namespace reprise::influence
