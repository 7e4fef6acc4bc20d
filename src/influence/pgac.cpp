// A Pgac's runs: layers measured, the mask that fits, what is kept and what runs again.
#include "reprise/experimental/pgac.h"

#include <c10/core/GradMode.h>
#include <reprise/error.h>
#include <reprise/sequential.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "influence/pgac_impl.h"
#include "libtorch/meta/on_meta.h"

namespace reprise {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
// Shapes that never come again must not fill the memory.
constexpr std::size_t kMostShapes = 64;
constexpr std::int64_t kNoDecision = -1;

}  // namespace

Pgac::Impl::Impl(const PgacOptions& given)
    : options(given),
      meter(std::make_shared<InfluenceMeter>(InfluenceOptions{.stride = given.stride})),
      since_change(given.steps_between_changes),
      gamma(given.gamma.first, given.seed) {
  if (given.lossy) lossy = std::make_unique<influence::LossyTier>(*given.lossy);
}

void Pgac::Impl::find_layers(std::vector<PgacLayer> layers, std::int64_t model_layers) {
  found = std::move(layers);
  layers_of_model = model_layers;
  averages.assign(found.size(), options.follow_pseudocode ? 0 : kUnknown);
  decided = averages;
  wanted.assign(found.size(), true);
  if (lossy) lossy->keep_all(found.size());
}

// A state says of layers that they are one, which is of the model that it was saved with.
void Pgac::Impl::expect_restored(const detail::Layers& layers) const {
  for (const PgacLayer& layer : found) {
    std::string name;
    for (std::int64_t i = layer.first; i < layer.first + layer.count; ++i) {
      const std::string each = detail::short_name(layers.names[static_cast<std::size_t>(i)]);
      name += (name.empty() ? "" : " + ") + each;
    }
    if (name == layer.name) continue;
    throw UsageError("Pgac::run: layer " + std::to_string(layer.first) + " is \"" + name +
                     "\", but in the restored state \"" + layer.name +
                     "\"; restore a state of the same model");
  }
}

influence::RoutedChains Pgac::Impl::measured_in_routes(
    const detail::Layers& layers, const at::Tensor& x,
    std::vector<std::shared_ptr<influence::ParkedLog>>& in_8_bits) const {
  const auto scratch = std::make_shared<const InfluenceMeter>();
  influence::RoutedChains chains;
  for (std::size_t i = 0; i < chains.size(); ++i) {
    const auto route = static_cast<Compression>(i);
    const auto around = [&](std::size_t layer) {
      auto log = std::make_shared<influence::ParkedLog>();
      if (route == Compression::kInt8) in_8_bits[layer] = log;
      return lossy->scope_to_measure(route, std::move(log));
    };
    chains[i] = detail::profile(influence::watched_by_readers(layers, scratch, around), x, {});
  }
  return chains;
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
  influence::RoutedChains chains;
  std::vector<std::shared_ptr<influence::ParkedLog>> in_8_bits(layers.functions.size());
  if (lossy) chains = measured_in_routes(layers, x, in_8_bits);
  Chain chain = lossy ? chains[0] : detail::profile(influence::watched(layers, scratch), x, {});
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
  auto shape = std::make_unique<Shape>(Shape{.of = std::move(of),
                                             .layers = std::move(stages),
                                             .fitting = influence::Fitting(std::move(chain)),
                                             .fitted = {},
                                             .decision = kNoDecision,
                                             .chains = std::move(chains),
                                             .routed = {},
                                             .parked = {}});
  for (const PgacLayer& layer : shape->layers) {
    influence::ParkedLog::Sums& sums = shape->parked.emplace_back();
    for (std::int64_t i = layer.first; lossy && i < layer.first + layer.count; ++i) {
      sums += in_8_bits[static_cast<std::size_t>(i)]->sums();
    }
  }
  return shape;
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
  if (lossy && !knows_nothing) {
    shape.routed = routed(shape);
    shape.fitted = shape.routed.fitted;
    shape.decision = decision;
    return shape.fitted;
  }
  if (lossy) shape.routed.routes.assign(shape.layers.size(), Compression::kExact);
  shape.fitted =
      knows_nothing ? shape.fitting.fastest(*options.budget) : decided_fit(shape.fitting);
  shape.decision = decision;
  return shape.fitted;
}

influence::Fitted Pgac::Impl::decided_fit(const influence::Fitting& fitting) const {
  const influence::Preference preference = fitting.preference(options.ranking, decided);
  if (options.exact_search && !is_set) return fitting.search(preference.losses, *options.budget);
  return fitting.fit(wanted, preference, options.budget, options.fill_budget);
}

influence::RoutedFit Pgac::Impl::routed(const Shape& shape) const {
  const auto within_bound = [this](const influence::Routes& routes) {
    return lossy->is_within_bound(routes);
  };
  return influence::fit_routes(shape.chains, lossy->chosen(), within_bound, options.ranking,
                               decided, *options.budget);
}

