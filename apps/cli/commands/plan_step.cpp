#include "apps/cli/commands/plan_step.h"

#include <fmt/format.h>
#include <reprise/planners.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <vector>

#include "apps/cli/commands/commands.h"
#include "apps/cli/io/failure.h"
#include "apps/cli/io/figures.h"
#include "apps/cli/io/streams.h"

namespace reprise::app {
namespace {

struct Row {
  std::string planner;
  Bytes budget;
  StepPlan plan;
};

std::ptrdiff_t loads_of(const StepPlan& plan) {
  return std::ranges::count_if(plan.runs, &StepPlan::Run::loads);
}

void print_rows(const PlanOptions& options, const StepTrace& trace, const std::vector<Row>& rows) {
  Facts facts;
  facts.add("trace", options.file);
  facts.add("operators", format_count(static_cast<double>(trace.operators())));
  facts.add("base time", format_milliseconds(1e3 * trace.base().count()) + " ms");
  facts.add("plain peak", to_string(trace.plain_peak()));
  print_result(facts.text() + "\n");
  TextTable table(
      {"planner", "budget", "of plain", "peak", "slowdown", "at least", "run again", "loaded"});
  for (const auto& [planner, budget, plan] : rows) {
    table.add(
        {planner, to_string(budget),
         fmt::format("{:.1f} %", 100 * share(budget, trace.plain_peak())),
         plan.fits ? to_string(plan.peak) : "does not fit",
         plan.fits ? fmt::format("{:.4f}×", plan.slowdown) : "-",
         fmt::format("{:.4f}×", plan.bound),
         plan.fits ? fmt::format("{} operators", std::ssize(plan.runs) - loads_of(plan)) : "-",
         plan.fits ? fmt::format("{}", loads_of(plan)) : "-"});
  }
  print_result(table.text() + "\n");
}

void print_json_of(const PlanOptions& options, const StepTrace& trace,
                   const std::vector<Row>& rows) {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& [planner, budget, plan] : rows) {
    nlohmann::json row = {{"planner", planner},
                          {"budget_bytes", budget.count},
                          {"fits", plan.fits},
                          {"slowdown_at_least", plan.bound}};
    if (plan.fits) {
      nlohmann::json runs = nlohmann::json::array(), loads = nlohmann::json::array();
      for (const StepPlan::Run& run : plan.runs) {
        (run.loads ? loads : runs).push_back({run.op, run.before});
      }
      row.update({{"peak_bytes", plan.peak.count},
                  {"slowdown", plan.slowdown},
                  {"recompute_seconds", plan.recompute.count()},
                  {"transfer_seconds", plan.transfer.count()},
                  {"runs", std::move(runs)},
                  {"loads", std::move(loads)}});
    }
    list.push_back(std::move(row));
  }
  const nlohmann::json result = {{"source", options.file},
                                 {"operators", trace.operators()},
                                 {"base_seconds", trace.base().count()},
                                 {"plain_peak_bytes", trace.plain_peak().count},
                                 {"plans", std::move(list)}};
  print_object(result);
}

}  // namespace

int plan_step(const PlanOptions& options) {
  const StepTrace trace = StepTrace::read(options.file);
  std::vector<Row> rows;
  for (const std::string& planner : options.planners) {
    for (const AskedBudget& asked : options.budgets) {
      const Bytes budget = asked.of_peak(trace.plain_peak());
      const StepPlanOptions wanted = {.budget = budget,
                                      .time_limit = std::chrono::duration<double>(options.seconds),
                                      .store = {options.store_bandwidth},
                                      .moves = options.moves,
                                      .seed = static_cast<std::uint64_t>(options.seed)};
      rows.push_back(
          {planner, budget,
           planner == "ilp" ? planners::ilp(trace, wanted) : planners::hindsight(trace, wanted)});
    }
  }
  options.json ? print_json_of(options, trace, rows) : print_rows(options, trace, rows);
  const auto fits = [](const Row& row) { return row.plan.fits; };
  if (std::ranges::any_of(rows, fits)) return 0;
  print_error_line(fmt::format(
      "reprise plan: {}: no plan was found for {}, of which {} are always there; raise "
      "the budget",
      rows.back().planner, to_string(rows.back().budget), to_string(trace.constants())));
  return kOverBudget;
}

}  // namespace reprise::app
