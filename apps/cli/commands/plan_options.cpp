#include "apps/cli/commands/plan_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <reprise/error.h>
#include <reprise/planners.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "apps/cli/compare/compare_options.h"
#include "apps/cli/io/atomic_file.h"

namespace reprise::app {

namespace {

constexpr const char* kBudgetsOfChains = "100%,75%,50%,35%,25%";
constexpr const char* kBudgetsOfSteps = "80%,50%,30%,20%";

// Refuses options of a model or a machine beside `other`, with which nothing is measured.
void refuse_model_with(const PlanOptions& options, const std::string& other = "FILE",
                       const char* reason = ", which has its figures") {
  if (!options.chain_out.empty()) {
    throw UsageError("--chain-out is for a chain that is measured: leave it out, or " + other);
  }
  RunOptions untouched;
  check_run(untouched);
  // The search for a step's plan draws by the seed.
  if (options.is_trace) untouched.seed = options.seed;
  const nlohmann::json given = describe(static_cast<const RunOptions&>(options));
  const nlohmann::json usual = describe(untouched);
  for (const auto& [name, value] : usual.items()) {
    if (given.at(name) == value) continue;
    throw UsageError(
        fmt::format("--{} has no effect with {}{}: leave one of them out", name, other, reason));
  }
  if (options.device != untouched.device || options.threads != untouched.threads) {
    throw UsageError("--device and --threads have no effect with " + other + ": leave them out");
  }
}

// Judged by the beginning of the file: compressed, or with a step's first event or the name of its
// format. Reading it later says more.
bool is_step_trace(const std::string& path) {
  std::error_code error;
  if (path.empty() || !std::filesystem::is_regular_file(path, error)) return false;
  std::string begin(4096, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  begin.resize(static_cast<std::size_t>(file.gcount()));
  const auto has = [&](const char* text) { return begin.find(text) != std::string::npos; };
  return begin.starts_with("\x1f\x8b") || has("\"INSTRUCTION\"") || has("\"reprise step\"");
}

void check_trace(PlanOptions& options) {
  if (options.planners.empty()) options.planners = {"hindsight"};
  for (const std::string& planner : options.planners) {
    if (!is_step_planner(planner)) {
      throw UsageError(fmt::format(
          "--planner is '{}', which plans no step's trace: choose hindsight or ilp", planner));
    }
    check_planner("--planner", planner);
  }
  if (options.budgets.empty()) options.budgets = planned_budgets(kBudgetsOfSteps);
  if (!options.picture.empty() || !options.schedule_out.empty()) {
    throw UsageError(
        "--picture and --schedule-out are for chains: with a step's trace --json has the plan");
  }
  refuse_model_with(options);
}

void check_chain(PlanOptions& options) {
  const PlanOptions usual;
  if (options.seconds != usual.seconds || options.moves != usual.moves) {
    throw UsageError(
        "--seconds and --moves are for hindsight, which plans a step's trace: leave them out");
  }
  if (options.planners.empty()) options.planners = {"rotor"};
  const bool offloads = std::ranges::count(options.planners, kOffloadPlanner) > 0;
  if (offloads != (options.store_bandwidth > 0)) {
    throw UsageError(
        offloads
            ? "--planner rotor_offload needs the rate of a store: add --store-bandwidth, such as "
              "2e9 for 2 GB a second"
            : "--store-bandwidth has no effect on these planners: add rotor_offload to --planner, "
              "or leave it out");
  }
  for (const std::string& planner : options.planners) {
    if (is_step_planner(planner)) {
      throw UsageError(fmt::format(
          "--planner is '{}', which plans a recorded step: name its trace, as `reprise plan TRACE`, "
          "or choose a planner of chains such as rotor",
          planner));
    }
    if (planner != kOffloadPlanner) planner_named(planner);
  }
  if (options.budgets.empty()) options.budgets = planned_budgets(kBudgetsOfChains);
}

void check_pipeline(const PlanOptions& options) {
  if (options.is_trace) {
    throw UsageError(
        "--pipeline needs a chain, and FILE has a step's operators: give a chain, or no FILE");
  }
  const PlanOptions usual;
  if (!options.planners.empty() || !options.budgets.empty() ||
      options.store_bandwidth != usual.store_bandwidth || options.seconds != usual.seconds ||
      options.moves != usual.moves) {
    throw UsageError(
        "--planner, --budget, --store-bandwidth, --seconds and --moves have no effect with "
        "--pipeline: leave them out");
  }
  refuse_model_with(options, "--pipeline", ", which measures nothing");
  if (!options.trace_out.empty() && !options.trace_out.ends_with(".json")) {
    throw UsageError(fmt::format("--trace-out is '{}': end the name in .json, for Chrome shows it",
                                 options.trace_out));
  }
  refuse_overlaps({{"--picture", options.picture},
                   {"--schedule-out", options.schedule_out},
                   {"--trace-out", options.trace_out}},
                  {{"FILE", options.file}, {"--pipeline csv", options.pipeline->csv}});
}

void check_files(const PlanOptions& options) {
  const bool is_one = options.planners.size() == 1 && options.budgets.size() == 1;
  const Place picture = {"--picture", options.picture},
              schedule = {"--schedule-out", options.schedule_out};
  for (const Place& each : {picture, schedule}) {
    if (is_one || each.path.empty()) continue;
    throw UsageError(
        fmt::format("{} holds one schedule: give one --planner and one --budget", each.option));
  }
  refuse_overlaps({{"--chain-out", options.chain_out}, picture, schedule},
                  {{"FILE", options.file}});
}

}  // namespace

void bind(CLI::App& command, PlanOptions& options) {
  OptionGroup input(command, "Chain or step");
  input.path("FILE", "PATH", options.file,
             "a chain's seconds and bytes as JSON (docs/planning.md), or a step's\n"
             "operators as `reprise simulate` reads them; default: the blocks of a\n"
             "model are measured, one by one");
  OptionGroup planning(command, "Planning");
  planning.names("--planner", options.planners, "rotor",
                 fmt::format("planners, with commas between; for chains: {},\n"
                             "rotor_offload; for steps: hindsight, ilp",
                             fmt::join(planner_names(), ", ")));
  planning.list("--budget", options.budgets, AskedBudget::parse_planned, kBudgetsOfChains,
                "bytes of activations, temporaries and gradients, with commas between:\n"
                "shares of the plain step's (0.5, 50%), or bytes (400MB, 8GiB)");
  planning.real("--seconds", options.seconds, {0.01, 1e6},
                "seconds of the search for a step's plan, at each budget");
  planning.whole("--moves", options.moves, {0, kMostSteps},
                 "moves of hindsight's search in place of --seconds; its plan is then the\n"
                 "same each time; 0: --seconds decides");
  planning.real("--store-bandwidth", options.store_bandwidth, {0, 1e15},
                "bytes a second, each way, of a store that rotor_offload, hindsight and\n"
                "ilp may park values in; transfers are waited for; 0: no store");
  planning.value(
      "--pipeline", "LIST", options.pipeline, PipelineChoice::parse,
      fmt::format("a pipeline in place of a planner: schedule=NAME,stages=N,chunks=N, or\n"
                  "csv=FILE with a table of actions; further per-worker=N stages, and\n"
                  "checkpoint=always, except_last, never or N micro-batches; names:\n"
                  "{}",
                  in_lines(schedules::names())));
  bind_model(command, options);
  bind_data(command, options, /*has_text=*/false);
  OptionGroup files(command, "Files");
  files.path("--picture", "FILE", options.picture,
             "draw the schedule, or a pipeline's timeline, to it as SVG");
  files.path("--schedule-out", "FILE", options.schedule_out,
             "write the schedule to it as JSON, for checkpoint_sequential(), or that of a\n"
             "pipeline as CSV");
  files.path("--trace-out", "FILE.json", options.trace_out,
             "write a pipeline's timeline to it, for Chrome and Perfetto");
  files.path("--chain-out", "FILE", options.chain_out,
             "write the measured chain to it as JSON, to plan from it again");
  bind_machine(command, options);
}

void check(PlanOptions& options) {
  check_run(options);
  options.is_trace = is_step_trace(options.file);
  if (options.pipeline) return check_pipeline(options);
  if (!options.trace_out.empty()) {
    throw UsageError(
        "--trace-out is for the timeline of a pipeline: add --pipeline, or leave it out");
  }
  if (options.is_trace) return check_trace(options);
  check_chain(options);
  check_files(options);
  if (!options.file.empty()) refuse_model_with(options);
}

}  // namespace reprise::app
