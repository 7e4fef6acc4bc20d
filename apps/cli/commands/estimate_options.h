// What can be asked of `reprise estimate` and `reprise advise`: a model that need not fit anywhere,
// the machine that it is for, and how its state is kept.
#pragma once

#include <reprise/estimate.h>

#include <CLI/App.hpp>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli/commands/options.h"

namespace reprise::app {

struct EstimateModelOptions : RunOptions {
  EstimateModelOptions() { device = "cpu"; }
  std::string optimizer = "adamw";
  bool no_master = false;
  std::int64_t shards = 1;
  std::string machine;  // a file; empty: the rates below
  std::optional<double> flops, bandwidth, overhead;
};

struct EstimateCommandOptions : EstimateModelOptions {
  std::vector<std::string> strategies;  // empty: those of estimated_strategies() that fit
  std::optional<std::string> budget;
};

struct AdviseOptions : EstimateModelOptions {
  std::optional<std::string> device_bytes;
};

void bind(CLI::App& command, EstimateCommandOptions& options);
void bind(CLI::App& command, AdviseOptions& options);

// Throws UsageError, in the spelling of the options, for what cannot be estimated.
void check(EstimateCommandOptions& options);
void check(AdviseOptions& options);

// The largest vocabulary, batch and number of shards that are estimated.
inline constexpr std::int64_t kMostEstimated = std::int64_t{1} << 20;

// The strategies that are estimated if none is named: those whose parameter is no number and whose
// time does not grow with the square of the layers. `sqrt` is one of them from 4 layers on.
std::vector<std::string> estimated_strategies(std::int64_t layers);

// As estimate_step() takes them; reads the machine's file.
EstimateOptions estimate_options(const EstimateModelOptions& options);

nlohmann::json describe(const EstimateModelOptions& options);
nlohmann::json describe(const Machine& machine);
// "990 TFLOP/s, 3350 GB/s, 0 µs a call".
std::string to_text(const Machine& machine);

}  // namespace reprise::app
