#include "influence/lossy_tier.h"

#include <ATen/core/grad_mode.h>
#include <reprise/checkpoint.h>
#include <reprise/offload.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "libtorch/autograd/graph_reach.h"
#include "libtorch/autograd/zero_gradients.h"

namespace reprise::influence {
namespace {

// Of the noise that was planned: values are not as noisy in one step as in the next.
constexpr double kRoom = 1.1;

std::shared_ptr<CompressedStore> store_for(const LossyOptions& options) {
  return compressed_store(
      {.compression = Compression::kInt4, .block = options.block, .seed = options.seed});
}

bool is_lossy(const Routes& routes) {
  return std::any_of(routes.begin(), routes.end(),
                     [](Compression route) { return route != Compression::kExact; });
}

}  // namespace

LossyTier::LossyTier(const LossyOptions& options) : options_(options), store_(store_for(options)) {}

bool LossyTier::is_within_bound(const Routes& routes) const {
  return tightened(routes, known_.layers, options_.gradient_error / std::sqrt(kRoom)) == routes;
}

void LossyTier::keep_all(std::size_t layers) {
  known_.layers.resize(layers);
  parameters_.resize(layers);
  known_.wanted.assign(layers, Compression::kInt8);
  known_.chosen.assign(layers, Compression::kExact);
}

void LossyTier::choose(const std::vector<bool>& keep, const std::vector<double>& averages,
                       double threshold) {
  known_.wanted = routes_of(keep, averages, options_.int4_threshold * threshold);
  limit_sensitivities();
  known_.chosen = known_.off.empty() ? tightened(known_.wanted, known_.layers,
                                                 options_.gradient_error / std::sqrt(kRoom))
                                     : Routes(known_.layers.size(), Compression::kExact);
}

void LossyTier::switch_off(const std::string& why) {
  if (!known_.off.empty()) return;
  known_.off = why;
  known_.chosen.assign(known_.layers.size(), Compression::kExact);
}

void LossyTier::limit_sensitivities() {
  for (std::size_t i = 0; i < known_.layers.size(); ++i) {
    known_.layers[i].sensitivity =
        sensitivities_.is_known() ? sensitivities_.limit(i) : LayerNoise::kUnknown;
  }
}

std::vector<double> LossyTier::log_weights() const {
  const at::NoGradGuard no_grad;
  std::vector<double> weights;
  for (const std::vector<at::Tensor>& parameters : parameters_) {
    double sum = 0;
    for (const at::Tensor& each : parameters) {
      if (each.layout() == at::kStrided && !each.is_complex()) sum += square_of(each.detach());
    }
    weights.push_back(sum > 0 && std::isfinite(sum) ? std::log(sum) / 2 : 0);
  }
  return weights;
}

LossyTier::Plan LossyTier::plan(const at::Tensor& input, const Routes& routes, bool has_budget,
                                bool may_audit) {
  const Plan alone = plan_alone(input, routes, has_budget, may_audit);
  if (!step_.plan) step_.plan = alone;
  if (step_.plan == Plan::kAudit) {
    step_.is_partial = step_.is_partial || !may_audit;
    return may_audit ? Plan::kAudit : Plan::kExact;
  }
  if (alone != Plan::kAudit) return alone;
  // The runs before it would be missing in the audit.
  step_.is_missed = true;
  return Plan::kExact;
}

LossyTier::Plan LossyTier::plan_alone(const at::Tensor& input, const Routes& routes,
                                      bool has_budget, bool may_audit) const {
  // The first step's runs find out which layers there are, and a region around may run them again.
  if (!known_.off.empty() || known_.turns.steps == 0) return Plan::kExact;
  if (!known_.is_inspected && !has_budget) return Plan::kInspect;
  if (!may_audit) return Plan::kExact;
  if (known_.turns.steps >= known_.turns.next) return Plan::kAudit;
  if (!sensitivities_.is_known() || !is_lossy(routes)) return Plan::kExact;
  if (knows(input)) return Plan::kLossy;
  return known_.turns.credit >= 1 ? Plan::kAudit : Plan::kExact;
}

// Of what is there before the first layer is run.
bool LossyTier::knows(const at::Tensor& input) const {
  // A resumed training does not know its parameters before its first step has ended.
  const bool has_parameters = std::any_of(parameters_.begin(), parameters_.end(),
                                          [](const auto& of) { return !of.empty(); });
  return has_parameters && regimes_.knows_weights(log_weights()) &&
         regimes_.knows(0, features_of(input));
}

// Runs each kept layer under the scope of its route.
class LossyTier::LossyRunner final : public KeptRunner {
 public:
  LossyRunner(LossyTier& tier, Routes routes, bool may_change)
      : tier_(tier), routes_(std::move(routes)), may_change_(may_change), noise_(routes_.size()) {}

