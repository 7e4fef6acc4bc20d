// What cannot work is refused here, by the name of its option, before anything is built or written.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <reprise/error.h>
#include <reprise/planners.h>
#include <reprise/step_trace.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/cli/commands/options.h"
#include "apps/cli/compare/planned_budgets.h"
#include "apps/cli/training/asked_budget.h"
#include "apps/cli/training/device.h"
#include "apps/cli/training/park.h"
#include "apps/cli/training/step_trace_file.h"
#include "models/strategy.h"

namespace reprise::app {

namespace {

// As models::check() does, in the spelling of the options.
void check_heads(const models::GptOptions& gpt) {
  if (gpt.width % gpt.heads == 0) return;
  throw UsageError(
      fmt::format("--heads {} does not divide --width {}: choose a --width that is a multiple of "
                  "--heads, such as {}",
                  gpt.heads, gpt.width, (gpt.width / gpt.heads + 1) * gpt.heads));
}

// A tape can be asked for the hashes, and for nothing else that regions are asked for.
bool is_for_the_tape(const RunOptions& options, bool has_budget) {
  return has_budget && !options.reentrant && options.determinism == "values";
}

// Options that regions are given, without a strategy that makes any.
void check_regions(const RunOptions& options, const std::vector<std::string>& strategies,
                   bool has_budget) {
  if (is_for_the_tape(options, has_budget)) return;
  const auto recomputes = [](const std::string& each) {
    return !AskedBudget::of_strategy(each) && models::Strategy::parse(each).recomputes();
  };
  if (std::ranges::any_of(strategies, recomputes)) return;
  const std::string given = options.reentrant                  ? "--reentrant"
                            : options.determinism != "default" ? "--determinism"
                                                               : "";
  if (given.empty()) return;
  throw UsageError(
      fmt::format("{} has no effect with strategy {}, which recomputes nothing: leave it out or "
                  "choose a strategy such as sqrt",
                  given, strategies.back()));
}

void check_strategy(const std::string& strategy, const RunOptions& options) {
  models::Strategy::parse(strategy).check(options.gpt.layers, region_options(options));
}

// The table's strategies, and budgets, which are none but stand beside them.
void check_strategy_or_budget(const std::string& strategy, const RunOptions& options) {
  if (AskedBudget::of_strategy(strategy)) {
    return require_cpu_for_budget("strategy " + strategy, options.device);
  }
  const auto table = models::strategy_kinds();
  std::vector<models::StrategyKind> kinds(table.begin(), table.end());
  kinds.push_back({"budget", {"B"}, [](std::string_view) { return std::nullopt; }});
  models::Strategy::parse(strategy, kinds).check(options.gpt.layers, region_options(options));
}

// In `reprise compare` it is a strategy; here both may be asked for at once.
void refuse_budget_as_strategy(const std::string& strategy) {
  constexpr std::string_view kKind = "budget:";
  if (!strategy.starts_with(kKind)) return;
  throw UsageError(
      fmt::format("--strategy is '{}': give a budget as --budget {}", strategy,
                  strategy.size() > kKind.size() ? strategy.substr(kKind.size()) : "80%"));
}

void check_budget_options(const RunOptions& options, bool has_budget, const char* remedy) {
  check_choice("--heuristic", options.heuristic, heuristic_names());
  if (options.park) check_park(*options.park);
  const char* const idle = has_budget                                    ? nullptr
                           : options.heuristic != RunOptions().heuristic ? "--heuristic"
                           : options.park.has_value()                    ? "--park"
                                                                         : nullptr;
  if (idle == nullptr) return;
  throw UsageError(
      fmt::format("{} has no effect without a budget: {}, or leave it out", idle, remedy));
}

void check_budget(const TrainOptions& options) {
  const bool has_budget = options.budget.has_value();
  check_budget_options(options, has_budget, "add --budget, such as --budget 80%");
  if (!has_budget) return;
  AskedBudget::parse("--budget", *options.budget);
  require_cpu_for_budget("--budget", options.device);
}

void check_trace(const TrainOptions& options) {
  check_trace_name(options.trace_out);
  if (!options.trace_out.empty()) require_cpu_for_budget("--trace-out", options.device);
  if (options.trace_step == 0) return;
  if (options.trace_out.empty()) {
    throw UsageError("--trace-step needs a file: add --trace-out FILE");
  }
  if (options.trace_step > options.steps) {
    throw UsageError(fmt::format("--trace-step {} is beyond --steps {}: give one of those steps",
                                 options.trace_step, options.steps));
  }
}

void check_saving(const TrainOptions& options) {
  if (options.stop_after > options.steps) {
    throw UsageError(
        fmt::format("--stop-after {} is beyond --steps {}: give at most as many, or more --steps",
                    options.stop_after, options.steps));
  }
  if (!options.checkpoint_dir.empty()) return;
  const char* needs = options.resume                 ? "--resume"
                      : options.checkpoint_every > 0 ? "--checkpoint-every"
                      : options.stop_after > 0       ? "--stop-after"
                                                     : nullptr;
  if (needs) throw UsageError(fmt::format("{} needs a folder: add --checkpoint-dir DIR", needs));
}

bool fits(const std::string& strategy, std::int64_t layers) {
  try {
    models::Strategy::parse(strategy).check(layers);
    return true;
  } catch (const UsageError&) {
    return false;
  }
}

// Two results in one file, or one in the place of what it was made from.
void refuse_same_files(const std::vector<std::pair<const char*, std::string>>& files) {
  std::map<std::filesystem::path, const char*> known;
  for (const auto& [option, path] : files) {
    if (path.empty()) continue;
    std::error_code error;
    std::filesystem::path place = std::filesystem::weakly_canonical(path, error);
    // A pipe or a terminal takes all of them.
    if (error || (exists(place, error) && !is_regular_file(place, error))) continue;
    const auto [at, is_new] = known.try_emplace(std::move(place), option);
    if (is_new) continue;
    throw UsageError(
        fmt::format("{} is '{}', which {} is already: give another", option, path, at->second));
  }
}

// Whatever describes a model or a machine has no effect on figures from a file.
void refuse_model_with_file(const PlanOptions& options) {
  if (!options.chain_out.empty()) {
    throw UsageError("--chain-out is for a chain that is measured: leave it out, or FILE");
  }
  RunOptions untouched;
  check_run(untouched);
  // The search draws by it.
  if (options.is_trace) untouched.seed = options.seed;
  const nlohmann::json given = describe(static_cast<const RunOptions&>(options));
  const nlohmann::json usual = describe(untouched);
  for (const auto& [name, value] : usual.items()) {
    if (given.at(name) == value) continue;
    throw UsageError(fmt::format(
        "--{} has no effect with FILE, which has its figures: leave one of them out", name));
  }
  if (options.device != untouched.device || options.threads != untouched.threads) {
    throw UsageError("--device and --threads have no effect with FILE: leave them out");
  }
}

void check_planner_names(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (name == "ilp" && !planners::has_ilp()) {
      throw UsageError(
          "--planners has 'ilp', but this build of reprise has no HiGHS: leave it out, or build "
          "with REPRISE_HIGHS_LIBRARY");
    }
    if (!is_step_planner(name)) planner_named(name);
  }
}

// `reprise compare --planners`.
void check_planners(CompareOptions& options) {
  const char* const idle = options.fill_budget                           ? "--fill-budget"
                           : !options.strategies.empty()                 ? "--strategies"
                           : options.heuristic != RunOptions().heuristic ? "--heuristic"
                           : options.park.has_value()                    ? "--park"
                           : options.reentrant                           ? "--reentrant"
                                                                         : nullptr;
  if (idle != nullptr) {
    throw UsageError(fmt::format("{} has no effect with --planners: leave one of them out", idle));
  }
  check_planner_names(options.planners);
  if (std::ranges::any_of(options.planners, is_step_planner)) {
    require_cpu_for_budget("--planners hindsight", options.device);
  }
  if (options.planned_budgets.empty()) {
    options.planned_budgets = {"100%", "75%", "50%", "35%", "25%"};
  }
  for (const std::string& budget : options.planned_budgets) read_planned_budget(budget, MB(1));
}

// Options of planners, without any.
void check_unplanned(const CompareOptions& options) {
  if (!options.svg.empty()) throw UsageError("--svg is of --planners: add it, or leave --svg out");
  if (options.seconds != CompareOptions().seconds) {
    throw UsageError("--seconds is of --planners: add it, or leave --seconds out");
  }
  if (!options.fill_budget) {
    if (options.planned_budgets.empty()) return;
    throw UsageError(
        "--budget is of --planners and --fill-budget: add one of them, or measure a byte budget by "
        "--strategies budget:" +
        options.planned_budgets.front());
  }
  if (options.planned_budgets.size() != 1) {
    throw UsageError("--fill-budget needs one budget: add --budget, such as --budget 2GB");
  }
  if (AskedBudget::parse("--budget", options.planned_budgets.front()).is_least()) {
    throw UsageError(
        "--budget is 'least': --fill-budget looks for the batch that fills a budget, and the least "
        "one is of a batch; give bytes, a share of the plain step's peak or +N");
  }
  for (const std::string& strategy : options.strategies) {
    if (!AskedBudget::of_strategy(strategy)) continue;
    throw UsageError(fmt::format(
        "--strategies has '{}': with --fill-budget every strategy has the bytes of --budget; leave "
        "it out",
        strategy));
  }
}

// By its beginning: what is compressed, or has a step's first event or its format's name on it.
// Reading it says more.
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

// Of chains.
void check_store(const PlanOptions& options) {
  const bool offloads = std::ranges::count(options.planners, kOffloadPlanner) > 0;
  if (offloads == (options.store_bandwidth > 0)) return;
  throw UsageError(offloads ? "--planner rotor_offload needs the rate of a store: add "
                              "--store-bandwidth, such as 2e9 for 2 GB a second"
                            : "--store-bandwidth has no effect on these planners: add "
                              "rotor_offload to --planner, or leave it out");
}

void check_trace(PlanOptions& options) {
  if (options.planners.empty()) options.planners = {"hindsight"};
  for (const std::string& planner : options.planners) {
    if (is_step_planner(planner)) continue;
    throw UsageError(fmt::format(
        "--planner is '{}', which is none for a step's trace: choose hindsight or ilp", planner));
  }
  if (std::ranges::count(options.planners, "ilp") > 0 && !planners::has_ilp()) {
    throw UsageError(
        "--planner is 'ilp', but this build of reprise has no HiGHS: choose hindsight, or build "
        "with REPRISE_HIGHS_LIBRARY");
  }
  if (options.budgets.empty()) options.budgets = {"80%", "50%", "30%", "20%"};
  for (const std::string& budget : options.budgets) read_planned_budget(budget, MB(1));
  if (!options.picture.empty() || !options.schedule_out.empty()) {
    throw UsageError(
        "--picture and --schedule-out are of chains: with a step's trace --json has the plan");
  }
  refuse_model_with_file(options);
}

}  // namespace

