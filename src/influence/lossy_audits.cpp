// What the lossy tier learns from a step, and when it audits the next one.
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <unordered_set>
#include <utility>

#include "core/lane_noise.h"
#include "influence/lossy_tier.h"

namespace reprise::influence {
namespace {

// Of audits of unknown steps: what each step brings, and what a step that stays unknown costs.
constexpr double kCreditOfStep = 0.125, kPriceOfOutlier = 4;

// A loss scale that begins at 2^16 and is too large halves no more often.
constexpr std::int64_t kMostSpoilt = 16;

}  // namespace

// |g|^2, as backward has left it; -1 where the program has let go of gradients, or they are
// infinite.
double LossyTier::gradient_square() const {
  double sum = 0;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const std::vector<at::Tensor>& parameters : parameters_) {
    for (const at::Tensor& parameter : parameters) {
      if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
      const at::Tensor& gradient = parameter.grad();
      if (!gradient.defined()) continue;
      if (gradient.layout() != at::kStrided || gradient.is_complex()) return -1;
      sum += square_of(gradient);
    }
  }
  return std::isfinite(sum) && sum > 0 ? sum : -1;
}

bool LossyTier::take_audit(const std::vector<double>& incoherences) {
  const AuditFindings& found = *step_.findings;
  const std::vector<LayerFindings>& layers = found.layers();
  for (std::size_t i = 0; i < layers.size(); ++i) {
    note_spread(i, layers[i].spread, layers[i].values);
  }
  const std::optional<double> error = found.error();
  if (!error) return false;
  // `reached`: the square of the error of the parameters' gradients up to this layer by the
  // relative square of noise in the gradient of its result.
  double all = 0, reached = 0, by_formula = 0;
  for (const LayerFindings& layer : layers) all += layer.gradient_square;
  std::vector<AuditedLayer> audited(layers.size());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const LayerFindings& layer = layers[i];
    const double own = layer.noise > 0 ? layer.parameter_error / layer.noise : 0;
    if (layer.noise > 0) {
      audited[i] = {.sensitivity = (own + layer.input_error / layer.noise * reached) / all,
                    .incoherence = incoherences[i],
                    .carriers = layer.carriers};
      const LayerNoise noise{.spread = layer.spread, .values = layer.values};
      by_formula += noise_of(noise, step_.routes[i]) * audited[i].sensitivity;
    }
    // Where no noise came: gradients of single samples may cancel, and noise in them would not.
    const bool is_told = layer.parameter_response >= 0;
    reached = (is_told ? layer.input_response : 1) * reached +
              (is_told ? layer.parameter_response : std::max(layer.gradient_square, own));
  }
  sensitivities_.add_audit(std::move(audited), by_formula > 0 ? *error * *error / by_formula : 0);
  if (sensitivities_.is_last_outlying()) {
    // Such steps stay exact, and are not audited each time that they come.
    known_.turns.credit -= kPriceOfOutlier;
  } else {
    regimes_.add({step_.inputs, log_weights()});
  }
  ++known_.audits;
  known_.audited_error = *error;
  judge(*error);
  return true;
}

// What an audit of routes that would have been run says of the tier.
void LossyTier::judge(double error) {
  Turns& turns = known_.turns;
  if (!sensitivities_.is_known()) {
    turns.interval = 1;
    turns.next = turns.steps + 1;
    return;
  }
  if (step_.is_test && error > options_.gradient_error) {
    ++known_.failures;
    return switch_off("an audit has found a gradient error of " + std::to_string(error) +
                      ", above lossy.gradient_error, which is " +
                      std::to_string(options_.gradient_error));
  }
  set_next_audit();
}

