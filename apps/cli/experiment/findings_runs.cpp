#include "apps/cli/experiment/findings_runs.h"

#include <fmt/format.h>
#include <reprise/error.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <tuple>
#include <utility>

#include "apps/cli/experiment/findings_line.h"
#include "apps/cli/io/figures.h"

namespace reprise::app {

namespace fs = std::filesystem;

namespace {

std::string whole_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw UsageError(
        fmt::format("cannot read {}; give the folder that an experiment was written to",
                    escape(path.string())));
  }
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

// A name as it stands in a path.
std::string path_name(std::string name) {
  std::ranges::replace(name, ':', '=');
  return name;
}

nlohmann::json read_settings(const fs::path& path) {
  const FindingsLine settings(path, 1, whole_file(path));
  for (const char* field : {"command", "machine", "date"}) settings.text(field);
  settings.texts("models");
  settings.texts("methods");
  const nlohmann::json seeds = settings.object().value("seeds", nlohmann::json());
  const auto is_whole = [](const nlohmann::json& seed) { return seed.is_number_integer(); };
  if (!seeds.is_array() || !std::ranges::all_of(seeds, is_whole)) {
    settings.refuse("seeds", "is " + seeds.dump() + ", and must be a list of whole numbers");
  }
  return settings.object();
}

RunFile header_of(const FindingsLine& line) {
  if (line.text("kind") != "run") {
    line.refuse("kind", "is '" + line.text("kind") + "', and the first line's must be 'run'");
  }
  RunFile run;
  run.model = line.text("model");
  run.method = line.text("method");
  run.seed = line.whole("seed", 0);
  run.planned_steps = line.whole("steps", 0);
  run.units = line.text("units");
  if (!line.is_null("budget_bytes")) run.budget = Bytes(line.whole("budget_bytes", 0));
  run.live = Bytes(line.whole("live_bytes", 0));
  run.is_exact = line.truth("exact");
  run.layers = line.texts("layers");
  return run;
}

// The same run under two names would count twice.
void check_place(const FindingsLine& line, const RunFile& run, const fs::path& path) {
  const auto expect = [&](const char* field, const std::string& name, const fs::path& part) {
    if (path_name(name) == part.string()) return;
    line.refuse(field, fmt::format("is '{}', and the file lies at '{}'", name, part.string()));
  };
  expect("seed", std::to_string(run.seed), path.stem());
  expect("method", run.method, path.parent_path().filename());
  expect("model", run.model, path.parent_path().parent_path().filename());
}

std::string mask_of(const FindingsLine& line, std::size_t layers) {
  std::string mask = line.text("mask");
  if (mask.size() != layers || mask.find_first_not_of("01") != std::string::npos) {
    line.refuse("mask", fmt::format("is '{}', and must be {} characters 0 or 1, one a layer", mask,
                                    layers));
  }
  return mask;
}

StepLine read_step(const FindingsLine& line, const RunFile& run) {
  const auto number = static_cast<std::int64_t>(run.steps.size()) + 1;
  if (line.whole("step", 1) != number || number > run.planned_steps) {
    line.refuse("step", fmt::format("is {}, and step {} of {} was expected", line.whole("step", 1),
                                    number, run.planned_steps));
  }
  StepLine step;
  step.loss = line.real("loss");
  step.milliseconds = line.real_of_at_least_zero("milliseconds");
  step.recompute_milliseconds = line.real_of_at_least_zero("recompute_milliseconds");
  step.peak = Bytes(line.whole("peak_bytes", 0));
  step.units = line.whole("units", 0);
  if (line.has("mask")) {
    step.scores = line.reals("scores", run.layers.size());
    step.averages = line.reals("averages", run.layers.size());
    step.gamma = line.real("gamma");
    step.threshold = line.real("threshold");
    step.mask = mask_of(line, run.layers.size());
  }
  if (line.has("gradient_error")) {
    step.gradient_error = line.real_of_at_least_zero("gradient_error");
    step.compressed_from = Bytes(line.whole("compressed_from", 0));
    step.compressed_to = Bytes(line.whole("compressed_to", 0));
  }
  return step;
}

void read_end(const FindingsLine& line, RunFile& run) {
  run.validation_loss = line.real("validation_loss");
  run.perplexity = line.real_of_at_least_zero("perplexity");
  run.accuracy = line.real_of_at_least_zero("accuracy");
  run.joules = line.real_of_at_least_zero("energy_joules");
  run.failure = line.text("failure");
  const auto steps = static_cast<std::int64_t>(run.steps.size());
  if (run.failure.empty() && steps < run.planned_steps) {
    line.refuse("failure",
                fmt::format("is empty, and of {} steps there are {}", run.planned_steps, steps));
  }
}

// Nothing for a run that was cut, which may be in the middle of a line.
std::optional<RunFile> read_run(const fs::path& path) {
  const std::string text = whole_file(path);
  std::optional<RunFile> run;
  bool has_ended = false;
  std::size_t number = 0;
  for (std::size_t begin = 0, end = 0; begin < text.size(); begin = end + 1) {
    end = text.find('\n', begin);
    if (end == std::string::npos) return std::nullopt;
    const FindingsLine line(path, ++number, text.substr(begin, end - begin));
    if (has_ended) line.refuse("kind", "comes after the end of the run");
    if (!run) {
      run = header_of(line);
      check_place(line, *run, path);
    } else if (line.text("kind") == "step") {
      run->steps.push_back(read_step(line, *run));
    } else if (line.text("kind") == "end") {
      read_end(line, *run);
      has_ended = true;
    } else {
      line.refuse("kind", "is '" + line.text("kind") + "', and must be 'step' or 'end'");
    }
  }
  if (!has_ended) run.reset();
  return run;
}

// Where the name stands in the list; after all of it where it does not.
std::size_t place_in(const nlohmann::json& names, const std::string& name) {
  return static_cast<std::size_t>(std::ranges::find(names, nlohmann::json(name)) - names.begin());
}

void put_in_order(Runs& found) {
  const auto key = [&](const RunFile& run) {
    return std::tuple(place_in(found.settings["models"], run.model), run.model,
                      place_in(found.settings["methods"], run.method), run.method, run.seed);
  };
  std::ranges::sort(found.runs, {}, key);
}

void add_once(std::vector<std::string>& names, const std::string& name) {
  if (std::ranges::find(names, name) == names.end()) names.push_back(name);
}

}  // namespace

