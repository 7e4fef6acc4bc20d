// `reprise simulate`: what budgets would cost a step that was recorded, under one heuristic or
// several.
#include <fmt/format.h>
#include <reprise/error.h>
#include <reprise/simulate.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <charconv>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/reprise/commands.h"
#include "apps/reprise/figures.h"
#include "apps/reprise/option_group.h"
#include "apps/reprise/streams.h"

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

std::vector<std::string> split(const char* option, const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    if (parts.back().find_first_not_of(' ') == std::string::npos) {
      throw UsageError(fmt::format(
          "{} is '{}': an entry is empty; write them with one comma between", option, text));
    }
    begin = end + 1;
  }
  return parts;
}

// A share of the plain peak: "0.5", "50%". Empty for anything else.
std::optional<double> read_share(std::string_view text) {
  const bool is_percent = text.ends_with('%');
  if (is_percent) text.remove_suffix(1);
  double share = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), share);
  if (error != std::errc() || stop != text.data() + text.size()) return std::nullopt;
  if (is_percent) share /= 100;
  // Without a sign of percent, more than the whole is a number of bytes.
  if (!(share > 0) || share > (is_percent ? 1000 : 1)) return std::nullopt;
  return share;
}

Bytes read_budget(std::string_view text, Bytes plain_peak) {
  if (text.find('+') < text.find_first_of("0123456789.")) {
    throw UsageError(fmt::format(
        "--budget is '{}': bytes above what is live before a step need a step that runs, as in "
        "`reprise frontier`; give a share of the plain peak (0.5 or 50%) or all bytes (400MB, "
        "8GiB)",
        text));
  }
  if (const auto share = read_share(text)) {
    return Bytes(static_cast<std::int64_t>(*share * static_cast<double>(plain_peak.count)));
  }
  try {
    const Bytes bytes = parse_bytes(text);
    if (bytes > Bytes(0)) return bytes;
  } catch (const UsageError&) {
    // Says what bytes are, but not that a share would do as well.
  }
  throw UsageError(fmt::format(
      "--budget is '{}': give a share of the plain peak (0.5 or 50%) or bytes (400MB, 8GiB)",
      text));
}

const char* name_of(SimulatedStep::Outcome outcome) {
  switch (outcome) {
    case SimulatedStep::Outcome::kFits:
      break;
    case SimulatedStep::Outcome::kOutOfMemory:
      return "out of memory";
    case SimulatedStep::Outcome::kTooSlow:
      return "too slow";
  }
  return "fits";
}

double share(Bytes part, Bytes whole) {
  return whole > Bytes(0) ? static_cast<double>(part.count) / static_cast<double>(whole.count) : 1;
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

int simulate(const Options& options) {
  if (options.trace.empty()) {
    throw UsageError("no trace was given: name a file of JSON lines, as `reprise simulate TRACE`");
  }
  const auto heuristics = split("--heuristic", options.heuristics);
  const auto budgets = split("--budget", options.budgets);
  const StepTrace trace = StepTrace::read(options.trace);
  std::vector<Simulated> all;
  for (const std::string& heuristic : heuristics) {
    for (const std::string& text : budgets) {
      const Bytes budget = read_budget(text, trace.plain_peak());
      all.push_back({heuristic, budget,
                     trace.simulate({.budget = budget,
                                     .heuristic = heuristic,
                                     .by_index = options.by_index,
                                     .slowdown_limit = options.slowdown_limit,
                                     .seed = static_cast<std::uint64_t>(options.seed)})});
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
            "budgets, with commas: shares of the plain peak (0.5, 50%) or bytes (400MB, 8GiB)");
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
