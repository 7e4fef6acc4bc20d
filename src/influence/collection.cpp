#include "influence/collection.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace reprise::influence {

bool can_be_scored(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kComplexFloat:
    case at::kComplexDouble:
      break;
    default:
      return false;
  }
  return tensor.layout() == at::kStrided && !tensor.is_meta() && !tensor.is_nested() &&
         !tensor._is_zerotensor() && tensor.has_storage();
}

InfluenceScore Collection::score_of(std::int64_t layer, const Collected& collected) {
  InfluenceScore score{.layer = layer,
                       .value = std::sqrt(collected.squares.sum),
                       .error = 0,
                       .gradients = collected.gradients,
                       .not_finite = collected.not_finite,
                       .changed = collected.changed,
                       .missed = collected.missed};
  // ds / s = dS / 2 S, where s is the root of S.
  if (collected.squares.sum > 0) {
    score.error = std::sqrt(collected.squares.variance) / (2 * collected.squares.sum);
  }
  return score;
}

void Collection::send_to_host(Underway& underway) {
  const auto engine = libtorch::accelerator_engine();
  for (auto& [layer, collected] : underway.layers) {
    const at::Tensor sum = std::exchange(collected.on_device, {});
    if (!sum.defined()) continue;
    if (engine == nullptr || !engine->serves(sum.device())) {
      underway.on_host[layer] = sum.cpu();
      continue;
    }
    const auto stream = engine->current(sum.device());
    at::Tensor host = engine->allocate_host(sum.scalar_type(), 1);
    engine->copy(host, sum.view(1), stream);
    underway.on_host[layer] = std::move(host);
    underway.arrivals.push_back(engine->record(stream));
  }
}

// Adds what has arrived to what is there.
void Collection::read_from_host(Underway& underway, ByLayer& layers) {
  for (const auto& arrival : underway.arrivals) arrival->wait();
  for (auto& [layer, collected] : underway.layers) {
    const auto host = underway.on_host.find(layer);
    if (host != underway.on_host.end()) {
      collected.squares.sum += host->second.item<double>();
      if (!std::isfinite(collected.squares.sum)) {
        // All gradients of the step are in one sum.
        collected.not_finite += std::exchange(collected.gradients, 0);
        collected.squares = {};
      }
    }
    Collected& all = layers[layer];
    all.squares.sum += collected.squares.sum;
    all.squares.variance += collected.squares.variance;
    all.gradients += collected.gradients;
    all.not_finite += collected.not_finite;
    all.changed += collected.changed;
    all.missed += collected.missed;
  }
}

void Collection::add(std::int64_t layer, const at::Tensor& gradient, const at::Tensor& activation,
                     std::int64_t stride) {
  if (activation.device().is_cpu()) return add(layer, square_sum(gradient, activation, stride));
  const at::Tensor sum = square_sum_on_device(gradient, activation);
  const std::lock_guard<std::mutex> lock(mutex_);
  Collected& collected = layers_[layer];
  at::Tensor& all = collected.on_device;
  all = all.defined() ? all.add(sum.to(all.options())) : sum;
  ++collected.gradients;
}

void Collection::add(std::int64_t layer, const SquareSum& squares) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Collected& collected = layers_[layer];
  if (!std::isfinite(collected.squares.sum + squares.sum)) {
    ++collected.not_finite;
    return;
  }
  collected.squares.sum += squares.sum;
  collected.squares.variance += squares.variance;
  ++collected.gradients;
}

void Collection::note_changed(std::int64_t layer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++layers_[layer].changed;
}

void Collection::note_missed(std::int64_t layer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++layers_[layer].missed;
}

Collection::ByLayer Collection::exchange_layers() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(layers_, {});
}

std::vector<InfluenceScore> Collection::take() {
  ByLayer taken = exchange_layers();
  std::optional<Underway> before = std::exchange(underway_, std::nullopt);
  const bool is_on_device = std::any_of(
      taken.begin(), taken.end(), [](const auto& each) { return each.second.on_device.defined(); });
  if (is_on_device) {
    underway_.emplace().layers = std::exchange(taken, {});
    send_to_host(*underway_);
  }
  if (before) read_from_host(*before, taken);
  std::vector<InfluenceScore> scores;
  scores.reserve(taken.size());
  for (const auto& [layer, collected] : taken) scores.push_back(score_of(layer, collected));
  return scores;
}

void Collection::clear() {
  exchange_layers();
  underway_.reset();
}

}  // namespace reprise::influence
