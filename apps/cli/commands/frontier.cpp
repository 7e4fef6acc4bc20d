// `reprise frontier`: measures what a step costs in less and less memory, from the plain peak down
// to the least budget in which it runs.
#include <fmt/format.h>
#include <reprise/error.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/cli/commands/commands.h"
#include "apps/cli/compare/comparison.h"
#include "apps/cli/compare/comparison_report.h"
#include "apps/cli/compare/frontier_chart.h"
#include "apps/cli/io/failure.h"
#include "apps/cli/io/figures.h"
#include "apps/cli/io/interrupt.h"
#include "apps/cli/io/progress.h"
#include "apps/cli/io/streams.h"

namespace reprise::app {

namespace {

// Uses the options of a comparison without planners. If there are no budgets, Search chooses them.
struct FrontierOptions : CompareOptions {};

void bind(CLI::App& command, FrontierOptions& options) {
  OptionGroup measuring(command, "Measuring");
  measuring.list("--budgets", options.budgets, AskedBudget::parse, "",
                 "byte budgets with commas between, as those of `reprise train` (80%, 400MB,\n"
                 "+84MB, least); default: ten parts of the plain step's activations, down\n"
                 "to the least that works, which is searched for");
  measuring.whole("--steps", options.steps, {1, kMostSteps}, "timed steps under each budget");
  bind_budget(measuring, options);
  bind_model(command, options);
  bind_data(command, options);
  OptionGroup chart(command, "Chart");
  chart.path("--svg", "FILE", options.svg, "draw peak and time to it");
  bind_machine(command, options);
}

void check(FrontierOptions& options) {
  check_run(options);
  check_budget_options(options, /*has_budget=*/true, "");
}

constexpr const char* kCommand = "reprise frontier";
constexpr const char* kAnything = "anything was measured";

// Parts of the plain step's activations.
constexpr double kParts[] = {0.9, 0.75, 0.6, 0.5, 0.4, 0.33, 0.27, 0.22, 0.18, 0.14};
// How finely the least budget is searched for, and how far above the result it is measured: in
// another round the heuristic may choose other values.
constexpr double kSearchedTo = 0.01;
constexpr double kSlack = 0.01;
// A budget under which a step takes so many times as long counts as too small.
constexpr double kSlowest = 3;

// Searches the least budget with steps of the first round.
class Search {
 public:
  Search(Comparison& comparison, Measured& plain) : comparison_(comparison) {
    comparison.measure_plain(plain);
    plain_ = comparison.milliseconds_within(comparison.plain_peak() * 2).value_or(0);
  }

  Bytes budget_of(double part) const {
    const Bytes live = comparison_.live(), above = comparison_.plain_peak() - live;
    return live + Bytes(std::llround(part * static_cast<double>(above.count)));
  }

  // Returns the parts that work, and one that does not.
  std::vector<double> parts() {
    std::vector<double> parts;
    double works = 1, fails = 0;
    for (const double part : kParts) {
      parts.push_back(part);
      if (!is_enough(part)) {
        fails = part;
        break;
      }
      works = part;
    }
    while (works - fails > kSearchedTo) {
      const double middle = (works + fails) / 2;
      (is_enough(middle) ? works : fails) = middle;
    }
    parts.push_back(works + kSlack);
    std::ranges::sort(parts, std::greater());
    return parts;
  }

 private:
  bool is_enough(double part) {
    interrupt_.end_if_interrupted(kAnything);
    line_.show({fmt::format("searching: {}", to_string(budget_of(part)))});
    const auto milliseconds = comparison_.milliseconds_within(budget_of(part));
    return milliseconds && *milliseconds <= kSlowest * plain_;
  }

