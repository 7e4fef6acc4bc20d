// Scores of activations, collected from backward (reprise/influence.h).
#include "reprise/influence.h"

#include <reprise/error.h>
#include <reprise/memory_budget.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "influence/score.h"
#include "libtorch/gradient_hook.h"
#include "libtorch/transfer_engine.h"

namespace reprise {
namespace influence {

// What came for a layer since the last take().
struct Collected {
  SquareSum squares;
  at::Tensor on_device;  // sums of squares that have not been read
  std::int64_t gradients = 0, not_finite = 0, changed = 0, missed = 0;
};

using ByLayer = std::map<std::int64_t, Collected>;

// Sums on their way from an accelerator.
struct Underway {
  ByLayer layers;
  std::map<std::int64_t, at::Tensor> on_host;
  std::vector<std::unique_ptr<libtorch::DeviceEvent>> arrivals;
};

}  // namespace influence

namespace {

using influence::ByLayer;
using influence::Collected;
using influence::Underway;

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

InfluenceScore score_of(std::int64_t layer, const Collected& collected) {
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

void send_to_host(Underway& underway) {
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
void read_from_host(Underway& underway, ByLayer& layers) {
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

}  // namespace

struct InfluenceMeter::Impl {
  InfluenceOptions options;
  std::mutex mutex;  // protects what follows from backward's threads
  ByLayer layers;
  std::optional<Underway> underway;

  void add(std::int64_t layer, const at::Tensor& gradient, const libtorch::SavedTensor* saved) {
    if (saved == nullptr) {
      const std::lock_guard<std::mutex> lock(mutex);
      ++layers[layer].missed;
      return;
    }
    if (saved->changes().value_or(0) > 0 || saved->changes_behind_hook() > 0) {
      const std::lock_guard<std::mutex> lock(mutex);
      ++layers[layer].changed;
      return;
    }
    const at::Tensor activation = saved->unpack();
    if (activation.device().is_cpu()) {
      // A budget may have dropped what nobody but the score reads now.
      const Pin keeps_gradient(gradient), keeps_activation(activation);
      add(layer, influence::square_sum(gradient, activation, options.stride));
    } else {
      const at::Tensor sum = influence::square_sum_on_device(gradient, activation);
      const std::lock_guard<std::mutex> lock(mutex);
      Collected& collected = layers[layer];
      at::Tensor& all = collected.on_device;
      all = all.defined() ? all.add(sum.to(all.options())) : sum;
      ++collected.gradients;
    }
  }

  void add(std::int64_t layer, const influence::SquareSum& squares) {
    const std::lock_guard<std::mutex> lock(mutex);
    Collected& collected = layers[layer];
    if (!std::isfinite(collected.squares.sum + squares.sum)) {
      ++collected.not_finite;
      return;
    }
    collected.squares.sum += squares.sum;
    collected.squares.variance += squares.variance;
    ++collected.gradients;
  }

  ByLayer exchange_layers() {
    const std::lock_guard<std::mutex> lock(mutex);
    return std::exchange(layers, {});
  }
};

InfluenceMeter::InfluenceMeter(const InfluenceOptions& options) : impl_(std::make_shared<Impl>()) {
  if (options.stride < 1) {
    throw UsageError("InfluenceMeter: stride is " + std::to_string(options.stride) +
                     "; it must be at least 1, at which every element is looked at");
  }
  impl_->options = options;
}
InfluenceMeter::~InfluenceMeter() = default;
InfluenceMeter::InfluenceMeter(InfluenceMeter&&) noexcept = default;
InfluenceMeter& InfluenceMeter::operator=(InfluenceMeter&&) noexcept = default;

void InfluenceMeter::watch(std::int64_t layer, const at::Tensor& activation) const {
  if (layer < 0) {
    throw UsageError("InfluenceMeter::watch: layer is " + std::to_string(layer) +
                     "; layers are numbered from 0");
  }
  if (!activation.requires_grad() || activation.is_leaf() || !can_be_scored(activation)) return;
  libtorch::on_gradient(activation, [impl = impl_, layer](const at::Tensor& gradient,
                                                          const libtorch::SavedTensor* value) {
    if (can_be_scored(gradient)) impl->add(layer, gradient, value);
  });
}

std::vector<InfluenceScore> InfluenceMeter::take() {
  ByLayer taken = impl_->exchange_layers();
  std::optional<Underway> before = std::exchange(impl_->underway, std::nullopt);
  const bool is_on_device = std::any_of(
      taken.begin(), taken.end(), [](const auto& each) { return each.second.on_device.defined(); });
  if (is_on_device) {
    impl_->underway.emplace().layers = std::exchange(taken, {});
    send_to_host(*impl_->underway);
  }
  if (before) read_from_host(*before, taken);
  std::vector<InfluenceScore> scores;
  for (const auto& [layer, collected] : taken) scores.push_back(score_of(layer, collected));
  return scores;
}

void InfluenceMeter::clear() {
  impl_->exchange_layers();
  impl_->underway.reset();
}

double influence_of(const at::Tensor& gradient, const at::Tensor& activation) {
  const auto refuse = [](const std::string& reason) {
    throw UsageError("influence_of(): " + reason);
  };
  if (gradient.sizes() != activation.sizes()) {
    std::ostringstream text;
    text << "the gradient has the shape " << gradient.sizes() << ", the activation "
         << activation.sizes() << "; they must be the same";
    refuse(text.str());
  }
  if (gradient.device() != activation.device()) {
    refuse("the gradient is on " + gradient.device().str() + ", the activation on " +
           activation.device().str() + "; they must be on one device");
  }
  if (gradient.scalar_type() != activation.scalar_type() || !can_be_scored(activation) ||
      !can_be_scored(gradient)) {
    refuse("the gradient is " + gradient.toString() + ", the activation " + activation.toString() +
           "; both must be dense, with memory, and of one type of float, double, half, bfloat16 "
           "and the "
           "complex forms of the first two");
  }
  const at::NoGradGuard no_grad;
  if (!gradient.device().is_cpu()) {
    return std::sqrt(influence::square_sum_on_device(gradient, activation).item<double>());
  }
  const Pin keeps_gradient(gradient), keeps_activation(activation);
  return std::sqrt(influence::square_sum(gradient, activation, 1).sum);
}

}  // namespace reprise
