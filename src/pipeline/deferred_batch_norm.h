// Deferred batch normalization (Kim et al., arXiv:2004.09910, section 3): the running statistics of
// BatchNorm layers count mini-batches, and not micro-batches.
//
// While a micro-batch passes a stage, its BatchNorm layers write to no running statistics, in
// forward or in a recomputation. What forward normalized by is gathered. When the mini-batch is done,
// each layer's running statistics are updated once. The parts are put together in the order of the
// micro-batches, whatever order a schedule ran them in.
#pragma once

#include <torch/nn/module.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "libtorch/operators/batch_statistics.h"

namespace reprise::pipeline {

// A BatchNorm module with running statistics. The pointers are to members of `module`.
struct BatchNorm {
  std::shared_ptr<torch::nn::Module> module;
  at::Tensor *running_mean, *running_var, *num_batches_tracked;
  std::function<std::optional<double>()> momentum;
};

// Adds the module, or the ones below it, that are not among `norms` yet.
void add_batch_norms(const std::shared_ptr<torch::nn::Module>& module,
                     std::vector<BatchNorm>& norms);

// One micro-batch gathers these in one stage.
class GatheredStatistics final : public libtorch::BatchStatistics {
 public:
  explicit GatheredStatistics(std::shared_ptr<const std::vector<BatchNorm>> norms)
      : norms_(std::move(norms)), calls_(norms_->size()) {}

  bool gathers(const at::Tensor& running_mean) const override;
  void gather(const at::Tensor& running_mean, OfCall call) override;

  // The calls of a layer, in their order, which are then no longer held here.
  std::vector<OfCall> take(std::size_t norm) { return std::move(calls_[norm]); }

 private:
  std::size_t find(const at::Tensor& running_mean) const;

  const std::shared_ptr<const std::vector<BatchNorm>> norms_;
  std::vector<std::vector<OfCall>> calls_;
};

// Layers that run inside gather, and do not count batches.
class GatheringScope {
 public:
  GatheringScope(const std::vector<BatchNorm>& norms,
                 std::shared_ptr<GatheredStatistics> statistics);
  ~GatheringScope();
  GatheringScope(const GatheringScope&) = delete;
  GatheringScope& operator=(const GatheringScope&) = delete;

 private:
  const std::vector<BatchNorm>& norms_;
  std::vector<at::Tensor> counts_;
  libtorch::BatchStatisticsScope in_force_;
};

// Updates the running statistics from the parts of a mini-batch, in the order of the micro-batches.
// A layer that each micro-batch passed several times is updated as often.
void update_running_statistics(const std::vector<BatchNorm>& norms,
                               const std::vector<std::shared_ptr<GatheredStatistics>>& parts);

}  // namespace reprise::pipeline
