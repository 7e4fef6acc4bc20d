// The options of options.h: one line each, with the help text that `--help` prints.
#include "apps/cli/commands/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <reprise/planners.h>
#include <reprise/step_trace.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/cli/commands/option_group.h"
#include "models/strategy.h"

namespace reprise::app {

namespace {

// Bounds that no run of this program needs to exceed, and that keep all products of sizes within
// 64 bits.
constexpr std::int64_t kMostLayers = std::int64_t{1} << 16;
constexpr std::int64_t kMostSize = std::int64_t{1} << 20;
constexpr std::int64_t kMostSteps = 1'000'000'000'000;
constexpr std::int64_t kMostSeed = std::numeric_limits<std::int64_t>::max();

void bind_data(CLI::App& command, RunOptions& options, bool has_text = true) {
  OptionGroup data(command, "Data");
  if (has_text) {
    data.paths("--data", options.data,
               "text files, or folders to search for prose and source code, without\n"
               "hidden and build folders; if not given, those of this repository");
  }
  data.whole("--batch", options.batch, {1, kMostSize}, "sequences run at once");
  data.whole("--seed", options.seed, {0, kMostSeed},
             "of weights, dropout and the order of the data");
}

void bind_machine(CLI::App& command, RunOptions& options) {
  OptionGroup output(command, "Output");
  output.flag("--json", options.json, "print one JSON object instead of a table");
  OptionGroup machine(command, "Machine");
  machine.text("--dtype", "TYPE", options.dtype, "f32, or bf16 (by autocast; weights stay f32)");
  machine.text("--device", "NAME", options.device, "auto, cpu, or an accelerator such as cuda:0");
  machine.whole("--threads", options.threads, {0, most_threads()},
                "CPU threads; 0: as many as LibTorch chooses");
}

// The strategies in lines that fit beside the options.
std::string strategy_list() {
  constexpr std::size_t kColumns = 60;
  std::string list;
  std::size_t line = 0;
  for (const std::string& choice : models::Strategy::choices()) {
    const bool wraps = line + choice.size() + 3 > kColumns;
    list += list.empty() ? "" : wraps ? ",\n" : ", ";
    line = wraps ? choice.size() : line + choice.size() + 2;
    list += choice;
  }
  return list;
}

void bind_regions(OptionGroup& group, RunOptions& options) {
  group.flag("--reentrant", options.reentrant, "use the reentrant variant of checkpointing");
  group.text("--determinism", "KIND", options.determinism,
             "what is compared of the tensors that are recomputed: none, default\n"
             "(their number, shapes and types), or values (also a hash of each; with\n"
             "--budget of what is dropped, too)");
}

void bind_budget_options(OptionGroup& group, RunOptions& options) {
  group.text("--heuristic", "NAME", options.heuristic,
             fmt::format("which value goes first under a byte budget:\n{}",
                         fmt::join(heuristic_names(), ", "))
                 .c_str());
  group.text("--park", "STORE", options.park,
             "where values go under a byte budget that are sooner moved out and in\n"
             "again than made again: disk=DIR; if not given, nowhere");
}

}  // namespace

std::int64_t most_threads() {
  return std::max<std::int64_t>(1024, 4 * std::int64_t{std::thread::hardware_concurrency()});
}

void bind_model(CLI::App& command, RunOptions& options) {
  OptionGroup model(command, "Model");
  model.text("--model", "NAME", options.model, "which network: gpt");
  model.whole("--layers", options.gpt.layers, {1, kMostLayers}, "number of blocks");
  model.whole("--width", options.gpt.width, {1, kMostSize},
              "of the residual stream; a multiple of --heads");
  model.whole("--heads", options.gpt.heads, {1, kMostSize}, "attention heads");
  model.whole("--context", options.gpt.context, {1, kMostSize},
              "sequence length in tokens; a token is a byte");
  model.text("--attention", "KIND", options.attention,
             "fused, or unfused (stores context² weights)");
  model.real("--dropout", options.gpt.dropout, {.least = 0, .most = 1, .without_most = true},
             "probability in [0, 1)");
}

const std::vector<std::string>& usual_strategies() {
  static const std::vector<std::string> names = {"none", "sqrt", "segments:4", "every-block"};
  return names;
}

void bind(CLI::App& command, TrainOptions& options) {
  bind_model(command, options);
  bind_data(command, options);
  OptionGroup training(command, "Training");
  training.whole("--steps", options.steps, {1, kMostSteps},
                 "optimizer steps in all, those before a resume included");
  training.whole("--accumulate", options.accumulate, {1, kMostSize},
                 "batches whose gradients make one step");
  training.real("--lr", options.learning_rate, {.least = 0, .most = 10, .without_least = true},
                "peak learning rate of AdamW");
  training.whole("--warmup", options.warmup, {0, kMostSteps},
                 "steps until the peak, before a cosine decay to a tenth of it;\n"
                 "if not given, a tenth of --steps, at most 100");
  training.real("--weight-decay", options.weight_decay, {.least = 0, .most = 10},
                "of matrices; biases and norms have none");
  training.real("--clip", options.clip, {.least = 0, .most = 1e6},
                "largest norm of the gradients; 0: no clipping");
  OptionGroup memory(command, "Memory");
  memory.text("--strategy", "NAME", options.strategy,
              ("which blocks are recomputed in backward:\n" + strategy_list()).c_str());
  bind_regions(memory, options);
  memory.whole("--verify", options.verify, {0, kMostSteps},
               "compare all gradients with the plain step's, bit for bit, in the first\n"
               "step and every Nth after it; 0: never. Such a step costs a plain step\n"
               "more, with the memory of strategy none and a copy of the gradients;\n"
               "accelerators use deterministic kernels. The run stops where they\n"
               "differ, before that step changes the weights: exit code 3. With\n"
               "--budget those steps also hash what is dropped, and compare it with\n"
               "what is made again");
  memory.text("--budget", "B", options.budget,
              "most bytes alive in a step, forward, backward and optimizer: what would\n"
              "pass it is dropped, and made again when it is read. All bytes (400MB,\n"
              "8GiB), a share of the peak of a plain step, which is run for that before\n"
              "the first one (80%), above what is live before a step (+84MB): weights\n"
              "and the optimizer's moments; or 'least': the least in which a step runs, as\n"
              "one shows that is recorded before the first one. Where a step cannot be run\n"
              "in it: exit code 4");
  bind_budget_options(memory, options);
  OptionGroup saving(command, "Saving");
  saving.path("--checkpoint-dir", "DIR", options.checkpoint_dir,
              "save the run there: at the end, and when it is interrupted");
  saving.whole("--checkpoint-every", options.checkpoint_every, {0, kMostSteps},
               "and every so many steps; 0: not in between");
  saving.whole("--stop-after", options.stop_after, {0, kMostSteps},
               "save and stop after so many steps of this call; 0: never");
  saving.flag("--resume", options.resume, "go on, bit for bit, from what --checkpoint-dir holds");
  OptionGroup output(command, "Output");
  output.path("--metrics", "FILE", options.metrics, "write one JSON object a step to it");
  output.path("--trace-out", "FILE", options.trace_out,
              "trace one step to it: NAME.json for Chrome and Perfetto, with drops,\n"
              "replays and the bytes alive; NAME.jsonl or NAME.log, also with .gz,\n"
              "for `reprise simulate`");
  output.whole("--trace-step", options.trace_step, {0, kMostSteps},
               "which step that is; 0: the last of this call");
  output.flag("--sample", options.sample, "print a line written by the model at the end");
  bind_machine(command, options);
}

void bind(CLI::App& command, CompareOptions& options) {
  OptionGroup measuring(command, "Measuring");
  measuring.names("--strategies", options.strategies,
                  fmt::format("{}", fmt::join(usual_strategies(), ",")),
                  ("to compare, with commas between; none is always measured, as the\n"
                   "yardstick: " +
                   strategy_list() +
                   ",\nbudget:B (a byte budget as that of `reprise train`: budget:80%,\n"
                   "budget:+54MB, budget:least)")
                      .c_str());
  measuring.whole("--steps", options.steps, {1, kMostSteps}, "timed steps under each strategy");
  measuring.flag("--fill-budget", options.fill_budget,
                 "compare samples a second, each strategy with the largest batch whose\n"
                 "step fits in --budget");
  OptionGroup planning(command, "Planners");
  planning.names("--planners", options.planners, "",
                 fmt::format("compare planners instead of strategies, by predicted and measured\n"
                             "figures: {},\nand predictions alone of hindsight, ilp",
                             fmt::join(planner_names(), ", "))
                     .c_str());
  planning.names("--budget", options.planned_budgets, "",
                 "of --planners, for all that a step adds to what is live before it: shares\n"
                 "of the plain step's (50%), or bytes (400MB), with commas between; if not\n"
                 "given 100%,75%,50%,35%,25%. Of --fill-budget, for all bytes alive: bytes, a\n"
                 "share of the plain step's peak, or above what is live before it (+400MB)");
  planning.real("--seconds", options.seconds, {.least = 0.01, .most = 1e6},
                "for each search of hindsight and ilp");
  planning.path("--svg", "FILE", options.svg, "draw what --planners predict and what is measured");
  bind_regions(measuring, options);
  bind_budget_options(measuring, options);
  bind_model(command, options);
  bind_data(command, options);
  bind_machine(command, options);
}

void bind(CLI::App& command, FrontierOptions& options) {
  OptionGroup measuring(command, "Measuring");
  measuring.names(
      "--budgets", options.budgets, "",
      "byte budgets with commas between, as those of `reprise train` (80%, 400MB,\n"
      "+84MB, least); if not given, ten parts of the plain step's activations, down to\n"
      "the least that works, which is searched for");
  measuring.whole("--steps", options.steps, {1, kMostSteps}, "timed steps under each budget");
  bind_budget_options(measuring, options);
  bind_model(command, options);
  bind_data(command, options);
  OptionGroup chart(command, "Chart");
  chart.path("--svg", "FILE", options.svg, "draw peak and time to it");
  bind_machine(command, options);
}

void bind(CLI::App& command, PlanOptions& options) {
  OptionGroup input(command, "Chain or step");
  input.path("FILE", "PATH", options.chain,
             "a chain's seconds and bytes, as JSON (docs/planning.md), or a step's operators,\n"
             "as `reprise simulate` reads them; if not given, the blocks of a model are\n"
             "measured, one by one");
  OptionGroup planning(command, "Planning");
  planning.names(
      "--planner", options.planners, "rotor",
      fmt::format("of chains, with commas between: {},\nrotor_offload; of steps: hindsight, "
                  "ilp",
                  fmt::join(planner_names(), ", "))
          .c_str());
  planning.names("--budget", options.budgets, "100%,75%,50%,35%,25%",
                 "for activations, temporaries and gradients, with commas between: shares of\n"
                 "the plain step's (0.5, 50%), or bytes (400MB, 8GiB)");
  planning.real("--seconds", options.seconds, {.least = 0.01, .most = 1e6},
                "for the search of a step's plan, at each budget");
  planning.whole("--moves", options.moves, {0, 1'000'000'000'000},
                 "of hindsight's search instead, which makes its plan the same each time; 0: by\n"
                 "--seconds");
  planning.real("--store-bandwidth", options.store_bandwidth, {.least = 0, .most = 1e15},
                "bytes a second, each way, of a store that values may wait in: of\n"
                "rotor_offload, hindsight and ilp; transfers are waited for. 0: no store");
  bind_model(command, options);
  bind_data(command, options, /*has_text=*/false);
  OptionGroup files(command, "Files");
  files.path("--picture", "FILE", options.picture, "draw the schedule to it as SVG");
  files.path("--schedule-out", "FILE", options.schedule_out,
             "write the schedule to it as JSON, for checkpoint_sequential()");
  files.path("--chain-out", "FILE", options.chain_out,
             "write what was measured to it as JSON, to plan from it again");
  bind_machine(command, options);
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

nlohmann::json describe(const TrainOptions& options) {
  nlohmann::json all = describe(static_cast<const RunOptions&>(options));
  all.update({{"strategy", options.strategy},
              {"steps", options.steps},
              {"accumulate", options.accumulate},
              {"lr", options.learning_rate},
              {"warmup", *options.warmup},
              {"weight_decay", options.weight_decay},
              {"clip", options.clip},
              {"verify", options.verify},
              {"budget", options.budget.value_or("")}});
  return all;
}

}  // namespace reprise::app
