#include "influence/lossy_tier.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <reprise/checkpoint.h>
#include <reprise/offload.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace reprise::influence {
namespace {

// Within a factor that is less than that of a step from one route to the next.
bool is_near(double found, double known) {
  constexpr double kFactor = 4;  // of squares
  return found <= kFactor * known && known <= kFactor * found;
}

// Values are not as noisy in one step as in the next.
constexpr double kMargin = 0.95;

std::shared_ptr<CompressedStore> store_for(const LossyOptions& options) {
  return compressed_store(
      {.compression = Compression::kInt4, .block = options.block, .seed = options.seed});
}

}  // namespace

LossyTier::LossyTier(const LossyOptions& options) : options_(options), store_(store_for(options)) {}

bool LossyTier::is_within_bound(const Routes& routes) const {
  for (std::size_t i = 0; i < routes.size(); ++i) {
    if (routes[i] != Compression::kExact && !layers_[i].is_known()) return false;
  }
  return gradient_error(layers_, noise_of(routes, layers_)) <= kMargin * options_.gradient_error;
}

Routes LossyTier::tightened_to_bound(Routes routes) const {
  for (std::size_t i = 0; i < routes.size(); ++i) {
    if (!layers_[i].is_known()) routes[i] = Compression::kExact;
  }
  return tightened(std::move(routes), layers_, kMargin * options_.gradient_error);
}

void LossyTier::keep_all(std::size_t layers) {
  layers_.resize(layers);
  parameters_.resize(layers);
  turns_.last.resize(layers, -1);
  turns_.refuses.resize(layers);
  chosen_.assign(layers, Compression::kExact);
  turns_.now = std::nullopt;
}

void LossyTier::choose(const std::vector<bool>& keep, const std::vector<double>& averages,
                       double threshold) {
  chosen_ = tightened_to_bound(routes_of(keep, averages, options_.far * threshold));
  choose_probe();
}

// The layer whose last turn is longest ago, of those that can be probed. While there is one that
// had none, in every step.
void LossyTier::choose_probe() {
  turns_.now = std::nullopt;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const bool can_be = !turns_.refuses[i] && (kept_.size() <= i || kept_[i]);
    if (can_be && (!turns_.now || turns_.last[i] < turns_.last[*turns_.now])) turns_.now = i;
  }
  if (!turns_.now) return;
  std::int64_t& last = turns_.last[*turns_.now];
  if (last >= 0 && turns_.steps < turns_.next) {
    turns_.now = std::nullopt;
    return;
  }
  last = turns_.steps;
  turns_.next = turns_.steps + turns_.interval;
}

// Runs each kept layer under the scope of its route.
class LossyTier::Runner final : public KeptRunner {
 public:
  Runner(LossyTier& tier, Routes routes, bool may_tighten, std::optional<std::size_t> probed)
      : tier_(tier),
        routes_(std::move(routes)),
        may_tighten_(may_tighten),
        probed_(probed),
        noise_(routes_.size()) {}

  at::Tensor run(std::size_t layer, const TensorFunction& call, const at::Tensor& input) override {
    if (layer == probed_) return run_probed(call, input, probe_of(layer));
    if (may_tighten_) {
      routes_ = tightened(std::move(routes_), tier_.layers_, tier_.options_.gradient_error, layer,
                          noise_);
    }
    const Compression route = routes_[layer];
    if (route == Compression::kExact) return call(input);
    const auto log = std::make_shared<ParkedLog>();
    at::Tensor result;
    {
      const Offload scope(std::make_shared<RoutedStore>(tier_.store_, route, log),
                          tier_.options_.minimum);
      result = call(input);
    }
    note(layer, log->sums());
    return result;
  }

  const Routes& routes() const { return routes_; }
  const std::vector<double>& noise() const { return noise_; }
  Bytes before() const { return before_; }
  Bytes after() const { return after_; }

 private:
  ProbeSettings probe_of(std::size_t layer) {
    const Compression route = std::max(routes_[layer], Compression::kInt8);
    routes_[layer] = Compression::kExact;
    return {.store = tier_.store_,
            .route = route,
            .minimum = tier_.options_.minimum,
            .report = [findings = tier_.findings_, layer](const ProbeFindings& found) {
              const std::lock_guard<std::mutex> lock(findings->mutex);
              findings->findings.emplace_back(layer, found);
            }};
  }

  void note(std::size_t layer, const ParkedLog::Sums& sums) {
    // A run for a region around may end before its layers have.
    if (is_recomputing()) return;
    // A step that saves nothing (frozen, or skipped) says nothing of the next.
    if (sums.values > 0) {
      LayerNoise& known = tier_.layers_[layer];
      known.spread = sums.spread;
      known.values = static_cast<double>(sums.values);
    }
    noise_[layer] = sums.noise;
    before_ = before_ + sums.before;
    after_ = after_ + sums.after;
  }

