// The method step by step: runs under the mask, scores into averages, a threshold, the next mask.
#include "reprise/pgac.h"

#include <c10/core/GradMode.h>
#include <reprise/error.h>
#include <reprise/profile_chain.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "influence/pgac_impl.h"
#include "libtorch/on_meta.h"

namespace reprise {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
// Shapes that never come again must not fill the memory.
constexpr std::size_t kMostShapes = 64;
constexpr std::int64_t kNoDecision = -1;

template <class T>
void expect(bool holds, const char* option, const T& value, const std::string& bound) {
  if (holds) return;
  throw UsageError(std::string("Pgac: ") + option + " is " + std::to_string(value) +
                   "; it must be " + bound);
}

void check_gamma(const PgacOptions& options) {
  const GammaSchedule& gamma = options.gamma;
  const bool learns = gamma.kind == GammaSchedule::Kind::kLearned;
  expect(std::isfinite(gamma.first) && gamma.first >= 0 && (gamma.first > 0 || !learns),
         "gamma.first", gamma.first,
         learns ? "a number above 0, from where it is learned" : "a number from 0");
  expect(std::isfinite(gamma.last) && gamma.last >= 0, "gamma.last", gamma.last, "a number from 0");
  const bool changes =
      gamma.kind == GammaSchedule::Kind::kLinear || gamma.kind == GammaSchedule::Kind::kCosine;
  expect(changes || gamma.last == gamma.first, "gamma.last", gamma.last,
         "the same as gamma.first, " + std::to_string(gamma.first) +
             ", for a schedule that does not lead from the one to the other");
  if (gamma.kind != GammaSchedule::Kind::kConstant) {
    expect(options.steps > 0, "steps", options.steps,
           "at least 1, the steps of the training, for a gamma that changes with them");
  }
  if (learns && !options.budget) {
    throw UsageError(
        "Pgac: gamma is learned, but there is no budget, without which to keep all would always be "
        "best; give a budget, or another schedule");
  }
}

void check_options(const PgacOptions& options) {
  expect(options.alpha >= 0 && options.alpha < 1, "alpha", options.alpha, "from 0 to below 1");
  expect(options.quantile >= 0 && options.quantile <= 1, "quantile", options.quantile,
         "from 0 to 1");
  expect(options.hysteresis >= 0 && options.hysteresis < 1, "hysteresis", options.hysteresis,
         "from 0 to below 1");
  expect(options.steps >= 0, "steps", options.steps, "at least 0");
  expect(options.steps_between_changes >= 1, "steps_between_changes", options.steps_between_changes,
         "at least 1");
  expect(options.stride >= 1, "stride", options.stride, "at least 1");
  if (options.budget)
    expect(options.budget->count > 0, "budget", options.budget->count, "above 0 bytes");
  if (options.fills_budget && !options.budget) {
    throw UsageError("Pgac: fills_budget is set, but there is no budget to fill; give one");
  }
  if (options.ranking != PgacRanking::kInfluence && !options.budget) {
    throw UsageError(
        "Pgac: a ranking other than by influence is given, but there is no budget for which layers "
        "would be ranked; give one");
  }
  check_gamma(options);
}

}  // namespace

Pgac::Impl::Impl(const PgacOptions& given)
    : options(given),
      meter(std::make_shared<InfluenceMeter>(InfluenceOptions{.stride = given.stride})),
      since_change(given.steps_between_changes),
      gamma(given.gamma.first, given.seed) {}

void Pgac::Impl::find_layers(std::vector<PgacLayer> layers, std::int64_t model_layers) {
  found = std::move(layers);
  layers_of_model = model_layers;
  averages.assign(found.size(), options.literal ? 0 : kUnknown);
  decided = averages;
  wanted.assign(found.size(), true);
}

