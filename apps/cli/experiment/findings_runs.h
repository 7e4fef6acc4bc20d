// What an experiment leaves in its folder, read again: the findings are made from these files
// alone, so that they can be made anew without training, and on another machine.
//
// FOLDER/experiment.json is one object with the settings. "models" and "methods" (lists of texts),
// "seeds" (a list of whole numbers), "command", "machine" and "date" (texts) must be there; what
// else there is (torch, threads, device, steps, data of each model, ...) is repeated as it is.
//
// FOLDER/runs/MODEL/METHOD/SEED.jsonl is one run, with every ":" of a name written as "=" in the
// path. A line is one JSON object:
//
//   {"kind": "run",             the first
//    "model", "method", "seed", as in the path, but for the colons
//    "steps",                   how many were wanted
//    "units",                   what is counted by those of steps: "tokens", "images", ...
//    "budget_bytes",            for activations; null without one
//    "live_bytes",              live before a step
//    "exact",                   whether gradients must be the plain step's to the last bit
//    "layers": [names]}
//   {"kind": "step",            a line a step, numbered from 1
//    "step", "loss",
//    "milliseconds",            of the whole step
//    "recompute_milliseconds",  of them, for what ran again
//    "peak_bytes",              above what is live before the step
//    "units",                   of the batch
//    "scores": [numbers], "averages": [numbers], "gamma", "threshold",
//    "mask": "110101",          of PGAC, all five or none: a number and a character a layer,
//                               1 for kept
//    "gradient_error",          of lossy methods: relative
//    "compressed_from", "compressed_to"}    of lossy methods: in bytes
//   {"kind": "end",             the last
//    "validation_loss", "perplexity", "accuracy", "energy_joules",   null where there is none
//    "failure": ""}             why the run could not be made or ended early, if it did
//
// A loss, time, score, average, gamma, threshold or error that was not finite, or not there, is
// null. A file without its end is of a run that was cut, and does not count. A method whose name
// goes on after a comma ("pgac:influence,q=0.25") is an ablation of the method before the comma.
#pragma once

#include <reprise/bytes.h>

#include <cstdint>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace reprise::app {

inline constexpr double kNoFigure = std::numeric_limits<double>::quiet_NaN();

struct StepLine {
  // NaN stands for null.
  double loss = kNoFigure;
  double milliseconds = kNoFigure, recompute_milliseconds = kNoFigure;
  Bytes peak;
  std::int64_t units = 0;
  // Empty for methods other than PGAC.
  std::vector<double> scores, averages;
  double gamma = kNoFigure, threshold = kNoFigure;
  std::string mask;
  double gradient_error = kNoFigure;
  Bytes compressed_from, compressed_to;
};

struct RunFile {
  std::string model, method;
  std::int64_t seed = 0;
  std::int64_t planned_steps = 0;
  std::string units;
  std::optional<Bytes> budget;
  Bytes live;
  bool is_exact = true;
  std::vector<std::string> layers;

  std::vector<StepLine> steps;

  double validation_loss = kNoFigure;
  double perplexity = kNoFigure, accuracy = kNoFigure;
  double joules = kNoFigure;
  std::string failure;

  bool is_ablation() const { return method.find(',') != std::string::npos; }
  std::string base_method() const { return method.substr(0, method.find(',')); }
};

struct Runs {
  nlohmann::json settings;
  // By model, method (in the settings' order; others after these, by name) and seed.
  std::vector<RunFile> runs;
  std::size_t cut = 0;

  // Those of which there are runs, in their order.
  std::vector<std::string> models() const;
  std::vector<std::string> methods(const std::string& model) const;
  // Those that did not fail.
  std::vector<const RunFile*> of(const std::string& model, const std::string& method) const;
};

// Throws UsageError for a folder without experiment.json or runs, and "FILE:LINE: FIELD: REASON"
// for a line that is not as above.
Runs read_runs(const std::filesystem::path& folder);

}  // namespace reprise::app