  LossyTier& tier_;
  Routes routes_;
  const bool may_tighten_;
  const std::optional<std::size_t> probed_;
  std::vector<double> noise_;
  Bytes before_, after_;
};

at::Tensor LossyTier::run(const detail::Layers& layers, const std::vector<PgacLayer>& found,
                          const std::vector<bool>& keep, const Routes& routes, bool may_tighten,
                          std::optional<std::size_t> probed, const at::Tensor& input,
                          const Meter& meter) {
  Runner runner(*this, routes, may_tighten, probed);
  at::Tensor result = run_masked(layers, found, keep, input, meter, &runner);
  if (is_recomputing()) return result;
  as_run_ = runner.routes();
  kept_ = keep;
  noise_.resize(found.size());
  for (std::size_t i = 0; i < noise_.size(); ++i) {
    noise_[i] = std::max(noise_[i], runner.noise()[i]);
  }
  step_.before = runner.before();
  step_.after = runner.after();
  return result;
}

void LossyTier::take_findings() {
  std::vector<std::pair<std::size_t, ProbeFindings>> taken;
  {
    const std::lock_guard<std::mutex> lock(findings_->mutex);
    taken.swap(findings_->findings);
  }
  // Several where gradients of several runs add up.
  std::map<std::size_t, ProbeFindings> by_layer;
  for (auto& [layer, found] : taken) {
    if (layer >= layers_.size()) continue;
    if (found.has_failed) {
      turns_.refuses[layer] = true;
      continue;
    }
    if (found.noise <= 0) continue;
    found.parameter_error /= found.noise;
    const auto [first, is_first] = by_layer.try_emplace(layer, found);
    if (!is_first) first->second.parameter_error += found.parameter_error;
  }
  for (auto& [layer, found] : by_layer) {
    LayerNoise& known = layers_[layer];
    const double input_gain = found.input_error / found.noise;
    const bool is_as_before = known.parameter_noise >= 0 && is_near(input_gain, known.input_gain) &&
                              is_near(found.parameter_error, known.parameter_noise_now());
    // Layers are probed as often as they change.
    turns_.interval = is_as_before ? std::min(2 * turns_.interval, options_.probe_every)
                                   : std::max<std::int64_t>(1, turns_.interval / 2);
    known.spread = found.spread;
    known.values = found.values;
    known.input_gain = input_gain;
    known.parameter_noise = found.parameter_error;
    known.score_then = known.score;
    parameters_[layer] = std::move(found.parameters);
    if (known.gradient_square < 0) take_gradient(layer);
  }
}

// |g|^2, as backward has left it. Where the program has let go of gradients, or they are infinite,
// the last one stays.
void LossyTier::take_gradient(std::size_t layer) {
  double sum = 0;
  for (const at::Tensor& parameter : parameters_[layer]) {
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined() || gradient.layout() != at::kStrided || gradient.is_complex()) return;
    const double norm = at::linalg_vector_norm(gradient).item<double>();
    sum += norm * norm;
  }
  if (std::isfinite(sum) && sum > 0) layers_[layer].gradient_square = sum;
}

LossyTier::Step LossyTier::end_step(const std::vector<double>& scores) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < layers_.size() && i < scores.size(); ++i) {
    if (scores[i] > 0) layers_[i].score = scores[i];
  }
  for (std::size_t i = 0; i < layers_.size(); ++i) take_gradient(i);
  // By the gains that were known when the step's routes were chosen.
  if (!noise_.empty()) step_.error = gradient_error(layers_, noise_);
  take_findings();
  ++turns_.steps;
  noise_.clear();
  return std::exchange(step_, {});
}

void LossyTier::discard_step() {
  const std::lock_guard<std::mutex> lock(findings_->mutex);
  findings_->findings.clear();
  noise_.clear();
  step_ = {};
}

LossyTier::State LossyTier::state() const {
  return {layers_, chosen_, turns_, store_->next_stream()};
}

void LossyTier::restore(State state) {
  discard_step();
  layers_ = std::move(state.layers);
  chosen_ = std::move(state.chosen);
  turns_ = std::move(state.turns);
  parameters_.assign(layers_.size(), {});
  kept_.clear();
  store_->set_next_stream(state.next_stream);
}

std::shared_ptr<void> LossyTier::scope_to_measure(Compression route,
                                                  std::shared_ptr<ParkedLog> log) const {
  if (route == Compression::kExact) return nullptr;
  // Into a store of its own, so that measuring draws nothing.
  return std::make_shared<Offload>(
      std::make_shared<RoutedStore>(store_for(options_), route, std::move(log)), options_.minimum);
}

void LossyTier::learn(std::size_t layer, const ParkedLog::Sums& parked) {
  LayerNoise& known = layers_[layer];
  if (known.is_known()) return;
  known.spread = parked.spread;
  known.values = static_cast<double>(parked.values);
}

}  // namespace reprise::influence
