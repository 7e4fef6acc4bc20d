// `reprise simulate`: tells what budgets would cost a recorded step under one heuristic or several.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <reprise/error.h>
#include <reprise/step_trace.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/cli/commands/commands.h"
#include "apps/cli/io/figures.h"
#include "apps/cli/io/option_group.h"
#include "apps/cli/io/streams.h"
#include "apps/cli/training/asked_budget.h"

namespace reprise::app {

namespace {

constexpr const char* kSimulatedBudgets = "0.8,0.5,0.4,0.3,0.2";

struct SimulationOptions {
  std::string trace;
  std::vector<std::string> heuristics = {"h_up"};
  std::vector<AskedBudget> budgets = planned_budgets(kSimulatedBudgets);
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

void print_table(const SimulationOptions& options, const StepTrace& trace,
                 const std::vector<Simulated>& all) {
  Facts facts;
  facts.add("trace", options.trace);
  facts.add("operators", format_count(static_cast<double>(trace.operators())));
  facts.add("base time", format_milliseconds(1e3 * trace.base().count()) + " ms");
  facts.add("plain peak", to_string(trace.plain_peak()));
  facts.add("constants", to_string(trace.constants()));
  facts.add("floor", to_string(trace.floor()) + ", which no budget can be below");
  print_result(facts.text() + "\n");

  TextTable table({"heuristic", "budget", "of plain", "outcome", "slowdown", "recomputed",
                   "evictions", "peak"});
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

void print_json(const SimulationOptions& options, const StepTrace& trace,
                const std::vector<Simulated>& all) {
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
  print_object(result);
}

AskedBudget read_budget(const char* option, const std::string& text) {
  return text == "least" ? AskedBudget::parse(option, text)
                         : AskedBudget::parse_planned(option, text);
}

// Bisects down to a thousandth of the plain peak.
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

void bind(CLI::App& command, SimulationOptions& options) {
  OptionGroup input(command, "Trace");
  input.path("TRACE", "PATH", options.trace,
             "the step's operators: JSON lines as simrd writes them, or compressed by gzip");
  OptionGroup what(command, "Simulation");
  what.list("--budget", options.budgets, read_budget, kSimulatedBudgets,
            "budgets, with commas between: shares of the plain peak (0.5, 50%), bytes\n"
            "(400MB, 8GiB), or 'least', the least that fits");
  what.names("--heuristic", options.heuristics, "h_up",
             fmt::format("how the next value to drop is chosen, with commas between:\n{}",
                         fmt::join(heuristic_names(), ", ")));
  what.flag("--index", options.by_index,
            "choose by the index of a running step, without a look at every value");
  what.real("--slowdown-limit", options.slowdown_limit, {1, 1e6},
            "end a simulation whose step takes this many times as long");
  what.whole("--seed", options.seed, {0, 1'000'000'000}, "of random choices");
  OptionGroup output(command, "Output");
  output.flag("--json", options.json, "print one JSON object instead of a table");
}

int simulate(const SimulationOptions& options) {
  if (options.trace.empty()) {
    throw UsageError("no trace was given: name a file of JSON lines, as `reprise simulate TRACE`");
  }
  const StepTrace trace = StepTrace::read(options.trace);
  std::vector<Simulated> all;
  for (const std::string& heuristic : options.heuristics) {
    for (const AskedBudget& budget : options.budgets) {
      SimulateOptions each{.budget = {},
                           .heuristic = parse_heuristic(heuristic),
                           .slowdown_limit = options.slowdown_limit,
                           .by_index = options.by_index,
                           .seed = static_cast<std::uint64_t>(options.seed)};
      each.budget =
          budget.is_least() ? least_that_fits(trace, each) : budget.of_peak(trace.plain_peak());
      all.push_back({heuristic, each.budget, trace.simulate(each)});
    }
  }
  options.json ? print_json(options, trace, all) : print_table(options, trace, all);
  return 0;
}

}  // namespace

void add_simulate(CLI::App& program, Chosen& chosen) {
  add_command<SimulationOptions>(program, chosen, "simulate",
                                 "Try byte budgets on a recorded step, without its tensors",
                                 simulate);
}

}  // namespace reprise::app