at::Tensor Pgac::Impl::run_lossy(const detail::Layers& layers, const at::Tensor& x,
                                 const Shape* shape) {
  using Plan = influence::LossyTier::Plan;
  const influence::Routes& routes = shape != nullptr ? shape->routed.routes : lossy->chosen();
  const Plan plan =
      lossy->plan(x, routes, shape != nullptr, shape == nullptr || shape->routed.may_audit);
  if (shape != nullptr) {
    note_fitted(plan == Plan::kExact ? shape->routed.exact : shape->routed.fitted);
  }
  if (plan == Plan::kExact) {
    return influence::run_masked(layers, found, report.mask, x, meter);
  }
  if (shape != nullptr && plan == Plan::kAudit) report.predicted_peak = shape->routed.audit_peak;
  at::Tensor result =
      lossy->run(plan, layers, found, report.mask, routes, shape == nullptr, x, meter);
  note_routes(lossy->as_run());
  if (plan == Plan::kAudit) report.routes.assign(found.size(), PgacRoute::kRecomputed);
  return result;
}

void Pgac::Impl::note_fitted(const influence::Fitted& fits) {
  report.predicted_peak = fits.peak;
  report.predicted_recompute = fits.recompute;
  report.by_search = fits.by_search;
  note_mask(fits.mask);
}

void Pgac::Impl::note_routes(const influence::Routes& routes) {
  static_assert(static_cast<int>(PgacRoute::kInt4) == static_cast<int>(Compression::kInt4) &&
                static_cast<int>(PgacRoute::kKept) == static_cast<int>(Compression::kExact));
  report.routes.clear();
  for (std::size_t i = 0; i < report.mask.size(); ++i) {
    const auto kept = routes.empty() ? PgacRoute::kKept : static_cast<PgacRoute>(routes[i]);
    report.routes.push_back(report.mask[i] ? kept : PgacRoute::kRecomputed);
  }
}

void Pgac::Impl::note_mask(const std::vector<bool>& mask) {
  for (std::size_t i = 0; i < report.mask.size(); ++i) {
    if (report.mask[i] != mask[i]) ++report.changes;
  }
  report.mask = mask;
  note_routes({});
}

at::Tensor Pgac::Impl::run(const detail::Layers& layers, const at::Tensor& x) {
  if (layers.functions.empty()) {
    throw UsageError("Pgac::run: the list of layers is empty; give at least one");
  }
  if (!found.empty() && std::ssize(layers.functions) != layers_of_model) {
    throw UsageError("Pgac::run: the model has " + std::to_string(layers.functions.size()) +
                     " layers, but " +
                     (is_restored ? "that of the restored state" : "the one before") + " had " +
                     std::to_string(layers_of_model) + "; give each model its own Pgac");
  }
  if (std::exchange(is_restored, false)) expect_restored(layers);
  if (!at::GradMode::is_enabled()) {
    at::Tensor tensor = x;
    for (const TensorFunction& function : layers.functions) tensor = function(tensor);
    return tensor;
  }
  if (options.budget) {
    Shape& shape = shape_of(layers, x);
    const influence::Fitted& fits = fitted(shape);
    if (found.empty()) find_layers(shape.layers, std::ssize(layers.functions));
    for (std::size_t i = 0; lossy && i < found.size(); ++i) lossy->learn(i, shape.parked[i]);
    current = &shape;
    if (lossy && decision > 0) return run_lossy(layers, x, &shape);
    note_fitted(fits);
  } else if (found.empty()) {
    influence::FoundLayers first = influence::run_and_find(layers, x, meter);
    find_layers(std::move(first.layers), std::ssize(layers.functions));
    first_stays = first.first_writes_input;
    if (lossy && first_stays) {
      lossy->switch_off("layer 0 cannot be audited: it writes to the model's input");
    }
    note_mask(std::vector<bool>(found.size(), true));
    return std::move(first.result);
  } else if (lossy) {
    note_mask(std::vector<bool>(found.size(), true));
    return run_lossy(layers, x, nullptr);
  } else {
    std::vector<bool> mask = plan::as_run(wanted);
    if (first_stays) mask.front() = true;
    note_mask(mask);
  }
  return influence::run_masked(layers, found, report.mask, x, meter);
}

Pgac::Pgac(const PgacOptions& options) {
  influence::check_options(options);
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
  if (impl_->lossy) {
    impl_->lossy->choose(keep, impl_->decided, impl_->report.threshold);
  }
}

void Pgac::discard_step() {
  impl_->meter->clear();
  if (impl_->lossy) impl_->lossy->discard_step();
}

const std::vector<PgacLayer>& Pgac::layers() const { return impl_->found; }

PgacReport Pgac::report() const {
  PgacReport report = impl_->report;
  report.averages = impl_->averages;
  report.wanted = impl_->wanted;
  return report;
}

}  // namespace reprise