  at::Tensor run(std::size_t layer, const TensorFunction& call, const std::function<void()>& watch,
                 const at::Tensor& input) override {
    if (!is_unknown_ && layer > 0 && !tier_.regimes_.knows(layer, features_of(input))) {
      is_unknown_ = true;
    }
    if (is_unknown_ && may_change_) routes_[layer] = Compression::kExact;
    const std::uint64_t since = libtorch::place_in_graph();
    at::Tensor result = run_in(routes_[layer], layer, call, watch, input);
    if (tier_.parameters_[layer].empty() && result.requires_grad()) {
      tier_.step_.parameters[layer] = libtorch::leaves_since(since, result);
    }
    return result;
  }

  const Routes& routes() const { return routes_; }
  const std::vector<double>& noise() const { return noise_; }
  bool is_unknown() const { return is_unknown_; }
  Bytes before() const { return before_; }
  Bytes after() const { return after_; }

 private:
  at::Tensor run_in(Compression route, std::size_t layer, const TensorFunction& call,
                    const std::function<void()>& watch, const at::Tensor& input) {
    if (route == Compression::kExact) {
      watch();
      return call(input);
    }
    const LayerNoise& known = tier_.known_.layers[layer];
    const auto log = may_change_ ? std::make_shared<ParkedLog>(kRoom * noise_of(known, route))
                                 : std::make_shared<ParkedLog>();
    at::Tensor result;
    {
      const OffloadScope scope(std::make_shared<RoutedStore>(tier_.store_, route, log),
                               tier_.options_.min_bytes);
      watch();
      result = call(input);
    }
    note(layer, log->sums());
    return result;
  }

  void note(std::size_t layer, const ParkedLog::Sums& sums) {
    // A run for a region around may end before its layers have.
    if (is_recomputing()) return;
    tier_.note_spread(layer, sums.spread, static_cast<double>(sums.values));
    noise_[layer] = sums.noise;
    before_ = before_ + sums.before;
    after_ = after_ + sums.after;
  }

  LossyTier& tier_;
  Routes routes_;
  const bool may_change_;
  bool is_unknown_ = false;
  std::vector<double> noise_;
  Bytes before_, after_;
};

// Audits each layer, or finds out whether it may be.
class LossyTier::AuditRunner final : public KeptRunner {
 public:
  // `regimes`: by which layers would have been kept; null: by none.
  AuditRunner(std::shared_ptr<AuditedRun> run, std::shared_ptr<AuditFindings> findings,
              const Regimes* regimes)
      : run_(std::move(run)), findings_(std::move(findings)), regimes_(regimes) {}

  at::Tensor run(std::size_t layer, const TensorFunction& call, const std::function<void()>& watch,
                 const at::Tensor& input) override {
    watch();
    if (run_ == nullptr) return run_inspected(layer, call, input, findings_);
    inputs_.push_back(features_of(input));
    is_unknown_ = is_unknown_ || (regimes_ != nullptr && !regimes_->knows(layer, inputs_.back()));
    if (is_unknown_) {
      run_->keep(layer);
      kept_.push_back(layer);
    }
    return run_->run(layer, call, input);
  }
  const std::vector<Features>& inputs() const { return inputs_; }
  const std::vector<std::size_t>& kept() const { return kept_; }

