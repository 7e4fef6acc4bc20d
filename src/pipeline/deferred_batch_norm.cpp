#include "pipeline/deferred_batch_norm.h"

#include <c10/core/GradMode.h>
#include <torch/nn/modules/batchnorm.h>

#include <algorithm>
#include <utility>

namespace reprise::pipeline {
namespace {

using OfCall = libtorch::BatchStatistics::OfCall;

template <class... Impl>
void add_if_any_of(const std::shared_ptr<torch::nn::Module>& module,
                   std::vector<BatchNorm>& norms) {
  const auto offer = [&](auto* norm) {
    if (norm == nullptr || !norm->running_mean.defined()) return;
    norms.push_back({module, &norm->running_mean, &norm->running_var, &norm->num_batches_tracked,
                     [norm] { return norm->options.momentum(); }});
  };
  (offer(dynamic_cast<Impl*>(module.get())), ...);
}

// The running variance is the unbiased one, as BatchNorm itself has it. The parts are put together
// as by Chan, Golub and LeVeque, "Updating formulae", 1979: no large squares are subtracted.
void update(const BatchNorm& norm, const std::vector<OfCall>& parts) {
  double elements = 0;
  for (const OfCall& part : parts) elements += part.elements;
  at::Tensor mean, squares;
  const auto add = [](at::Tensor& sum, const at::Tensor& term) {
    sum = sum.defined() ? sum + term : term;
  };
  for (const OfCall& part : parts)
    add(mean, part.mean.to(at::kDouble) * (part.elements / elements));
  for (const OfCall& part : parts) {
    const at::Tensor variance = part.inverse_deviation.to(at::kDouble).pow(-2) - part.epsilon;
    const at::Tensor distance = part.mean.to(at::kDouble) - mean;
    add(squares, (variance.clamp_min(0) + distance * distance) * part.elements);
  }
  at::Tensor& count = *norm.num_batches_tracked;
  if (count.defined()) count.add_(1);
  // Without a momentum the average over all batches counts, as in BatchNorm.
  const auto momentum = norm.momentum();
  const double share = momentum ? *momentum : count.defined() ? 1.0 / count.item<double>() : 0.0;
  const auto average = [share](at::Tensor& running, const at::Tensor& value) {
    running.copy_(running.to(at::kDouble) * (1 - share) + value * share);
  };
  average(*norm.running_mean, mean);
  average(*norm.running_var, squares / std::max(elements - 1, 1.0));
}

}  // namespace

void add_batch_norms(const std::shared_ptr<torch::nn::Module>& module,
                     std::vector<BatchNorm>& norms) {
  for (const auto& each : module->modules()) {
    const auto is_it = [&](const BatchNorm& norm) { return norm.module == each; };
    if (std::any_of(norms.begin(), norms.end(), is_it)) continue;
    add_if_any_of<torch::nn::BatchNorm1dImpl, torch::nn::BatchNorm2dImpl,
                  torch::nn::BatchNorm3dImpl>(each, norms);
  }
}

std::size_t GatheredStatistics::find(const at::Tensor& running_mean) const {
  const auto is_it = [&](const BatchNorm& norm) {
    return norm.running_mean->is_same(running_mean);
  };
  return static_cast<std::size_t>(std::find_if(norms_->begin(), norms_->end(), is_it) -
                                  norms_->begin());
}

bool GatheredStatistics::gathers(const at::Tensor& running_mean) const {
  return find(running_mean) < norms_->size();
}

void GatheredStatistics::gather(const at::Tensor& running_mean, OfCall call) {
  calls_[find(running_mean)].push_back(std::move(call));
}

GatheringScope::GatheringScope(const std::vector<BatchNorm>& norms,
                               std::shared_ptr<GatheredStatistics> statistics)
    : norms_(norms), in_force_(std::move(statistics)) {
  for (const BatchNorm& norm : norms_) {
    counts_.push_back(std::exchange(*norm.num_batches_tracked, at::Tensor()));
  }
}

GatheringScope::~GatheringScope() {
  for (std::size_t i = 0; i < norms_.size(); ++i) {
    *norms_[i].num_batches_tracked = std::move(counts_[i]);
  }
}

void update_running_statistics(const std::vector<BatchNorm>& norms,
                               const std::vector<std::shared_ptr<GatheredStatistics>>& parts) {
  const c10::NoGradGuard no_grad;
  for (std::size_t i = 0; i < norms.size(); ++i) {
    std::vector<std::vector<OfCall>> by_call;
    for (const auto& part : parts) {
      std::vector<OfCall> calls = part->take(i);
      by_call.resize(std::max(by_call.size(), calls.size()));
      for (std::size_t k = 0; k < calls.size(); ++k) by_call[k].push_back(std::move(calls[k]));
    }
    for (const auto& same_call : by_call) update(norms[i], same_call);
  }
}

}  // namespace reprise::pipeline
