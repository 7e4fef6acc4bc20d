#include "apps/cli/training/methods/run_lines.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <reprise/reprise.h>

#include <cmath>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace reprise::app {

namespace {

nlohmann::json number_or_null(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json();
}

nlohmann::json numbers_or_null(const std::vector<double>& values) {
  nlohmann::json list = nlohmann::json::array();
  for (const double value : values) list.push_back(number_or_null(value));
  return list;
}

// A one for each layer that is kept.
std::string mask_text(const std::vector<bool>& mask) {
  std::string text;
  for (const bool is_kept : mask) text += is_kept ? '1' : '0';
  return text;
}

std::string processor() {
  std::ifstream stream("/proc/cpuinfo");
  for (std::string line; std::getline(stream, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "";
}

nlohmann::json bytes_or_null(Bytes bytes) {
  return bytes > Bytes(0) ? nlohmann::json(bytes.count) : nlohmann::json();
}

// The options that decide what is computed.
nlohmann::ordered_json options_of(const TrainOptions& options, const MethodRun& run) {
  nlohmann::ordered_json all = {{"model", options.model},
                                {"method", run.method},
                                {"budget", options.budget ? options.budget->text() : ""},
                                {"layers", options.gpt.layers},
                                {"width", options.gpt.width},
                                {"heads", options.gpt.heads}};
  if (options.model == "vit") {
    all["patch"] = run.patch;
  } else {
    all["context"] = options.gpt.context;
  }
  all.update({{"attention", options.attention},
              {"dropout", options.gpt.dropout},
              {"batch", options.batch},
              {"steps", options.steps},
              {"lr", options.learning_rate},
              {"warmup", *options.warmup},
              {"weight_decay", options.weight_decay},
              {"clip", options.clip}});
  return all;
}

void add_pgac(nlohmann::ordered_json& line, const PgacReport& report) {
  line.update({{"scores", numbers_or_null(report.scores)},
               {"averages", numbers_or_null(report.averages)},
               {"gamma", number_or_null(report.gamma)},
               {"threshold", number_or_null(report.threshold)},
               {"wanted", mask_text(report.wanted)},
               {"mask", mask_text(report.mask)},
               {"by_search", report.by_search}});
  if (report.compressed_from == Bytes(0) && report.audits == 0) return;
  std::string routes;
  for (const PgacRoute route : report.routes) routes += "kb84r"[static_cast<int>(route)];
  line.update({{"gradient_error", number_or_null(report.gradient_error)},
               {"compressed_from", report.compressed_from.count},
               {"compressed_to", report.compressed_to.count},
               {"audited", report.audited},
               {"routes", routes}});
}

}  // namespace

nlohmann::ordered_json head_line(const TrainOptions& options, const MethodRun& run,
                                 const Task& task, const RunBudget& budget, c10::Device device) {
  return {{"kind", "run"},
          {"version", version()},
          {"libtorch", libtorch_version()},
          {"machine",
           {{"processor", processor()},
            {"cores", std::thread::hardware_concurrency()},
            {"threads", at::get_num_threads()},
            {"device", device.str()}}},
          {"seed", options.seed},
          {"options", options_of(options, run)},
          {"model", task.model},
          {"data", task.data},
          {"fingerprint", fmt::format("{:016x}", task.fingerprint)},
          {"units", task.units},
          {"layers", layer_names(task)},
          {"exact", is_exact(run.method)},
          {"budget_bytes", bytes_or_null(budget.limit)},
          {"live_before_step_bytes", bytes_or_null(budget.live)},
          {"plain_peak_bytes", bytes_or_null(budget.plain_peak)}};
}

nlohmann::ordered_json json_of(const StepLine& line) {
  nlohmann::ordered_json json = {{"kind", "step"},
                                 {"step", line.step},
                                 {"loss", line.loss},
                                 {"seconds", line.whole},
                                 {"forward_seconds", line.seconds.forward},
                                 {"backward_seconds", line.seconds.backward},
                                 {"recompute_seconds", line.seconds.recompute},
                                 {"packing_seconds", line.seconds.packing},
                                 {"tape_seconds", line.seconds.tape},
                                 {"peak_bytes", line.peak.count},
                                 {"live_bytes", line.live.count},
                                 {"units", line.units}};
  if (line.pgac) add_pgac(json, *line.pgac);
  return json;
}

nlohmann::ordered_json json_of(const RunEnd& end, const TrainOptions& options,
                               const MethodRun& run) {
  const auto& accuracy = end.validation.accuracy;
  return {{"model", options.model},
          {"method", run.method},
          {"steps", end.last.step},
          {"loss", end.last.loss},
          {"validation_loss", number_or_null(end.validation.loss)},
          {"accuracy", accuracy ? nlohmann::json(*accuracy) : nlohmann::json()},
          {"seconds_per_step", end.median_seconds},
          {"peak_bytes", end.peak.count},
          {"weights_xxh3", fmt::format("{:016x}", end.weights)},
          {"log", run.log}};
}

}  // namespace reprise::app