// Nothing was learnt of the step: its gradients were infinite, zero or not there, or memory was
// short. The next step may be as bad, so audits become rarer.
void LossyTier::take_spoilt_audit() {
  set_next_audit();
  if (++known_.turns.spoilt < kMostSpoilt) return;
  const std::optional<std::size_t> missing = step_.findings->missing();
  switch_off(
      std::to_string(kMostSpoilt) + " audits in a row could not be completed, the last at " +
      (missing ? "layer " + std::to_string(*missing) : "the layers' parameters") +
      ": gradients there, or gradients of its input, are zero, infinite or missing (detached, "
      "for instance), or memory was short");
}

// At a step that is drawn, so that nothing in the program keeps time with it.
void LossyTier::set_next_audit() {
  Turns& turns = known_.turns;
  if (turns.steps >= turns.next) {
    turns.interval = std::min(2 * turns.interval, options_.audit_every);
  }
  const std::uint64_t drawn =
      substream(mixed(options_.seed + 1), static_cast<std::uint64_t>(turns.steps));
  const auto choices = static_cast<std::uint64_t>(2 * turns.interval - 1);
  turns.next = turns.steps + 1 + static_cast<std::int64_t>(drawn % choices);
}

void LossyTier::take_step(const std::vector<double>& scores, PgacReport& report) {
  Turns& turns = known_.turns;
  const AuditFindings* const findings = step_.findings.get();
  const bool was_expected = findings != nullptr && findings->was_expected();
  const bool is_found = was_expected && !findings->missing() && !step_.is_partial;
  if (findings != nullptr && findings->failure()) {
    const auto& [layer, reason] = *findings->failure();
    switch_off("layer " + std::to_string(layer) + " cannot be audited: " + reason);
  } else if (step_.plan == Plan::kInspect) {
    known_.is_inspected = was_expected;
  }
  const auto& seen = is_found ? findings->parameters() : step_.parameters;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    if (!seen[i].empty()) parameters_[i] = seen[i];
  }
  const double square = gradient_square();
  std::vector<double> incoherences(known_.layers.size(), 0);
  for (std::size_t i = 0; i < scores.size() && i < incoherences.size(); ++i) {
    if (square > 0 && scores[i] > 0) incoherences[i] = scores[i] * scores[i] / square;
  }
  if (was_expected && step_.plan == Plan::kAudit && known_.off.empty()) {
    report.audited = is_found && take_audit(incoherences);
    if (report.audited) {
      turns.spoilt = 0;
    } else {
      take_spoilt_audit();
    }
  }
  sensitivities_.add_step(std::move(incoherences));
  limit_sensitivities();
  // The next step is audited for the run that was not in this one.
  const bool is_next = step_.is_missed && turns.credit >= 1 && turns.next > turns.steps;
  if (is_next) turns.next = turns.steps + 1;
  const bool is_paid = is_next || (was_expected && step_.is_new);
  turns.credit = std::min(kMostCredit, turns.credit + kCreditOfStep - (is_paid ? 1 : 0));
  if (!step_.noise.empty()) report.gradient_error = gradient_error(known_.layers, step_.noise);
  if (step_.is_unknown || !(report.gradient_error <= options_.gradient_error)) {
    turns.interval = std::max<std::int64_t>(1, turns.interval / 2);
    turns.next = std::min(turns.next, turns.steps + turns.interval);
  }
}

void LossyTier::end_step(const std::vector<double>& scores, PgacReport& report) {
  const at::NoGradGuard no_grad;
  report.audited = false;
  report.gradient_error = 0;
  if (known_.off.empty()) take_step(scores, report);
  report.compressed_from = step_.before;
  report.compressed_to = step_.after;
  report.is_known = !step_.is_unknown;
  report.audits = known_.audits;
  report.audit_failures = known_.failures;
  report.audited_error = known_.audited_error;
  report.lossy_off = known_.off;
  report.refused.clear();
  for (std::size_t i = 0; i < known_.layers.size(); ++i) {
    report.refused.push_back(sensitivities_.is_refused(i));
  }
  ++known_.turns.steps;
  step_ = {};
}

}  // namespace reprise::influence
