#include "apps/cli/commands/estimated_model.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <reprise/error.h>
#include <reprise/selective.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace reprise::app {

namespace {

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

}  // namespace

void bind_estimated(CLI::App& command, EstimateModelOptions& options) {
  bind_model(command, options);
  OptionGroup model(command, "Model");
  model.whole("--vocabulary", options.gpt.vocabulary, {1, kMostEstimated}, "number of tokens");
  model.whole("--batch", options.batch, {1, kMostEstimated}, "sequences in one batch");
  model.text("--dtype", "TYPE", options.dtype, "of weights, gradients and activations: f32, bf16");
  OptionGroup training(command, "Training");
  training.text("--optimizer", "NAME", options.optimizer,
                "the optimizer, for its state: adamw, sgd (with momentum), none");
  training.flag("--no-master", options.no_master,
                "with bf16 weights: optimizer state in bf16, and no f32 copy of the weights");
  training.whole("--shards", options.shards, {1, kMostEstimated},
                 "devices that share weights, gradients and optimizer state, as in\n"
                 "ZeRO-3 and FSDP; figures are for one device");
  OptionGroup machine(command, "Machine");
  machine.text("--device", "NAME", options.device,
               "cpu or cuda, for its choice of operators; the device need not be here");
  machine.path("--machine", "FILE", options.machine,
               "rates of a machine, as `reprise calibrate --out FILE` writes them");
  machine.real("--flops", options.flops, {1, 1e24}, "instead: operations a second");
  machine.real("--bandwidth", options.bandwidth, {1, 1e24}, "bytes a second");
  machine.real("--overhead", options.overhead, {0, 1}, "seconds of every call besides");
  OptionGroup output(command, "Output");
  output.flag("--json", options.json, "print one JSON object instead of tables");
}

void check_estimated(EstimateModelOptions& options) {
  check_choice("--device", options.device, {"cpu", "cuda"});
  check_choice("--optimizer", options.optimizer, {"adamw", "sgd", "none"});
  check_run(options);
  if (options.no_master && options.dtype != "bf16") {
    throw UsageError(fmt::format(
        "--no-master needs bf16 weights, and --dtype is {}: add --dtype bf16, or leave it out",
        options.dtype));
  }
  if (options.no_master && options.optimizer == "none") {
    throw UsageError(
        "--no-master needs an optimizer's state, and --optimizer is none: leave one of the two "
        "out");
  }
  if (!options.machine.empty() && (options.flops || options.bandwidth || options.overhead)) {
    throw UsageError(
        "--machine has the rates that --flops, --bandwidth and --overhead give: leave --machine "
        "out, or those");
  }
  check_sizes(options);
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

EstimatedModel::EstimatedModel(const EstimateModelOptions& options)
    : options_(options), estimate_options_(estimate_options(options)) {
  {
    const MetaTensorsScope unallocated;
    model_ = models::Gpt(options.gpt);
    if (options.dtype == "bf16") model_->to(at::kBFloat16);
  }
  for (const models::GptBlock& block : model_->blocks()) {
    layers_.push_back([block = block.ptr()](const at::Tensor& x) {
      // All blocks have one name, so that kinds of activations add them up.
      const NamedScope name("block");
      return block->forward(x);
    });
  }
}

Estimate EstimatedModel::estimate(const std::string& strategy_name, std::int64_t batch,
                                  std::int64_t shards) {
  const models::Strategy strategy = models::Strategy::parse(strategy_name);
  const auto in_vocabulary = at::TensorOptions(at::kLong).device(at::kMeta);
  const at::Tensor tokens = at::empty({batch, options_.gpt.context}, in_vocabulary);
  const at::Tensor targets = at::empty_like(tokens);
  const auto loss = [&] {
    at::Tensor x;
    {
      const NamedScope name("embedding");
      x = model_->embed(tokens);
    }
    x = strategy.run(layers_, x);
    const NamedScope name("head");
    return models::next_token_loss(model_->head(x), targets);
  };
  EstimateOptions options = estimate_options_;
  options.shards = shards;
  return estimate_step(*model_, loss, options);
}

Facts EstimatedModel::facts() const {
  const models::GptOptions& gpt = options_.gpt;
  Facts facts;
  facts.add("model",
            fmt::format("GPT, {} layers of width {}, {} heads, context {}: {} parameters",
                        gpt.layers, gpt.width, gpt.heads, gpt.context,
                        format_count(static_cast<double>(models::parameter_count(*model_)))));
  facts.add("step", fmt::format("{} on {}, batch {}, {} attention, dropout {}", options_.dtype,
                                options_.device, options_.batch, options_.attention, gpt.dropout));
  facts.add("machine", to_text(estimate_options_.machine));
  if (options_.shards > 1) {
    facts.add("state", fmt::format("one of {} parts of it on each device", options_.shards));
  }
  return facts;
}

}  // namespace reprise::app
