#include "influence/audit_findings.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/sub.h>

#include <algorithm>
#include <cmath>

namespace reprise::influence {

double square_of(const at::Tensor& tensor) {
  const double norm = at::linalg_vector_norm(tensor, 2, {}, false, at::kDouble).item<double>();
  return norm * norm;
}

void AuditFindings::expect(std::size_t layer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++expected_[layer];
}

bool AuditFindings::was_expected() const {
  return std::any_of(expected_.begin(), expected_.end(), [](int runs) { return runs > 0; });
}

std::optional<std::size_t> AuditFindings::missing() const {
  for (std::size_t i = layers_.size(); i-- > 0;) {
    if (layers_[i].runs < expected_[i]) return i;
  }
  return std::nullopt;
}

void AuditFindings::fail(std::size_t layer, const std::string& reason) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!failure_) failure_.emplace(layer, reason);
}

void AuditFindings::add(std::size_t layer, const LayerFindings& found) {
  const std::lock_guard<std::mutex> lock(mutex_);
  LayerFindings& sum = layers_[layer];
  // Gradients of several runs add up, and what noise does to them; each run has noise of its own.
  const double runs = ++sum.runs;
  sum.noise += (found.noise - sum.noise) / runs;
  sum.input_error += (found.input_error - sum.input_error) / runs;
  sum.spread = std::max(sum.spread, found.spread);
  sum.values = std::max(sum.values, found.values);
  sum.parameter_error += found.parameter_error;
  if (found.parameter_response >= 0) {
    sum.parameter_response = std::max(0.0, sum.parameter_response) + found.parameter_response;
    sum.input_response = std::max(sum.input_response, found.input_response);
  }
  sum.carriers = runs > 1 ? std::min(sum.carriers, found.carriers) : found.carriers;
}

void AuditFindings::add_gradients(std::size_t layer, const std::vector<at::Tensor>& parameters,
                                  const std::vector<at::Tensor>& exact,
                                  const std::vector<at::Tensor>& lossy) {
  const std::lock_guard<std::mutex> lock(mutex_);
  parameters_[layer] = parameters;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!exact[i].defined()) continue;
    const at::Tensor difference = at::sub(lossy[i].defined() ? lossy[i] : exact[i], exact[i]);
    Gradients& sum = gradients_[parameters[i].unsafeGetTensorImpl()];
    sum.exact = sum.exact.defined() ? at::add(sum.exact, exact[i]) : exact[i];
    sum.error = sum.error.defined() ? at::add(sum.error, difference) : difference;
  }
  double square = 0;
  for (const at::Tensor& parameter : parameters) {
    const auto& sum = gradients_[parameter.unsafeGetTensorImpl()];
    if (sum.exact.defined()) square += square_of(sum.exact);
  }
  layers_[layer].gradient_square = square;
}

std::optional<double> AuditFindings::error() const {
  const at::NoGradGuard no_grad;
  double error = 0, all = 0;
  for (const auto& [parameter, sum] : gradients_) {
    if (!sum.exact.defined()) continue;
    error += square_of(sum.error);
    all += square_of(sum.exact);
  }
  if (!(all > 0) || !std::isfinite(error / all)) return std::nullopt;
  return std::sqrt(error / all);
}

}  // namespace reprise::influence
