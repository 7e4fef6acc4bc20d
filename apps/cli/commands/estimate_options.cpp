// All is checked before a model is built.
#include "apps/cli/commands/estimate_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <reprise/error.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/cli/commands/option_group.h"
#include "apps/cli/compare/planned_budgets.h"
#include "models/strategy.h"

namespace reprise::app {

namespace {

void bind_estimated_model(CLI::App& command, EstimateModelOptions& options) {
  bind_model(command, options);
  OptionGroup model(command, "Model");
  model.whole("--vocabulary", options.gpt.vocabulary, {1, kMostEstimated}, "tokens that there are");
  model.whole("--batch", options.batch, {1, kMostEstimated}, "sequences run at once");
  model.text("--dtype", "TYPE", options.dtype, "of weights, gradients and activations: f32, bf16");
  OptionGroup training(command, "Training");
  training.text("--optimizer", "NAME", options.optimizer,
                "whose state is counted: adamw, sgd (with momentum), none");
  training.flag("--no-master", options.no_master,
                "of bf16 weights: optimizer state in bf16, and no f32 copy of the weights");
  training.whole("--shards", options.shards, {1, kMostEstimated},
                 "devices that share weights, gradients and optimizer state, as in\n"
                 "ZeRO-3 and FSDP; what is printed is one device's part");
  OptionGroup machine(command, "Machine");
  machine.text("--device", "NAME", options.device,
               "whose operators' choices are followed: cpu, cuda; none need be here");
  machine.path("--machine", "FILE", options.machine,
               "rates of a machine, as `reprise calibrate --out FILE` writes them");
  machine.real("--flops", options.flops, {.least = 1, .most = 1e24},
               "or given: operations a second");
  machine.real("--bandwidth", options.bandwidth, {.least = 1, .most = 1e24}, "and bytes a second");
  machine.real("--overhead", options.overhead, {.least = 0, .most = 1},
               "and seconds of every call besides");
}

void bind_output(CLI::App& command, EstimateModelOptions& options) {
  OptionGroup output(command, "Output");
  output.flag("--json", options.json, "print one JSON object instead of tables");
}

// LibTorch's sizes, and sums of bytes over layers, are of 64 bits.
void check_sizes(const EstimateModelOptions& options) {
  constexpr double kMost = 0x1p56;
  const auto of = [](std::int64_t value) { return static_cast<double>(value); };
  const models::GptOptions& gpt = options.gpt;
  const double tokens = of(options.batch) * of(gpt.context);
  const double weights = of(gpt.layers) * 12 * of(gpt.width) * of(gpt.width);
  const double kept =
      of(gpt.layers) * tokens * (34 * of(gpt.width) + of(gpt.heads) * of(gpt.context));
  const double head = of(gpt.vocabulary) * (tokens + of(gpt.width));
  if (std::max({weights, kept, head}) <= kMost) return;
  throw UsageError(fmt::format(
      "a step with --layers {}, --width {}, --context {}, --batch {} and --vocabulary {} has more "
      "than 2^56 numbers, which sizes of 64 bits cannot count safely: make one of them smaller",
      gpt.layers, gpt.width, gpt.context, options.batch, gpt.vocabulary));
}

void check_estimated(EstimateModelOptions& options) {
  check_choice("--device", options.device, {"cpu", "cuda"});
  check_choice("--optimizer", options.optimizer, {"adamw", "sgd", "none"});
  check_run(options);
  if (options.no_master && options.dtype != "bf16") {
    throw UsageError(fmt::format(
        "--no-master is of bf16 weights, and --dtype is {}: add --dtype bf16, or leave it out",
        options.dtype));
  }
  if (options.no_master && options.optimizer == "none") {
    throw UsageError(
        "--no-master is of an optimizer's state, and --optimizer is none: leave one of the two "
        "out");
  }
  if (!options.machine.empty() && (options.flops || options.bandwidth || options.overhead)) {
    throw UsageError(
        "--machine has the rates that --flops, --bandwidth and --overhead give: leave --machine "
        "out, or those");
  }
  check_sizes(options);
}

void check_estimated_strategy(const std::string& name, std::int64_t layers) {
  if (name != "offload" && !name.starts_with("offload:")) {
    return models::Strategy::parse(name).check(layers);
  }
  throw UsageError(fmt::format(
      "strategy '{}' moves activations to a store, whose time and host memory are not estimated; "
      "choose one of {}",
      name, fmt::join(estimated_strategies(layers), ", ")));
}

}  // namespace

void bind(CLI::App& command, EstimateCommandOptions& options) {
  bind_estimated_model(command, options);
  OptionGroup memory(command, "Memory");
  memory.names("--strategy", options.strategies, "none,every-block,sqrt,selective:…",
               "to estimate, with commas between: those of `reprise train` but offload");
  memory.text("--budget", "B", options.budget,
              "also a byte budget for the plain step: bytes (80GB), or a share of its\n"
              "peak (50%); without it, the least that works is searched for alone.\n"
              "Where it does not fit: exit code 4");
  bind_output(command, options);
}

void bind(CLI::App& command, AdviseOptions& options) {
  OptionGroup device(command, "Device");
  device.text("--device-bytes", "B", options.device_bytes,
              "what one device has for tensors: 80GB, 64GiB");
  bind_estimated_model(command, options);
  bind_output(command, options);
}

std::vector<std::string> estimated_strategies(std::int64_t layers) {
  std::vector<std::string> names;
  for (const std::string& name : models::Strategy::choices()) {
    const bool is_left_out = name == "segments:K" || name == "from-input" ||
                             name.starts_with("offload:") || (name == "sqrt" && layers < 4);
    if (!is_left_out) names.push_back(name);
  }
  return names;
}

void check(EstimateCommandOptions& options) {
  check_estimated(options);
  if (options.strategies.empty()) options.strategies = estimated_strategies(options.gpt.layers);
  for (const std::string& each : options.strategies) {
    check_estimated_strategy(each, options.gpt.layers);
    if (std::ranges::count(options.strategies, each) > 1) {
      throw UsageError(fmt::format("--strategy names '{}' twice: once is enough", each));
    }
  }
  if (options.budget) read_planned_budget(*options.budget, MB(1));
}

void check(AdviseOptions& options) {
  check_estimated(options);
  if (!options.device_bytes) {
    throw UsageError("no device was described: give its bytes, as --device-bytes 80GB");
  }
  if (parse_bytes(*options.device_bytes) <= Bytes(0)) {
    throw UsageError(fmt::format("--device-bytes is '{}': give what a device has, as 80GB",
                                 *options.device_bytes));
  }
}

EstimateOptions estimate_options(const EstimateModelOptions& options) {
  EstimateOptions result;
  result.device = options.device == "cuda" ? c10::kCUDA : c10::kCPU;
  result.optimizer.kind = options.optimizer == "adamw" ? OptimizerKind::kAdamW
                          : options.optimizer == "sgd" ? OptimizerKind::kSgd
                                                       : OptimizerKind::kNone;
  result.optimizer.master_weights = !options.no_master;
  result.shards = options.shards;
  if (!options.machine.empty()) {
    result.machine = Machine::read(options.machine);
  } else {
    Machine& machine = result.machine;
    if (options.flops) machine.flops = machine.low_precision_flops = *options.flops;
    machine.bandwidth = options.bandwidth.value_or(machine.bandwidth);
    if (options.overhead) machine.overhead = std::chrono::duration<double>(*options.overhead);
  }
  return result;
}

nlohmann::json describe(const Machine& machine) { return nlohmann::json::parse(machine.json()); }

nlohmann::json describe(const EstimateModelOptions& options) {
  return {{"model", options.model},
          {"layers", options.gpt.layers},
          {"width", options.gpt.width},
          {"heads", options.gpt.heads},
          {"context", options.gpt.context},
          {"vocabulary", options.gpt.vocabulary},
          {"attention", options.attention},
          {"dropout", options.gpt.dropout},
          {"batch", options.batch},
          {"dtype", options.dtype},
          {"optimizer", options.optimizer},
          {"master_weights", options.dtype == "bf16" && !options.no_master},
          {"shards", options.shards},
          {"device", options.device}};
}

std::string to_text(const Machine& machine) {
  const auto rate = [](double flops) {
    return flops < 1e12 ? fmt::format("{:.3g} GFLOP/s", flops / 1e9)
                        : fmt::format("{:.4g} TFLOP/s", flops / 1e12);
  };
  const std::string flops = machine.flops == machine.low_precision_flops
                                ? rate(machine.flops)
                                : fmt::format("{} in f32, {} in bf16", rate(machine.flops),
                                              rate(machine.low_precision_flops));
  return fmt::format("{}, {:.4g} GB/s, {:.3g} µs a call", flops, machine.bandwidth / 1e9,
                     1e6 * machine.overhead.count());
}

}  // namespace reprise::app