  Comparison& comparison_;
  const InterruptScope interrupt_;
  ProgressLine line_;
  double plain_ = 0;
};

std::string above(Bytes bytes) { return fmt::format("+{:.3g}MB", bytes.megabytes()); }

void add_budgets(const CompareOptions& options, Comparison& comparison,
                 std::vector<Measured>& all) {
  const auto add = [&](const AskedBudget& budget) {
    if (std::ranges::count(all, budget.text(), &Measured::name) == 0)
      all.emplace_back(budget.text(), budget);
  };
  if (!options.budgets.empty()) {
    std::ranges::for_each(options.budgets, add);
    return;
  }
  Search search(comparison, all.front());
  for (const double part : search.parts()) {
    add(AskedBudget::parse("--budgets", above(search.budget_of(part) - comparison.live())));
  }
}

std::vector<std::string> row_of_point(const Measured& each, const Measured& plain) {
  std::vector<std::string> row = {each.name, "-", "-", "-", "-", "-", "-", "-", verdict_of(each)};
  if (each.is_examined) {
    row[1] = to_string(each.peak);
    row[2] = to_string(each.activations);
    row[3] = percent(static_cast<double>(each.activations.count) /
                     static_cast<double>(plain.activations.count));
  }
  if (!each.milliseconds.empty()) {
    const Spread spread = spread_of(each, plain);
    row[4] = format_milliseconds(each.typical_milliseconds());
    row[5] = fmt::format("{:.2f}×", each.ratio_to(plain));
    row[6] = fmt::format("{:.2f}–{:.2f}", spread.lowest, spread.highest);
  }
  if (each.asked && each.is_examined) row[7] = fmt::format("{}", each.tape.replayed);
  return row;
}

void print_points(const CompareOptions& options, const std::vector<Measured>& all,
                  Comparison& comparison, const TextData& data) {
  print_result(facts_of(options, comparison, data).text() + "\n");
  TextTable table({"budget", "peak", "activations", "of none", "ms/step", "of none", "spread",
                   "replayed", "same gradients"});
  for (const Measured& each : all) {
    if (is_shown(each)) table.add(row_of_point(each, all.front()));
  }
  print_result(table.text() + "\n");
  print_result(
      "peak: bytes alive at once, with weights and gradients; activations: above those before the "
      "step\n");
  const std::string misfits = misfits_of(all);
  if (!misfits.empty()) print_result("\nbudgets that do not fit:\n" + misfits);
}

void print_points_json(const CompareOptions& options, const std::vector<Measured>& all,
                       Comparison& comparison) {
  nlohmann::json rows = nlohmann::json::array();
  for (const Measured& each : all) {
    if (!is_shown(each)) continue;
    rows.push_back(json_of(each, all.front()));
  }
  nlohmann::json result = head_of(options, comparison, all.front());
  result["points"] = std::move(rows);
  print_object(result);
}

Chart chart_of(const CompareOptions& options, const std::vector<Measured>& all,
               Comparison& comparison) {
  Chart chart;
  chart.title = "Time of a training step in less memory";
  chart.subtitle = fmt::format(
      "GPT, {} layers of width {}, context {}, batch {}, {} attention, {}; median of {} steps",
      options.gpt.layers, options.gpt.width, options.gpt.context, options.batch, options.attention,
      describe_machine(options, comparison.network().device()), all.front().milliseconds.size());
  for (const Measured& each : all) {
    if (each.asked && each.is_over_budget && !each.is_examined && each.limit > comparison.live()) {
      chart.misfits.push_back((each.limit - comparison.live()).megabytes());
    }
    if (each.milliseconds.empty()) continue;
    const Spread spread = spread_of(each, all.front());
    chart.points.push_back({.kind = each.asked              ? ChartPoint::Kind::kBudget
                                    : &each == &all.front() ? ChartPoint::Kind::kPlain
                                                            : ChartPoint::Kind::kRegions,
                            .label = &each == &all.front() ? "plain" : each.name,
                            .megabytes = each.activations.megabytes(),
                            .ratio = each.ratio_to(all.front()),
                            .lowest = spread.lowest,
                            .highest = spread.highest});
  }
  return chart;
}

// Returns the exit code. It is the point of a frontier that some budgets do not fit, but one must.
int report_misfits(const std::vector<Measured>& all) {
  const auto fits = [](const Measured& each) { return each.asked && each.failure.empty(); };
  if (std::ranges::any_of(all, fits)) return 0;
  print_error_line(
      fmt::format("{}: a step can be run in none of these budgets, for the reasons "
                  "above; give larger --budgets, or none, to search for the least",
                  kCommand));
  return kOverBudget;
}

int frontier(FrontierOptions options) {
  const InterruptScope interrupt;
  check(options);
  const ChartFile svg(options.svg, options.data);
  const auto [device, data] = prepare(options);
  std::vector<Measured> all = strategies_to_measure({"none", "every-block"}, device);
  interrupt.end_if_interrupted(kAnything);

  Comparison comparison(options, data, device);
  add_budgets(options, comparison, all);
  const int signal = comparison.run(all);
  options.json ? print_points_json(options, all, comparison)
               : print_points(options, all, comparison, data);
  if (!all.front().milliseconds.empty()) svg.write(chart_of(options, all, comparison));
  const int differences = report_differences(all, kCommand, /*expects_misfits=*/true);
  if (signal != 0 || differences != 0) return report_end(kCommand, signal, differences);
  return report_misfits(all);
}

}  // namespace

void add_frontier(CLI::App& program, Chosen& chosen) {
  add_command<FrontierOptions>(program, chosen, "frontier",
                               "Measure what a step costs in less and less memory, by byte budgets",
                               frontier);
}

}  // namespace reprise::app
