// What can be asked of `reprise experiment`, and what of it an experiment's folder remembers: one
// that is gone on with must be the same.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli/experiment/task.h"

namespace reprise::app {

struct ExperimentSettings {
  std::string name;  // of the experiment: there is pgac
  std::string out;
  std::string report;                        // empty: report.md in `out`
  std::vector<std::string> models, methods;  // empty: all of them
  std::vector<std::string> ablations;        // methods, of which the usual ones are empty
  bool without_ablations = false;
  bool quick = false, full_size = false;
  std::optional<std::int64_t> seeds, steps;  // by `quick`, if not given
  double budget = 0.6;                       // a part of the plain step's peak
  double gradient_error = 1e-2;              // of pgac:lossy
  double learning_rate = 1e-3;

  // Of tasks.
  std::vector<std::string> text, images, labelled;
  TextColumns columns;
  std::optional<std::int64_t> batch, layers, width, heads, context, image, patch;
  double dropout = 0.1;

  std::string device = "auto";
  int threads = 1;
  std::int64_t save_every = 60;  // seconds
  bool json = false;

  std::int64_t seed_count() const { return seeds.value_or(quick ? 2 : 3); }
  std::int64_t step_count() const { return steps.value_or(quick ? 12 : 200); }
};

// All methods that are compared, and the usual ablations.
const std::vector<std::string>& experiment_methods();
const std::vector<std::string>& usual_ablations();

void bind(CLI::App& command, ExperimentSettings& settings);

// Fills in what is empty, and refuses what cannot be: UsageError, naming the option.
void complete(ExperimentSettings& settings);

// Of the runs of one model.
TaskOptions task_options(const ExperimentSettings& settings, const std::string& model,
                         std::uint64_t seed);

// What decides what the runs come to, for experiment.json.
nlohmann::ordered_json deciding(const ExperimentSettings& settings);

}  // namespace reprise::app
