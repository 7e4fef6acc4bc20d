#include "apps/cli/compare/compare_planners.h"

#include <fmt/format.h>
#include <reprise/error.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "apps/cli/compare/comparison.h"
#include "apps/cli/compare/comparison_report.h"
#include "apps/cli/compare/frontier_chart.h"
#include "apps/cli/compare/planned_steps.h"
#include "apps/cli/io/failure.h"
#include "apps/cli/io/figures.h"
#include "apps/cli/io/interrupt.h"
#include "apps/cli/io/streams.h"

namespace reprise::app {
namespace {

constexpr const char* kPlannersCommand = "reprise compare";

// A plan, and the measured steps if it was run.
struct Compared {
  const PlannedStep* planned = nullptr;
  const Measured* measured = nullptr;
};

std::vector<Compared> pairs_of(const PlannedSteps& planned, const std::vector<Measured>& all) {
  std::vector<Compared> pairs;
  for (const PlannedStep& step : planned.steps) {
    const auto found = std::ranges::find(all, step.name(), &Measured::name);
    pairs.push_back({&step, step.schedule && found != all.end() ? &*found : nullptr});
  }
  return pairs;
}

std::vector<std::string> row_of_plan(const Compared& each, const Measured& plain) {
  const PlannedStep& plan = *each.planned;
  std::vector<std::string> row(9, "-");
  row[0] = plan.planner;
  if (!plan.budget.empty()) row[1] = to_string(plan.limit);
  row[2] = plan.fits ? to_string(plan.peak) : "does not fit";
  if (plan.fits) row[4] = fmt::format("{:.3f}×", plan.ratio);
  if (each.measured == nullptr) return row;
  const Measured& measured = *each.measured;
  if (measured.is_examined) row[3] = to_string(measured.activations);
  if (!measured.milliseconds.empty()) {
    const Spread spread = spread_of(measured, plain);
    row[5] = fmt::format("{:.3f}×", measured.ratio_to(plain));
    row[6] = fmt::format("{:.2f}–{:.2f}", spread.lowest, spread.highest);
    row[7] = format_milliseconds(measured.typical_milliseconds());
  }
  row[8] = verdict_of(measured);
  return row;
}

void print_planners(const CompareOptions& options, const PlannedSteps& planned,
                    const std::vector<Measured>& all, Comparison& comparison,
                    const TextData& data) {
  Facts facts = facts_of(options, comparison, data);
  const Measured& plain = all.front();
  facts.add("plain step", fmt::format("{}, predicted {}; {} ms, its chain {} ms",
                                      to_string(plain.activations), to_string(planned.plain_peak),
                                      format_milliseconds(plain.typical_milliseconds()),
                                      format_milliseconds(1e3 * planned.plain_seconds)));
  print_result(facts.text() + "\n");
  TextTable table({"planner", "budget", "predicted", "peak", "predicted", "of none", "spread",
                   "ms/step", "same gradients"});
  for (const Compared& each : pairs_of(planned, all)) table.add(row_of_plan(each, plain));
  print_result(table.text() + "\n");
  print_result("peaks and budgets: bytes above those before the step, gradients included\n");
}

void print_planners_json(const CompareOptions& options, const PlannedSteps& planned,
                         const std::vector<Measured>& all, Comparison& comparison) {
  const Measured& plain = all.front();
  nlohmann::json rows = nlohmann::json::array();
  for (const auto& [plan, measured] : pairs_of(planned, all)) {
    nlohmann::json row = {{"planner", plan->planner}, {"fits", plan->fits}};
    if (!plan->budget.empty()) row["budget_bytes"] = plan->limit.count;
    if (plan->fits) {
      row.update({{"predicted_peak_bytes", plan->peak.count},
                  {"predicted_ratio", plan->ratio},
                  {"predicted_seconds", plan->ratio * planned.plain_seconds}});
    } else {
      row["failure"] = plan->failure;
    }
    if (measured != nullptr && is_shown(*measured)) {
      row["measured"] = json_of(*measured, plain);
    }
    rows.push_back(std::move(row));
  }
  nlohmann::json result = head_of(options, comparison, plain);
  result.update({{"chain", nlohmann::json::parse(planned.chain.json())},
                 {"plain_predicted_peak_bytes", planned.plain_peak.count},
                 {"plain", json_of(plain, plain)},
                 {"planners", std::move(rows)}});
  print_object(result);
}

Chart planners_chart(const CompareOptions& options, const PlannedSteps& planned,
                     const std::vector<Measured>& all, Comparison& comparison) {
  const Measured& plain = all.front();
  Chart chart;
  chart.title = "Planned steps: predicted and measured";
  chart.subtitle = fmt::format(
      "GPT, {} layers of width {}, context {}, batch {}, {}", options.gpt.layers, options.gpt.width,
      options.gpt.context, options.batch, describe_machine(options, comparison.network().device()));
  chart.series = options.planners;
  chart.points.push_back({.kind = ChartPoint::Kind::kPlain,
                          .label = "plain",
                          .megabytes = plain.activations.megabytes()});
  for (const auto& [plan, measured] : pairs_of(planned, all)) {
    const auto series = static_cast<std::size_t>(
        std::ranges::find(options.planners, plan->planner) - options.planners.begin());
    if (plan->fits) {
      chart.points.push_back({.kind = ChartPoint::Kind::kPrediction,
                              .label = plan->name() + ", predicted",
                              .megabytes = plan->peak.megabytes(),
                              .ratio = plan->ratio,
                              .lowest = plan->ratio,
                              .highest = plan->ratio,
                              .series = series});
    }
    if (measured == nullptr || measured->milliseconds.empty()) continue;
    const Spread spread = spread_of(*measured, plain);
    chart.points.push_back({.kind = ChartPoint::Kind::kBudget,
                            .label = plan->name(),
                            .megabytes = measured->activations.megabytes(),
                            .ratio = measured->ratio_to(plain),
                            .lowest = spread.lowest,
                            .highest = spread.highest,
                            .series = series});
  }
  return chart;
}

// Some budgets may be too small for some planners. It is an error if nothing fits.
int report_unplanned(const PlannedSteps& planned) {
  if (std::ranges::any_of(planned.steps, &PlannedStep::fits)) return 0;
  print_error_line(fmt::format("{}: {}: {}", kPlannersCommand, planned.steps.back().name(),
                               planned.steps.back().failure));
  return kOverBudget;
}

}  // namespace

int compare_planners(const CompareOptions& options) {
  const InterruptScope interrupt;
  const ChartFile svg(options.svg, options.data);
  const auto [device, data] = prepare(options);
  interrupt.end_if_interrupted("anything was measured");

  Comparison comparison(options, data, device);
  const PlannedSteps planned = plan_steps(options, comparison.network(), comparison.first_batch());
  std::vector<Measured> all = strategies_to_measure({}, device);
  for (const PlannedStep& step : planned.steps) {
    const bool is_new = std::ranges::find(all, step.name(), &Measured::name) == all.end();
    if (step.schedule && is_new) all.emplace_back(step.name(), *step.schedule);
  }
  interrupt.end_if_interrupted("anything was measured");
  const int signal = comparison.run(all);
  options.json ? print_planners_json(options, planned, all, comparison)
               : print_planners(options, planned, all, comparison, data);
  if (!all.front().milliseconds.empty()) {
    svg.write(planners_chart(options, planned, all, comparison));
  }
  const int differences = report_differences(all, kPlannersCommand);
  if (signal != 0 || differences != 0) return report_end(kPlannersCommand, signal, differences);
  return report_unplanned(planned);
}

}  // namespace reprise::app
