// `reprise simulate`: what budgets would cost a step that was recorded, under one heuristic or
// several.
#include <fmt/format.h>
#include <reprise/error.h>
#include <reprise/step_trace.h>
#include <algorithm>

#include <CLI/App.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/cli/commands/commands.h"
#include "apps/cli/commands/option_group.h"
#include "apps/cli/compare/planned_budgets.h"
#include "apps/cli/io/figures.h"
#include "apps/cli/io/streams.h"

namespace reprise::app {

namespace {

struct Options {
  std::string trace;
  std::string heuristics = "h_up";
  std::string budgets = "0.8,0.5,0.4,0.3,0.2";
  bool by_index = false;
  double slowdown_limit = 10;
  std::int64_t seed = 0;
  bool json = false;
};

struct Simulated {
  std::string heuristic;
  Bytes budget;
  SimulatedStep step;
};

const char* name_of(SimulatedStep::Outcome outcome) {
  switch (outcome) {
    case SimulatedStep::Outcome::kFits:
      break;
    case SimulatedStep::Outcome::kOutOfMemory:
      return "out of memory";
    case SimulatedStep::Outcome::kTooSlow:
      return "too slow";
    case SimulatedStep::Outcome::kOutOfTime:
      return "out of time";
  }
  return "fits";
}

void print_table(const Options& options, const StepTrace& trace,
                 const std::vector<Simulated>& all) {
  Facts facts;
  facts.add("trace", options.trace);
  facts.add("operators", format_count(static_cast<double>(trace.operators())));
  facts.add("base time", format_milliseconds(1e3 * trace.base().count()) + " ms");
  facts.add("plain peak", to_string(trace.plain_peak()));
  facts.add("constants", to_string(trace.constants()));
  facts.add("floor", to_string(trace.floor()) + ", which no budget can be below");
  print_result(facts.text() + "\n");

  Table table({"heuristic", "budget", "of plain", "outcome", "slowdown", "recomputed", "evictions",
               "peak"});
  for (const Simulated& each : all) {
    const bool fits = each.step.outcome == SimulatedStep::Outcome::kFits;
    table.add({each.heuristic, to_string(each.budget),
               fmt::format("{:.1f} %", 100 * share(each.budget, trace.plain_peak())),
               name_of(each.step.outcome), fits ? fmt::format("{:.4f}×", each.step.slowdown) : "-",
               fits ? format_milliseconds(1e3 * each.step.recompute.count()) + " ms" : "-",
               fits ? fmt::format("{}", each.step.evictions) : "-",
               fits ? to_string(each.step.peak) : "-"});
  }
  print_result(table.text() + "\n");
}

void print_json(const Options& options, const StepTrace& trace, const std::vector<Simulated>& all) {
  nlohmann::json rows = nlohmann::json::array();
  for (const Simulated& each : all) {
    rows.push_back({{"heuristic", each.heuristic},
                    {"budget_bytes", each.budget.count},
                    {"budget_of_plain", share(each.budget, trace.plain_peak())},
                    {"outcome", name_of(each.step.outcome)},
                    {"slowdown", each.step.slowdown},
                    {"recompute_seconds", each.step.recompute.count()},
                    {"peak_bytes", each.step.peak.count},
                    {"evictions", each.step.evictions},
                    {"recomputations", each.step.recomputations},
                    {"events", each.step.events}});
  }
  const nlohmann::json result = {{"trace", options.trace},
                                 {"operators", trace.operators()},
                                 {"base_seconds", trace.base().count()},
                                 {"plain_peak_bytes", trace.plain_peak().count},
                                 {"constant_bytes", trace.constants().count},
                                 {"floor_bytes", trace.floor().count},
                                 {"simulations", rows}};
  // A path need not be text.
  print_result(result.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

// The least budget that fits, by bisection, to a thousandth of the plain peak.
Bytes least_that_fits(const StepTrace& trace, SimulateOptions options) {
  const auto fits = [&](std::int64_t bytes) {
    options.budget = Bytes(bytes);
    return trace.simulate(options).outcome == SimulatedStep::Outcome::kFits;
  };
  const std::int64_t peak = trace.plain_peak().count;
  std::int64_t works = peak, fails = trace.floor().count - 1;
  while (works - fails > std::max<std::int64_t>(peak / 1000, 1)) {
    const std::int64_t middle = fails + (works - fails) / 2;
    (fits(middle) ? works : fails) = middle;
  }
  return Bytes(works);
}

int simulate(const Options& options) {
  if (options.trace.empty()) {
    throw UsageError("no trace was given: name a file of JSON lines, as `reprise simulate TRACE`");
  }
  const auto heuristics = split_list("--heuristic", options.heuristics);
  const auto budgets = split_list("--budget", options.budgets);
  const StepTrace trace = StepTrace::read(options.trace);
  std::vector<Simulated> all;
  for (const std::string& heuristic : heuristics) {
    for (const std::string& text : budgets) {
      SimulateOptions each{.budget = {},
                           .heuristic = parse_heuristic(heuristic),
                           .slowdown_limit = options.slowdown_limit,
                           .by_index = options.by_index,
                           .seed = static_cast<std::uint64_t>(options.seed)};
      each.budget = text == "least" ? least_that_fits(trace, each)
                                    : read_planned_budget(text, trace.plain_peak());
      all.push_back({heuristic, each.budget, trace.simulate(each)});
    }
  }
  options.json ? print_json(options, trace, all) : print_table(options, trace, all);
  return 0;
}

}  // namespace

void add_simulate(CLI::App& program, Chosen& chosen) {
  auto* command = program.add_subcommand(
      "simulate", "Try byte budgets on a recorded step, without its tensors");
  auto options = std::make_shared<Options>();
  OptionGroup input(*command, "Trace");
  input.path("TRACE", "PATH", options->trace,
             "the step's operators: JSON lines as simrd writes them, or compressed by gzip");
  OptionGroup what(*command, "Simulation");
  what.text("--budget", "LIST", options->budgets,
            "budgets, with commas: shares of the plain peak (0.5, 50%), bytes (400MB, 8GiB), or\n"
            "'least', the least that fits");
  what.text("--heuristic", "LIST", options->heuristics,
            "which value goes first: h_up, h_eq, h_dtr, h_local, lru, largest, random");
  what.flag("--index", options->by_index,
            "find it as a running step does, not by looking at every value");
  what.real("--slowdown-limit", options->slowdown_limit, {1, 1e6},
            "give up where a step takes this many times as long");
  what.whole("--seed", options->seed, {0, 1'000'000'000}, "of what is drawn at random");
  OptionGroup output(*command, "Output");
  output.flag("--json", options->json, "print one JSON object instead of a table");
  command->callback([options, &chosen] { chosen = [options] { return simulate(*options); }; });
}

}  // namespace reprise::app
