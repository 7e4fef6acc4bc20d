// Experiments made up for the tests of findings: small enough to compute by hand.
#pragma once

#include <algorithm>
#include <filesystem>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/cli/experiment/findings_runs.h"
#include "tests/cli/program.h"

namespace reprise::app {

inline nlohmann::json made_header(const std::string& method, int seed, int steps) {
  return {{"kind", "run"},        {"model", "gpt2"},
          {"method", method},     {"seed", seed},
          {"steps", steps},       {"units", "tokens"},
          {"budget_bytes", 4000}, {"live_bytes", 500},
          {"exact", true},        {"layers", {"block0", "block1"}}};
}

inline nlohmann::json made_step(int number, double milliseconds, double again = 0) {
  return {{"kind", "step"},
          {"step", number},
          {"loss", 5.0 - number},
          {"milliseconds", milliseconds},
          {"recompute_milliseconds", again},
          {"peak_bytes", 3000 + number},
          {"units", 100}};
}

inline nlohmann::json made_pgac_step(int number, const std::string& mask) {
  nlohmann::json step = made_step(number, 10);
  step.update({{"scores", {1.0, 0.5}},
               {"averages", {1.0, nullptr}},
               {"gamma", 1},
               {"threshold", 0.75},
               {"mask", mask}});
  return step;
}

inline nlohmann::json made_end(const nlohmann::json& fields = nlohmann::json::object()) {
  nlohmann::json end = {{"kind", "end"},       {"validation_loss", 2.0},   {"perplexity", nullptr},
                        {"accuracy", nullptr}, {"energy_joules", nullptr}, {"failure", ""}};
  end.update(fields);
  return end;
}

inline std::string path_of_run(const std::string& method, int seed) {
  std::string name = method;
  std::ranges::replace(name, ':', '=');
  return "runs/gpt2/" + name + "/" + std::to_string(seed) + ".jsonl";
}

inline void write_lines(const TemporaryFolder& folder, const std::string& path,
                        const std::vector<nlohmann::json>& lines) {
  std::string text;
  for (const nlohmann::json& line : lines) text += line.dump() + "\n";
  std::filesystem::create_directories((folder.path() / path).parent_path());
  write_file(folder / path, text);
}

inline void write_settings(const TemporaryFolder& folder) {
  write_file(folder / "experiment.json",
             nlohmann::json({{"command", "reprise experiment pgac"},
                             {"machine", "a CPU"},
                             {"date", "2026-11-23"},
                             {"models", {"gpt2"}},
                             {"methods", {"none", "uniform", "dtr", "pgac:influence"}},
                             {"seeds", {1, 2, 3}},
                             {"data", {{"gpt2", "some text"}}}})
                 .dump(1));
}

// A run of as many steps as there are times, of each of which a part ran again.
inline void write_run(const TemporaryFolder& folder, const std::string& method, int seed,
                      const std::vector<double>& milliseconds, double again = 0,
                      const nlohmann::json& end = nlohmann::json::object()) {
  std::vector<nlohmann::json> lines = {
      made_header(method, seed, static_cast<int>(milliseconds.size()))};
  for (const double time : milliseconds) {
    lines.push_back(made_step(static_cast<int>(lines.size()), time, again * time));
  }
  lines.push_back(made_end(end));
  write_lines(folder, path_of_run(method, seed), lines);
}

}  // namespace reprise::app
