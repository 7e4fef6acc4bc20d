#include "apps/cli/compare/compare_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <reprise/error.h>
#include <reprise/planners.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "apps/cli/training/pipelined/pipeline_choice.h"
#include "models/strategy.h"

namespace reprise::app {

namespace {

constexpr std::array<const char*, 4> kUsualStrategies = {"none", "sqrt", "segments:4",
                                                         "every-block"};
constexpr const char* kUsualBudgets = "100%,75%,50%,35%,25%";

bool fits(const std::string& strategy, std::int64_t layers) {
  try {
    models::Strategy::parse(strategy).check(layers);
    return true;
  } catch (const UsageError&) {
    return false;
  }
}

// A strategy of the table, or a budget, which is no strategy but stands beside them.
void check_strategy_or_budget(const std::string& strategy, const RunOptions& options) {
  if (AskedBudget::of_strategy(strategy) || PipelineChoice::of_strategy(strategy)) return;
  const auto table = models::strategy_kinds();
  std::vector<models::StrategyKind> kinds(table.begin(), table.end());
  kinds.push_back({"budget", {"B"}, [](std::string_view) { return std::nullopt; }});
  kinds.push_back(
      {"pipeline", {"stages=N:chunks=N"}, [](std::string_view) { return std::nullopt; }});
  models::Strategy::parse(strategy, kinds).check(options.gpt.layers, region_options(options));
}

// Two stages cannot share the embedding's matrix, so all strategies run a model whose head has its
// own.
void check_pipelines(CompareOptions& options) {
  constexpr std::int64_t kEmbedding = 1;
  for (const std::string& strategy : options.strategies) {
    const auto pipeline = PipelineChoice::of_strategy(strategy);
    if (!pipeline) continue;
    if (options.fill_budget || options.reentrant) {
      throw UsageError(fmt::format(
          "--strategies has '{}', which cannot be combined with {}: leave one of them out",
          strategy, options.fill_budget ? "--fill-budget" : "--reentrant"));
    }
    pipeline->check_run("strategy " + strategy, options.gpt.layers + kEmbedding, options.batch);
    options.gpt.tied_head = false;
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
  for (const std::string& name : options.planners) check_planner("--planners", name);
  if (options.budgets.empty()) options.budgets = planned_budgets(kUsualBudgets);
  for (const AskedBudget& budget : options.budgets)
    AskedBudget::parse_planned("--budget", budget.text());
}

// `reprise compare --fill-budget`.
void check_fill_budget(const CompareOptions& options) {
  if (options.budgets.size() != 1) {
    throw UsageError("--fill-budget needs one budget: add --budget, such as --budget 2GB");
  }
  if (options.budgets.front().is_least()) {
    throw UsageError(
        "--budget is 'least', which depends on the batch that --fill-budget looks for; give "
        "bytes, a share of the "
        "plain step's peak or +N");
  }
  for (const std::string& strategy : options.strategies) {
    if (!AskedBudget::of_strategy(strategy)) continue;
    throw UsageError(fmt::format(
        "--strategies has '{}': with --fill-budget every strategy has the bytes of --budget; "
        "leave it out",
        strategy));
  }
}

// Refuses options of planners without any.
void check_unplanned(const CompareOptions& options) {
  if (!options.svg.empty()) throw UsageError("--svg needs --planners: add it, or leave --svg out");
  if (options.seconds != CompareOptions().seconds) {
    throw UsageError("--seconds needs --planners: add it, or leave --seconds out");
  }
  if (options.fill_budget) return check_fill_budget(options);
  if (options.budgets.empty()) return;
  throw UsageError(
      "--budget needs --planners or --fill-budget: add one of them, or measure a byte budget by "
      "--strategies budget:" +
      options.budgets.front().text());
}

}  // namespace

bool is_step_planner(const std::string& name) { return name == "hindsight" || name == "ilp"; }

void check_planner(const char* option, const std::string& name) {
  if (name == "ilp" && !planners::has_ilp()) {
    throw UsageError(fmt::format(
        "{} has 'ilp', but this build of reprise has no HiGHS: leave it out, or build with "
        "REPRISE_HIGHS_LIBRARY",
        option));
  }
  if (!is_step_planner(name)) planner_named(name);
}

void bind(CLI::App& command, CompareOptions& options) {
  OptionGroup measuring(command, "Measuring");
  measuring.names("--strategies", options.strategies,
                  fmt::format("{}", fmt::join(kUsualStrategies, ",")),
                  "strategies, with commas between; none is always measured, and the others\n"
                  "are compared with it:\n" +
                      strategy_list() +
                      ",\nbudget:B (a byte budget as that of `reprise train`: budget:80%,\n"
                      "budget:+54MB, budget:least), or a pipeline as that of `reprise train`,\n"
                      "with colons between: pipeline:stages=2:chunks=8:checkpoint=never");
  measuring.whole("--steps", options.steps, {1, kMostSteps}, "timed steps under each strategy");
  measuring.flag("--fill-budget", options.fill_budget,
                 "compare samples a second, each strategy with the largest batch whose\n"
                 "step fits in --budget");
  OptionGroup planning(command, "Planners");
  planning.names("--planners", options.planners, "",
                 fmt::format("compare planners instead of strategies, by predicted and measured\n"
                             "figures: {},\nand by predictions alone: hindsight, ilp",
                             fmt::join(planner_names(), ", ")));
  planning.list(
      "--budget", options.budgets, AskedBudget::parse, "",
      fmt::format("with --planners: the bytes that a step adds to those live before it, as\n"
                  "shares of the plain step's (50%), or bytes (400MB), with commas between;\n"
                  "default {}. With --fill-budget: all bytes alive, as\n"
                  "bytes, a share of the plain step's peak, or bytes above those live\n"
                  "before it (+400MB)",
                  kUsualBudgets));
  planning.real("--seconds", options.seconds, {0.01, 1e6},
                "seconds of each search of hindsight and ilp");
  planning.path("--svg", "FILE", options.svg, "draw what --planners predict and what is measured");
  bind_regions(measuring, options);
  bind_budget(measuring, options);
  bind_model(command, options);
  bind_data(command, options);
  bind_machine(command, options);
}

void check(CompareOptions& options) {
  check_run(options);
  if (!options.planners.empty()) return check_planners(options);
  check_unplanned(options);
  if (options.strategies.empty()) {
    std::ranges::copy_if(kUsualStrategies, std::back_inserter(options.strategies),
                         [&](const std::string& each) { return fits(each, options.gpt.layers); });
  }
  for (const std::string& strategy : options.strategies)
    check_strategy_or_budget(strategy, options);
  check_pipelines(options);
  const bool has_budget = std::ranges::any_of(options.strategies, [](const std::string& each) {
    return AskedBudget::of_strategy(each).has_value();
  });
  check_regions(options, options.strategies, has_budget);
  check_budget_options(options, has_budget, "add one to --strategies, such as budget:80%");
}

}  // namespace reprise::app