std::vector<std::string> Runs::models() const {
  std::vector<std::string> names;
  for (const RunFile& run : runs) add_once(names, run.model);
  return names;
}

std::vector<std::string> Runs::methods(const std::string& model) const {
  std::vector<std::string> names;
  for (const RunFile& run : runs) {
    if (run.model == model) add_once(names, run.method);
  }
  return names;
}

std::vector<const RunFile*> Runs::of(const std::string& model, const std::string& method) const {
  std::vector<const RunFile*> found;
  for (const RunFile& run : runs) {
    if (run.model == model && run.method == method && run.failure.empty()) found.push_back(&run);
  }
  return found;
}

Runs read_runs(const fs::path& folder) {
  Runs found;
  found.settings = read_settings(folder / "experiment.json");
  std::error_code error;
  fs::recursive_directory_iterator entries(folder / "runs", error);
  if (error) {
    throw UsageError(
        fmt::format("cannot read {}: {}; give the folder that an experiment was written to",
                    escape((folder / "runs").string()), error.message()));
  }
  for (const fs::directory_entry& entry : entries) {
    // Files that are being written are hidden.
    const bool is_run = entry.is_regular_file() && entry.path().extension() == ".jsonl" &&
                        !entry.path().filename().string().starts_with('.');
    if (!is_run) continue;
    if (auto run = read_run(entry.path())) {
      found.runs.push_back(std::move(*run));
    } else {
      ++found.cut;
    }
  }
  put_in_order(found);
  return found;
}

}  // namespace reprise::app
