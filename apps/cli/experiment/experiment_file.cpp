#include "apps/cli/experiment/experiment_file.h"

#include <fmt/format.h>
#include <reprise/error.h>
#include <reprise/version.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <string_view>
#include <system_error>
#include <thread>

#include "apps/cli/experiment/run.h"
#include "apps/cli/io/atomic_file.h"

namespace reprise::app {

namespace fs = std::filesystem;

namespace {

// What is told or measured; all else decides what the runs come to.
constexpr std::string_view kNoSettings[] = {"command",          "date",  "torch", "machine",
                                            "plain_peak_bytes", "shape", "data",  "fingerprint"};

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return fmt::format("{:04}-{:02}-{:02}", local.tm_year + 1900, local.tm_mon + 1, local.tm_mday);
}

// "Intel(R) Xeon(R) Platinum 8480C, 2 cores".
std::string machine_name() {
  std::ifstream stream("/proc/cpuinfo");
  std::string name = "unknown processor";
  for (std::string line; std::getline(stream, line);) {
    if (!line.starts_with("model name")) continue;
    name = line.substr(std::min(line.find(": "), line.size() - 2) + 2);
    break;
  }
  return fmt::format("{}, {} cores", name, std::thread::hardware_concurrency());
}

// As text, for readers whose numbers are floating-point.
std::string text_of_fingerprint(std::uint64_t value) { return fmt::format("{:016x}", value); }

// What a field says of a model; null where it says nothing.
nlohmann::ordered_json measured(const nlohmann::ordered_json& json, const char* field,
                                const std::string& model) {
  const auto found = json.find(field);
  if (found == json.end() || !found->is_object()) return {};
  const auto entry = found->find(model);
  return entry == found->end() ? nlohmann::ordered_json() : *entry;
}

std::string setting_or_not(const nlohmann::ordered_json& settings, const std::string& name) {
  const auto found = settings.find(name);
  return found == settings.end() ? "not given" : found->dump();
}

void check_setting(const fs::path& path, const std::string& name,
                   const nlohmann::ordered_json& there, const nlohmann::ordered_json& here) {
  const std::string before = setting_or_not(there, name), now = setting_or_not(here, name);
  if (before == now) return;
  throw UsageError(fmt::format(
      "{} is of another experiment: its {} is {}, and here {}; give its options to go on with it, "
      "or another --out",
      path.string(), name, before, now));
}

}  // namespace

ExperimentFile::ExperimentFile(const ExperimentSettings& settings, const std::string& command)
    : path_(fs::path(settings.out) / "experiment.json") {
  const nlohmann::ordered_json wanted = deciding(settings);
  std::error_code error;
  if (fs::exists(path_, error)) {
    read(wanted, settings.models);
    return;
  }
  is_new_ = true;
  json_ = wanted;
  json_["command"] = command;
  json_["date"] = today();
  json_["torch"] = libtorch_version();
  json_["machine"] = machine_name();
  for (const std::string& model : settings.models) {
    const PlainStep plain = measure_plain_step(settings, model);
    json_["plain_peak_bytes"][model] = plain.peak.count;
    json_["shape"][model] = plain.model;
    json_["data"][model] = plain.data;
    json_["fingerprint"][model] = text_of_fingerprint(plain.fingerprint);
  }
  replace_file(path_, {json_.dump(1), "\n"});
}

Bytes ExperimentFile::plain_peak(const std::string& model) const {
  return Bytes(measured(json_, "plain_peak_bytes", model).get<std::int64_t>());
}

void ExperimentFile::check_data(const ExperimentSettings& settings,
                                const std::vector<std::string>& models) const {
  if (is_new_) return;
  for (const std::string& model : models) {
    const auto task = make_task(task_options(settings, model, 1));
    if (measured(json_, "fingerprint", model) == text_of_fingerprint(task->fingerprint())) continue;
    throw UsageError(
        fmt::format("the data of {} is not what it was when {} was written ({}); put it back, or "
                    "give another --out",
                    model, path_.string(), measured(json_, "data", model).dump()));
  }
}

void ExperimentFile::read(const nlohmann::ordered_json& wanted,
                          const std::vector<std::string>& models) {
  std::ifstream in(path_);
  json_ = nlohmann::ordered_json::parse(in, nullptr, /*allow_exceptions=*/false);
  if (!json_.is_object() || !json_.contains("models")) {
    throw UsageError(fmt::format("{} is no experiment's; give another --out", path_.string()));
  }
  for (const auto& [name, value] : wanted.items()) check_setting(path_, name, json_, wanted);
  for (const auto& [name, value] : json_.items()) {
    if (std::ranges::count(kNoSettings, name) == 0) check_setting(path_, name, json_, wanted);
  }
  for (const std::string& model : models) {
    if (measured(json_, "plain_peak_bytes", model).is_number_integer() &&
        measured(json_, "fingerprint", model).is_string()) {
      continue;
    }
    throw UsageError(
        fmt::format("{} lacks the peak of a plain step of {}, or its data's fingerprint; give "
                    "another --out",
                    path_.string(), model));
  }
}

}  // namespace reprise::app
