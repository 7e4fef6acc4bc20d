// `reprise compare`: what a strategy saves and what it costs, and whether its gradients are those
// of the plain step, bit by bit.
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/cli/commands/commands.h"
#include "apps/cli/compare/compare_planners.h"
#include "apps/cli/compare/comparison.h"
#include "apps/cli/compare/comparison_report.h"
#include "apps/cli/compare/fill_budget.h"
#include "apps/cli/io/figures.h"
#include "apps/cli/io/interrupt.h"
#include "apps/cli/io/streams.h"

namespace reprise::app {

namespace {

std::vector<std::string> row_of_strategy(const Measured& each, const Measured& plain) {
  std::vector<std::string> row = {escape(each.name), "-", "-", "-", "-", "-", "-", "-"};
  if (each.is_examined) {
    row[1] = to_string(each.peak);
    row[2] = to_string(each.activations);
    row[3] = percent(static_cast<double>(each.activations.count) /
                     static_cast<double>(plain.activations.count));
    row[6] = percent(each.recompute_share);
  }
  if (!each.milliseconds.empty()) {
    row[4] = format_milliseconds(each.typical_milliseconds());
    row[5] = fmt::format("{:.2f}×", each.ratio_to(plain));
  }
  row[7] = verdict_of(each);
  return row;
}

void print_table(const CompareOptions& options, const std::vector<Measured>& all,
                 Comparison& comparison, const TextData& data) {
  Facts facts = facts_of(options, comparison, data);
  if (options.reentrant) facts.add("regions", "reentrant");
  print_result(facts.text() + "\n");

  TextTable table({"strategy", "peak", "activations", "of none", "ms/step", "of none",
                   "recomputing", "same gradients"});
  const Measured& plain = all.front();
  for (const Measured& each : all) {
    if (is_shown(each)) table.add(row_of_strategy(each, plain));
  }
  print_result(table.text() + "\n");
  print_result(
      "peak: bytes alive at once, with weights and gradients; activations: above those before the "
      "step\n");
  const auto has_pipeline = [](const Measured& each) { return each.pipeline.has_value(); };
  if (std::ranges::any_of(all, has_pipeline)) {
    print_result(
        "same gradients of a pipeline: as the same micro-batches one after another without a "
        "pipeline\n");
  }
}

void print_json(const CompareOptions& options, const std::vector<Measured>& all,
                Comparison& comparison) {
  nlohmann::json rows = nlohmann::json::array();
  const Measured& plain = all.front();
  for (const Measured& each : all) {
    if (!is_shown(each)) continue;
    rows.push_back(json_of(each, plain));
  }
  nlohmann::json result = head_of(options, comparison, all.front());
  result["strategies"] = std::move(rows);
  print_object(result);
}

int compare(CompareOptions options) {
  const InterruptScope interrupt;
  check(options);
  if (!options.planners.empty()) return compare_planners(options);
  if (options.fill_budget) return fill_budget(options);
  const auto [device, data] = prepare(options);
  std::vector<Measured> all = strategies_to_measure(options.strategies, device);

  interrupt.end_if_interrupted("anything was measured");
  Comparison comparison(options, data, device);
  const int signal = comparison.run(all);
  options.json ? print_json(options, all, comparison) : print_table(options, all, comparison, data);
  return report_end("reprise compare", signal, report_differences(all));
}

}  // namespace

void add_compare(CLI::App& program, Chosen& chosen) {
  add_command<CompareOptions>(program, chosen, "compare",
                              "Compare strategies by memory, time and gradients", compare);
}

}  // namespace reprise::app