// What is measured of the layers on such an input, which is the case `of`.
std::unique_ptr<Pgac::Impl::Shape> Pgac::Impl::measured(const detail::Layers& layers,
                                                        const at::Tensor& x,
                                                        detail::LayersCase of) const {
  if (x.is_meta() || libtorch::is_on_meta()) {
    throw UsageError(
        "Pgac::run: a budget needs layers that are measured, and tensors without memory, as in an "
        "estimate, have nothing to measure; run it on real ones");
  }
  const auto scratch = std::make_shared<const InfluenceMeter>();
  Chain chain = detail::profile(influence::watched(layers, scratch), x, {});
  std::vector<PgacLayer> stages;
  std::int64_t first = 0;
  for (const ChainStage& stage : chain.stages) {
    stages.push_back({stage.name, first, stage.layers});
    first += stage.layers;
  }
  const auto is_same = [](const PgacLayer& a, const PgacLayer& b) {
    return a.first == b.first && a.count == b.count;
  };
  if (!found.empty() &&
      !std::equal(stages.begin(), stages.end(), found.begin(), found.end(), is_same)) {
    throw UsageError(
        "Pgac::run: with this input other layers belong together (" +
        std::to_string(stages.size()) + " run by themselves) than before, or in the restored " +
        "state (" + std::to_string(found.size()) + "): layers in place, or that return their " +
        "input in evaluation mode, belong to the one before; give each case its own Pgac");
  }
  return std::make_unique<Shape>(Shape{
      std::move(of), std::move(stages), influence::Fitting(std::move(chain)), {}, kNoDecision});
}

Pgac::Impl::Shape& Pgac::Impl::shape_of(const detail::Layers& layers, const at::Tensor& x) {
  detail::LayersCase wanted_case = detail::layers_case(layers, x);
  const auto known = std::find_if(shapes.begin(), shapes.end(),
                                  [&](const auto& shape) { return shape->of == wanted_case; });
  if (known != shapes.end()) {
    std::rotate(known, known + 1, shapes.end());  // the last used is the last to go
    return *shapes.back();
  }
  std::unique_ptr<Shape> made = measured(layers, x, std::move(wanted_case));
  if (shapes.size() >= kMostShapes) {
    if (current == shapes.front().get()) current = nullptr;
    shapes.erase(shapes.begin());
  }
  shapes.push_back(std::move(made));
  return *shapes.back();
}

const influence::Fitted& Pgac::Impl::fitted(Shape& shape) {
  if (shape.decision == decision) return shape.fitted;
  const bool knows_nothing = decision == 0;
  shape.fitted = knows_nothing
                     ? shape.fitting.fastest(*options.budget)
                     : shape.fitting.fit(wanted, shape.fitting.preference(options.ranking, decided),
                                         options.budget, options.fills_budget);
  shape.decision = decision;
  return shape.fitted;
}

void Pgac::Impl::note_mask(const std::vector<bool>& mask) {
  for (std::size_t i = 0; i < report.mask.size(); ++i) {
    if (report.mask[i] != mask[i]) ++report.changes;
  }
  report.mask = mask;
}

at::Tensor Pgac::Impl::run(const detail::Layers& layers, const at::Tensor& x) {
  if (layers.functions.empty()) {
    throw UsageError("Pgac::run: the list of layers is empty; give at least one");
  }
  if (!found.empty() && std::ssize(layers.functions) != layers_of_model) {
    throw UsageError("Pgac::run: the model has " + std::to_string(layers.functions.size()) +
                     " layers, but the one before had " + std::to_string(layers_of_model) +
                     "; give each model its own Pgac");
  }
  if (!at::GradMode::is_enabled()) {
    at::Tensor tensor = x;
    for (const TensorFunction& function : layers.functions) tensor = function(tensor);
    return tensor;
  }
  if (options.budget) {
    Shape& shape = shape_of(layers, x);
    const influence::Fitted& fits = fitted(shape);
    if (found.empty()) find_layers(shape.layers, std::ssize(layers.functions));
    current = &shape;
    report.predicted_peak = fits.peak;
    report.predicted_recompute = fits.recompute;
    report.by_search = fits.by_search;
    note_mask(fits.mask);
  } else if (found.empty()) {
    influence::FoundLayers first = influence::run_and_find(layers, x, meter);
    find_layers(std::move(first.layers), std::ssize(layers.functions));
    first_stays = first.first_writes_input;
    note_mask(std::vector<bool>(found.size(), true));
    return std::move(first.result);
  } else {
    std::vector<bool> mask = plan::as_run(wanted);
    if (first_stays) mask.front() = true;
    note_mask(mask);
  }
  return influence::run_masked(layers, found, report.mask, x, meter);
}

double Pgac::Impl::gamma_at(double fraction) const {
  const GammaSchedule& schedule = options.gamma;
  const double way = schedule.last - schedule.first;
  switch (schedule.kind) {
    case GammaSchedule::Kind::kConstant:
      return schedule.first;
    case GammaSchedule::Kind::kLinear:
      return schedule.first + way * fraction;
    case GammaSchedule::Kind::kCosine:
      return schedule.first + way * (1 - std::cos(M_PI * fraction)) / 2;
    case GammaSchedule::Kind::kLearned:
      return gamma.at(fraction);
  }
  return schedule.first;
}

