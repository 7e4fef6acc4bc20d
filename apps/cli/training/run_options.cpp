#include "apps/cli/training/run_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <reprise/error.h>
#include <reprise/step_trace.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/cli/training/asked_budget.h"
#include "apps/cli/training/device.h"
#include "apps/cli/training/park.h"
#include "apps/cli/training/pipelined/pipeline_choice.h"
#include "models/strategy.h"

namespace reprise::app {

namespace {

constexpr std::int64_t kMostLayers = std::int64_t{1} << 16;
constexpr std::int64_t kMostSeed = std::numeric_limits<std::int64_t>::max();

// As models::check() does, in the spelling of the options.
void check_heads(const models::GptOptions& gpt) {
  if (gpt.width % gpt.heads == 0) return;
  throw UsageError(fmt::format(
      "--heads {} does not divide --width {}: choose a --width that is a multiple of --heads, "
      "such as {}",
      gpt.heads, gpt.width, (gpt.width / gpt.heads + 1) * gpt.heads));
}

}  // namespace

void bind_model(CLI::App& command, RunOptions& options) {
  OptionGroup model(command, "Model");
  model.text("--model", "NAME", options.model, "the network: gpt");
  model.whole("--layers", options.gpt.layers, {1, kMostLayers}, "number of blocks");
  model.whole("--width", options.gpt.width, {1, kMostSize},
              "width of the residual stream; a multiple of --heads");
  model.whole("--heads", options.gpt.heads, {1, kMostSize}, "attention heads");
  model.whole("--context", options.gpt.context, {1, kMostSize},
              "sequence length in tokens; a token is a byte");
  model.text("--attention", "KIND", options.attention,
             "fused, or unfused (stores context² weights)");
  model.real("--dropout", options.gpt.dropout, {0, 0.999},
             "probability that an element is dropped");
}

void bind_data(CLI::App& command, RunOptions& options, bool has_text) {
  OptionGroup data(command, "Data");
  if (has_text) {
    data.paths("--data", options.data,
               "text files, or folders that are searched for prose and source code\n"
               "without hidden and build folders; default: this repository's");
  }
  data.whole("--batch", options.batch, {1, kMostSize}, "sequences in one batch");
  data.whole("--seed", options.seed, {0, kMostSeed},
             "seed of weights, dropout and the order of the data");
}

void bind_threads(OptionGroup& group, int& threads) {
  // More threads than any machine has are a slip of the hand.
  const auto most =
      std::max<std::int64_t>(1024, 4 * std::int64_t{std::thread::hardware_concurrency()});
  group.whole("--threads", threads, {0, most}, "CPU threads; 0: as many as LibTorch chooses");
}

void bind_machine(CLI::App& command, RunOptions& options) {
  OptionGroup output(command, "Output");
  output.flag("--json", options.json, "print one JSON object instead of a table");
  OptionGroup machine(command, "Machine");
  machine.text("--dtype", "TYPE", options.dtype, "f32, or bf16 (by autocast; weights stay f32)");
  machine.text("--device", "NAME", options.device, "auto, cpu, or an accelerator such as cuda:0");
  bind_threads(machine, options.threads);
}

std::string in_lines(const std::vector<std::string>& names) {
  constexpr std::size_t kColumns = 60;
  std::string list;
  std::size_t line = 0;
  for (const std::string& choice : names) {
    const bool wraps = line + choice.size() + 3 > kColumns;
    list += list.empty() ? "" : wraps ? ",\n" : ", ";
    line = wraps ? choice.size() : line + choice.size() + 2;
    list += choice;
  }
  return list;
}

std::string strategy_list() { return in_lines(models::Strategy::choices()); }

void bind_regions(OptionGroup& group, RunOptions& options) {
  group.flag("--reentrant", options.reentrant, "use the reentrant variant of checkpointing");
  group.text("--determinism", "KIND", options.determinism,
             "check of recomputed tensors: none, default (their number, shapes and\n"
             "types), or values (also a hash of each; with --budget also of dropped\n"
             "tensors)");
}

void bind_budget(OptionGroup& group, RunOptions& options) {
  group.text("--heuristic", "NAME", options.heuristic,
             fmt::format("how a byte budget chooses the value that it drops next:\n{}",
                         fmt::join(heuristic_names(), ", ")));
  group.text("--park", "STORE", options.park,
             "disk=DIR: a byte budget moves a value to a file in DIR if that takes\n"
             "less time than a replay; host: to the host's memory, on an accelerator;\n"
             "default: no value is moved");
}

void check_choice(const char* option, const std::string& value,
                  const std::vector<std::string>& choices) {
  if (std::ranges::find(choices, value) != choices.end()) return;
  throw UsageError(fmt::format("{} is '{}': {} {}", option, value,
                               choices.size() == 1 ? "give" : "choose one of",
                               fmt::join(choices, ", ")));
}

void check_run(RunOptions& options) {
  check_choice("--determinism", options.determinism, {"none", "default", "values"});
  check_choice("--model", options.model, {"gpt"});
  check_choice("--attention", options.attention, {"fused", "unfused"});
  check_choice("--dtype", options.dtype, {"f32", "bf16"});
  options.gpt.fused_attention = options.attention == "fused";
  check_heads(options.gpt);
  models::check(options.gpt);
}

void check_strategy(const std::string& strategy, const RunOptions& options) {
  models::Strategy::parse(strategy).check(options.gpt.layers, region_options(options));
}

void check_regions(const RunOptions& options, const std::vector<std::string>& strategies,
                   bool has_budget) {
  if (has_budget && !options.reentrant && options.determinism == "values") return;
  const auto recomputes = [](const std::string& each) {
    if (const auto pipeline = PipelineChoice::of_strategy(each)) {
      return pipeline->checkpoint != "never";
    }
    return !AskedBudget::of_strategy(each) && models::Strategy::parse(each).recomputes();
  };
  if (std::ranges::any_of(strategies, recomputes)) return;
  const std::string given = options.reentrant                  ? "--reentrant"
                            : options.determinism != "default" ? "--determinism"
                                                               : "";
  if (given.empty()) return;
  throw UsageError(fmt::format(
      "{} has no effect with strategy {}, which recomputes nothing: leave it out or choose a "
      "strategy such as sqrt",
      given, strategies.back()));
}

void check_budget_options(const RunOptions& options, bool has_budget, const char* remedy) {
  check_choice("--heuristic", options.heuristic, heuristic_names());
  if (options.park) check_park(*options.park, parse_device(options.device));
  const char* const idle = has_budget                                    ? nullptr
                           : options.heuristic != RunOptions().heuristic ? "--heuristic"
                           : options.park.has_value()                    ? "--park"
                                                                         : nullptr;
  if (idle == nullptr) return;
  throw UsageError(
      fmt::format("{} has no effect without a budget: {}, or leave it out", idle, remedy));
}

CheckpointOptions region_options(const RunOptions& options) {
  CheckpointOptions regions;
  regions.reentrant = options.reentrant;
  regions.determinism_check = options.determinism == "values" ? DeterminismCheck::kValues
                              : options.determinism == "none" ? DeterminismCheck::kNone
                                                              : DeterminismCheck::kDefault;
  return regions;
}

nlohmann::json describe(const RunOptions& options) {
  return {{"model", options.model},         {"layers", options.gpt.layers},
          {"width", options.gpt.width},     {"heads", options.gpt.heads},
          {"context", options.gpt.context}, {"attention", options.attention},
          {"dropout", options.gpt.dropout}, {"batch", options.batch},
          {"seed", options.seed},           {"dtype", options.dtype},
          {"reentrant", options.reentrant}, {"determinism", options.determinism},
          {"heuristic", options.heuristic}, {"park", options.park.value_or("")}};
}

}  // namespace reprise::app