bool is_step_planner(const std::string& name) { return name == "hindsight" || name == "ilp"; }

void check_choice(const char* option, const std::string& value,
                  const std::vector<std::string>& choices) {
  if (std::ranges::find(choices, value) == choices.end()) {
    throw UsageError(
        fmt::format("{} is '{}': choose one of {}", option, value, fmt::join(choices, ", ")));
  }
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

void check(FrontierOptions& options) {
  check_run(options);
  for (const std::string& budget : options.budgets) AskedBudget::parse("--budgets", budget);
  check_budget_options(options, /*has_budget=*/true, "");
  require_cpu_for_budget("reprise frontier", options.device);
}

void check(PlanOptions& options) {
  check_run(options);
  options.is_trace = is_step_trace(options.chain);
  if (options.is_trace) return check_trace(options);
  const PlanOptions usual_search;
  if (options.seconds != usual_search.seconds || options.moves != usual_search.moves) {
    throw UsageError(
        "--seconds and --moves are of hindsight, which plans for a trace: leave them out");
  }
  if (options.planners.empty()) options.planners = {"rotor"};
  check_store(options);
  if (options.budgets.empty()) options.budgets = {"100%", "75%", "50%", "35%", "25%"};
  for (const std::string& planner : options.planners) {
    if (planner != kOffloadPlanner) planner_named(planner);
  }
  // What a share is of is not known yet; whether it is one, is.
  for (const std::string& budget : options.budgets) read_planned_budget(budget, MB(1));
  const bool is_one = options.planners.size() == 1 && options.budgets.size() == 1;
  for (const auto& [option, path] : {std::pair("--picture", &options.picture),
                                     std::pair("--schedule-out", &options.schedule_out)}) {
    if (is_one || path->empty()) continue;
    throw UsageError(
        fmt::format("{} is of one schedule: give one --planner and one --budget", option));
  }
  refuse_same_files({{"FILE", options.chain},
                     {"--chain-out", options.chain_out},
                     {"--picture", options.picture},
                     {"--schedule-out", options.schedule_out}});
  if (!options.chain.empty()) refuse_model_with_file(options);
}

void check(TrainOptions& options) {
  check_run(options);
  refuse_budget_as_strategy(options.strategy);
  check_strategy(options.strategy, options);
  check_regions(options, {options.strategy}, options.budget.has_value());
  check_budget(options);
  if (!options.warmup) options.warmup = std::min<std::int64_t>(100, options.steps / 10);
  check_saving(options);
  check_trace(options);
}

void check(CompareOptions& options) {
  check_run(options);
  if (!options.planners.empty()) return check_planners(options);
  check_unplanned(options);
  if (options.strategies.empty()) {
    std::ranges::copy_if(usual_strategies(), std::back_inserter(options.strategies),
                         [&](const auto& each) { return fits(each, options.gpt.layers); });
  }
  for (const std::string& strategy : options.strategies) {
    check_strategy_or_budget(strategy, options);
  }
  const bool has_budget = std::ranges::any_of(options.strategies, [](const std::string& each) {
    return AskedBudget::of_strategy(each).has_value();
  });
  check_regions(options, options.strategies, has_budget);
  check_budget_options(options, has_budget, "add one to --strategies, such as budget:80%");
}

CheckpointOptions region_options(const RunOptions& options) {
  CheckpointOptions regions;
  regions.reentrant = options.reentrant;
  regions.determinism_check = options.determinism == "values" ? DeterminismCheck::kValues
                              : options.determinism == "none" ? DeterminismCheck::kNone
                                                              : DeterminismCheck::kDefault;
  return regions;
}

}  // namespace reprise::app
