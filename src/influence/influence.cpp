// Scores of activations that were watched (pgac.h).
#include "reprise/experimental/pgac.h"

#include <reprise/budget.h>
#include <reprise/error.h>

#include <cmath>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "influence/collection.h"
#include "influence/score.h"
#include "libtorch/autograd/gradient_hook.h"

namespace reprise {

using influence::can_be_scored;

struct InfluenceMeter::Impl {
  InfluenceOptions options;
  influence::Collection collection;

  void add(std::int64_t layer, const at::Tensor& gradient, const libtorch::SavedTensor* saved) {
    if (saved == nullptr) return collection.note_missed(layer);
    if (saved->changes().value_or(0) > 0 || saved->changes_behind_hook() > 0) {
      return collection.note_changed(layer);
    }
    const at::Tensor activation = saved->unpack();
    // A budget may have dropped what nobody but the score reads now. (Operators of an accelerator's
    // bring it back themselves.)
    std::optional<Pin> keeps_gradient, keeps_activation;
    if (activation.device().is_cpu()) {
      keeps_gradient.emplace(gradient);
      keeps_activation.emplace(activation);
    }
    collection.add(layer, gradient, activation, options.stride);
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

std::vector<InfluenceScore> InfluenceMeter::take() { return impl_->collection.take(); }

void InfluenceMeter::clear() { impl_->collection.clear(); }

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
           "and the complex forms of the first two");
  }
  const at::NoGradGuard no_grad;
  if (!gradient.device().is_cpu()) {
    return std::sqrt(influence::square_sum_on_device(gradient, activation).item<double>());
  }
  const Pin keeps_gradient(gradient), keeps_activation(activation);
  return std::sqrt(influence::square_sum(gradient, activation, 1).sum);
}

}  // namespace reprise
