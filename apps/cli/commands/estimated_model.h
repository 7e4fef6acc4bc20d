// The model that the options ask for, without a byte of it, and what a step of it would need under
// a strategy.
#pragma once

#include <reprise/estimate.h>

#include <string>

#include "apps/cli/commands/estimate_options.h"
#include "apps/cli/io/figures.h"
#include "models/gpt.h"
#include "models/strategy.h"

namespace reprise::app {

class EstimatedModel {
 public:
  explicit EstimatedModel(const EstimateModelOptions& options);

  // One forward and backward with so many sequences, and state divided among so many devices. Kinds
  // of activations begin with "embedding", "block" or "head".
  Estimate estimate(const std::string& strategy, std::int64_t batch, std::int64_t shards);
  Estimate estimate(const std::string& strategy) {
    return estimate(strategy, options_.batch, options_.shards);
  }

  const EstimateOptions& machine_and_state() const { return estimate_options_; }
  // The model, the step, the machine, and how the state is divided.
  Facts facts() const;

 private:
  EstimateModelOptions options_;
  EstimateOptions estimate_options_;
  models::Gpt model_{nullptr};
  models::Layers layers_;
};

}  // namespace reprise::app