// What a factor would cost: the seconds of the mask that it leads to, beside those of keeping all.
void Pgac::Impl::learn_gamma(double fraction, double quantile) {
  const influence::Fitting& fitting = current->fitting;
  const influence::Preference preference = fitting.preference(options.ranking, averages);
  const double plain = (fitting.chain().forward() + fitting.chain().backward()).count();
  gamma.learn(fraction, [&](double factor) {
    const auto mask = influence::mask_of(averages, factor * quantile, wanted, options.hysteresis);
    return fitting.fit(mask, preference, options.budget, options.fills_budget).time.count() / plain;
  });
}

void Pgac::Impl::take_scores() {
  report.scores.assign(found.size(), kUnknown);
  report.error = 0;
  for (const InfluenceScore& score : meter->take()) {
    report.not_finite += score.not_finite;
    report.changed += score.changed;
    const auto layer = static_cast<std::size_t>(score.layer);
    if (score.gradients == 0 || layer >= found.size()) continue;
    report.scores[layer] = score.value;
    report.error = std::max(report.error, score.error);
  }
}

void Pgac::Impl::observe(std::int64_t step) {
  if (found.empty()) {
    throw UsageError("Pgac::observe: no step has been run; call run() first");
  }
  const bool goes_by_steps = options.gamma.kind != GammaSchedule::Kind::kConstant;
  if (step < 0 || (goes_by_steps && step > options.steps)) {
    throw UsageError("Pgac::observe: the step is " + std::to_string(step) + "; it must be from 0" +
                     (goes_by_steps ? " to options.steps, " + std::to_string(options.steps) : ""));
  }
  take_scores();
  const influence::Decision next = influence::averaged(averages, report.scores, options);
  averages = next.averages;
  const double fraction =
      options.steps > 0 ? static_cast<double>(step) / static_cast<double>(options.steps) : 0;
  const double quantile = influence::quantile_of(next.considered, options.quantile);
  if (options.gamma.kind == GammaSchedule::Kind::kLearned && !std::isnan(quantile) &&
      current != nullptr) {
    learn_gamma(fraction, quantile);
  }
  report.step = step;
  report.gamma = gamma_at(fraction);
  report.threshold = report.gamma * quantile;
  since_change = std::min(since_change + 1, options.steps_between_changes);
  const bool may_change = since_change >= options.steps_between_changes;
  if (std::isnan(quantile) || !(may_change || is_set)) return;
  std::vector<bool> mask =
      influence::mask_of(averages, report.threshold, wanted, options.hysteresis);
  if (mask != wanted) since_change = 0;
  wanted = std::move(mask);
  decided = averages;
  is_set = false;
  ++decision;
}

Pgac::Pgac(const PgacOptions& options) {
  check_options(options);
  impl_ = std::make_unique<Impl>(options);
}
Pgac::~Pgac() = default;
Pgac::Pgac(Pgac&&) noexcept = default;
Pgac& Pgac::operator=(Pgac&&) noexcept = default;

at::Tensor Pgac::run_layers(const detail::Layers& layers, const at::Tensor& x) {
  return impl_->run(layers, x);
}

void Pgac::observe(std::int64_t step) { impl_->observe(step); }

void Pgac::set_mask(const std::vector<bool>& keep) {
  if (impl_->found.empty()) {
    throw UsageError(
        "Pgac::set_mask: no step has been run, so the layers are not known; call "
        "run() first");
  }
  if (keep.size() != impl_->found.size()) {
    throw UsageError("Pgac::set_mask: the mask has " + std::to_string(keep.size()) +
                     " entries, but there are " + std::to_string(impl_->found.size()) +
                     " layers; give one for each");
  }
  impl_->wanted = keep;
  impl_->is_set = true;
  ++impl_->decision;
}

void Pgac::discard_step() { impl_->meter->clear(); }

const std::vector<PgacLayer>& Pgac::layers() const { return impl_->found; }

PgacReport Pgac::report() const {
  PgacReport report = impl_->report;
  report.averages = impl_->averages;
  report.wanted = impl_->wanted;
  return report;
}

}  // namespace reprise
