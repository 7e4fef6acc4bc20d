// A model that need not fit anywhere: the options that `reprise estimate` and `reprise advise`
// share, and the model without a byte of it, which tells what a step would need under a strategy.
#pragma once

#include <reprise/estimate.h>

#include <CLI/App.hpp>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli/io/figures.h"
#include "apps/cli/training/run_options.h"
#include "models/gpt.h"
#include "models/strategy.h"

namespace reprise::app {

struct EstimateModelOptions : RunOptions {
  EstimateModelOptions() { device = "cpu"; }
  std::string optimizer = "adamw";
  bool no_master = false;
  std::int64_t shards = 1;
  std::string machine;  // a file; empty: the rates below
  std::optional<double> flops, bandwidth, overhead;
};

// The largest vocabulary, batch and number of shards that are estimated.
inline constexpr std::int64_t kMostEstimated = std::int64_t{1} << 20;

// The options of model, training, machine and output.
void bind_estimated(CLI::App& command, EstimateModelOptions& options);
// Throws UsageError, in the spelling of the options, for a model or a machine that cannot be
// estimated.
void check_estimated(EstimateModelOptions& options);

// The strategies that are estimated by default: all without a number as parameter whose time does
// not grow with the square of the layers. `sqrt` is one of them from 4 layers on.
std::vector<std::string> estimated_strategies(std::int64_t layers);

nlohmann::json describe(const EstimateModelOptions& options);
nlohmann::json describe(const Machine& machine);

class EstimatedModel {
 public:
  // Reads the machine's file.
  explicit EstimatedModel(const EstimateModelOptions& options);

  // Estimates one forward and backward of `batch` sequences, with state divided among `shards`
  // devices. Kinds of activations begin with "embedding", "block" or "head".
  Estimate estimate(const std::string& strategy, std::int64_t batch, std::int64_t shards);
  Estimate estimate(const std::string& strategy) {
    return estimate(strategy, options_.batch, options_.shards);
  }

  const Machine& machine() const { return estimate_options_.machine; }
  // The model, the step, the machine, and how the state is divided.
  Facts facts() const;

 private:
  EstimateModelOptions options_;
  EstimateOptions estimate_options_;
  models::Gpt model_{nullptr};
  models::Layers layers_;
};

}  // namespace reprise::app