 private:
  const std::shared_ptr<AuditedRun> run_;  // null: they are kept
  const std::shared_ptr<AuditFindings> findings_;
  const Regimes* const regimes_;
  bool is_unknown_ = false;
  std::vector<Features> inputs_;
  std::vector<std::size_t> kept_;
};

// A step that saves nothing (frozen, or skipped) says nothing of the next.
void LossyTier::note_spread(std::size_t layer, double spread, double values) {
  constexpr double kForgets = 0.98;
  if (values <= 0) return;
  LayerNoise& known = known_.layers[layer];
  known.spread = std::max(kForgets * known.spread, spread);
  known.values = std::max(values, std::floor(kForgets * known.values));
}

at::Tensor LossyTier::run(Plan plan, const detail::Layers& layers,
                          const std::vector<PgacLayer>& found, const std::vector<bool>& keep,
                          const Routes& routes, bool may_change, const at::Tensor& input,
                          const Meter& meter) {
  if (plan == Plan::kLossy) {
    step_.parameters.resize(found.size());
    LossyRunner runner(*this, routes, may_change);
    at::Tensor result = run_masked(layers, found, keep, input, meter, &runner);
    if (is_recomputing()) return result;
    as_run_ = runner.routes();
    step_.noise.resize(found.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      step_.noise[i] = std::max(step_.noise[i], runner.noise()[i]);
    }
    step_.before = runner.before();
    step_.after = runner.after();
    step_.is_unknown = step_.is_unknown || runner.is_unknown();
    return result;
  }
  if (step_.findings == nullptr) {
    step_.findings = std::make_shared<AuditFindings>(found.size());
    const bool is_in_force = sensitivities_.is_known() && is_lossy(routes);
    step_.routes = is_in_force ? routes : known_.wanted;
    step_.is_test = is_in_force && knows(input);
    step_.is_new = is_in_force && !step_.is_test;
  }
  const std::vector<bool> all(found.size(), true);
  const auto audited =
      plan == Plan::kInspect
          ? nullptr
          : std::make_shared<AuditedRun>(
                AuditSettings{
                    .store = store_, .min_bytes = options_.min_bytes, .routes = step_.routes},
                step_.findings);
  AuditRunner runner(audited, step_.findings, step_.is_test && may_change ? &regimes_ : nullptr);
  at::Tensor result = run_masked(layers, found, all, input, meter, &runner);
  for (const std::size_t layer : runner.kept()) step_.routes[layer] = Compression::kExact;
  as_run_.assign(found.size(), Compression::kExact);
  if (plan == Plan::kAudit && !is_recomputing()) {
    step_.inputs.resize(found.size());
    for (std::size_t i = 0; i < found.size(); ++i) step_.inputs[i].push_back(runner.inputs()[i]);
  }
  return result;
}

void LossyTier::discard_step() { step_ = {}; }

LossyTier::State LossyTier::state() const {
  State state = known_;
  state.sensitivities = sensitivities_.state();
  state.regimes = regimes_.state();
  state.next_stream = store_->next_stream();
  return state;
}

void LossyTier::restore(State state) {
  discard_step();
  store_->set_next_stream(state.next_stream);
  sensitivities_.restore(std::move(state.sensitivities));
  regimes_.restore(std::move(state.regimes));
  known_ = std::move(state);
  parameters_.assign(known_.layers.size(), {});
}

std::shared_ptr<void> LossyTier::scope_to_measure(Compression route,
                                                  std::shared_ptr<ParkedLog> log) const {
  if (route == Compression::kExact) return nullptr;
  // Into a store of its own, so that measuring draws nothing.
  return std::make_shared<OffloadScope>(
      std::make_shared<RoutedStore>(store_for(options_), route, std::move(log)),
      options_.min_bytes);
}

void LossyTier::learn(std::size_t layer, const ParkedLog::Sums& parked) {
  LayerNoise& known = known_.layers[layer];
  if (known.spread != LayerNoise::kUnknown) return;
  known.spread = parked.spread;
  known.values = static_cast<double>(parked.values);
}

}  // namespace reprise::influence
