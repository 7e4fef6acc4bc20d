#include "apps/cli/experiment/findings_tables.h"

#include <fmt/format.h>
#include <reprise/report.h>

#include <algorithm>
#include <cmath>

#include "apps/cli/experiment/findings_claims.h"
#include "apps/cli/experiment/findings_figures.h"

namespace reprise::app {

namespace {

constexpr const char* kNothing = "–";
constexpr double kJoulesPerKilowattHour = 3.6e6;

using MethodRuns = std::vector<const RunFile*>;
using Cells = std::vector<std::string>;

// About four significant digits.
int digits_for(double value) {
  const double size = std::abs(value);
  return size < 1 ? 4 : size < 10 ? 3 : size < 100 ? 2 : size < 1000 ? 1 : 0;
}

std::string figure_cell(const OverSeeds& over, double factor = 1, const char* unit = "") {
  if (std::isnan(over.mean)) return kNothing;
  const int digits = digits_for(factor * over.mean);
  std::string text = fmt::format("{:.{}f}{}", factor * over.mean, digits, unit);
  if (over.interval) {
    text += fmt::format(" ({:.{}f}–{:.{}f})", factor * over.interval->low, digits,
                        factor * over.interval->high, digits);
  }
  return text;
}

// Without the interval.
std::string mean_cell(OverSeeds over, double factor = 1, const char* unit = "") {
  over.interval.reset();
  return figure_cell(over, factor, unit);
}

std::string percent_cell(const OverSeeds& over) {
  if (std::isnan(over.mean)) return kNothing;
  const bool is_zero = over.mean == 0 && (!over.interval || over.interval->low == 0);
  if (is_zero) return "0 %";
  const int digits = std::abs(over.mean) < 0.01 ? 3 : 1;
  std::string text = fmt::format("{:.{}f} %", 100 * over.mean, digits);
  if (over.interval) {
    text += fmt::format(" ({:.{}f} to {:.{}f})", 100 * over.interval->low, digits,
                        100 * over.interval->high, digits);
  }
  return text;
}

std::string p_cell(double p) {
  if (std::isnan(p)) return kNothing;
  return p < 0.001 ? "< 0.001" : fmt::format("{:.3f}", p);
}

std::string fits_cell(const MethodRuns& runs) {
  std::size_t steps = 0, above = 0;
  for (const RunFile* run : runs) {
    if (!run->budget) return kNothing;
    for (const StepLine& step : run->steps) {
      ++steps;
      above += step.peak > *run->budget ? 1 : 0;
    }
  }
  if (steps == 0) return kNothing;
  return above == 0 ? "yes" : fmt::format("no: {} of {} steps above", above, steps);
}

double budget_of_run(const RunFile& run) {
  return run.budget ? static_cast<double>(run.budget->count) : kNoFigure;
}

std::string quality_cell(const MethodRuns& runs) {
  const OverSeeds accuracy = over_seeds(runs, accuracy_of);
  return std::isnan(accuracy.mean) ? figure_cell(over_seeds(runs, perplexity_of))
                                   : percent_cell(accuracy);
}

// The tests of a method beside the two baselines; NaN where there is none to make.
struct Tests {
  double time_uniform = kNoFigure, time_none = kNoFigure;
  double loss_uniform = kNoFigure, loss_none = kNoFigure;
};
constexpr double Tests::*kTests[] = {&Tests::time_uniform, &Tests::time_none, &Tests::loss_uniform,
                                     &Tests::loss_none};

// Where all losses are the same there is nothing to test, and what is not tested must not make the
// correction of the rest harder.
double p_of_losses(const MethodRuns& ours, const MethodRuns& theirs) {
  const PairedFigures pairs = paired(ours, theirs, validation_loss_of);
  return pairs.ours == pairs.theirs ? kNoFigure : p_of_difference(pairs);
}

std::vector<Tests> corrected_tests(const Runs& runs, const std::string& model,
                                   const std::vector<std::string>& methods) {
  const MethodRuns uniform = runs.of(model, "uniform"), none = runs.of(model, "none");
  std::vector<Tests> tests;
  std::vector<double> all;
  for (const std::string& method : methods) {
    const MethodRuns ours = runs.of(model, method);
    Tests& test = tests.emplace_back();
    if (method != "uniform") {
      test.time_uniform = p_of_ratio(paired(ours, uniform, milliseconds_of));
      test.loss_uniform = p_of_losses(ours, uniform);
    }
    if (method != "none") {
      test.time_none = p_of_ratio(paired(ours, none, milliseconds_of));
      test.loss_none = p_of_losses(ours, none);
    }
    for (const auto p : kTests) all.push_back(test.*p);
  }
  const std::vector<double> adjusted = holm(all);
  std::size_t next = 0;
  for (Tests& test : tests) {
    for (const auto p : kTests) test.*p = adjusted[next++];
  }
  return tests;
}

std::vector<std::string> main_methods(const Runs& runs, const std::string& model) {
  std::vector<std::string> methods = runs.methods(model);
  std::erase_if(methods, [](const std::string& name) { return name.find(',') != name.npos; });
  return methods;
}

Cells cost_row(const std::string& method, const MethodRuns& ours, const MethodRuns& none,
               const Tests& tests) {
  const OverSeeds energy = over_seeds(ours, joules_of);
  return {"`" + method + "`",
          mean_cell(over_seeds(ours, peak_bytes_of), 1e-6),
          mean_cell(ratio_of(paired(ours, none, peak_bytes_of))),
          mean_cell(over_seeds(ours, budget_of_run), 1e-6),
          fits_cell(ours),
          figure_cell(over_seeds(ours, milliseconds_of)),
          method == "none" ? "1" : figure_cell(ratio_of(paired(ours, none, milliseconds_of))),
          p_cell(tests.time_uniform),
          p_cell(tests.time_none),
          percent_cell(over_seeds(ours, recompute_share_of)),
          figure_cell(over_seeds(ours, units_a_second_of)),
          mean_cell(over_seeds(ours, mask_changes_of)),
          ours.empty()              ? kNothing
          : std::isnan(energy.mean) ? "not available"
                                    : figure_cell(energy, 1 / kJoulesPerKilowattHour)};
}

std::string differences_cell(const MethodRuns& ours, const MethodRuns& none) {
  const LossDifferences found = loss_differences(ours, none);
  return found.compared == 0 ? kNothing : fmt::format("{} of {}", found.differing, found.compared);
}

Cells quality_row(const std::string& method, const MethodRuns& ours, const MethodRuns& none,
                  const Tests& tests) {
  return {"`" + method + "`",
          ours.empty()        ? kNothing
          : ours[0]->is_exact ? "yes"
                              : "no",
          figure_cell(over_seeds(ours, validation_loss_of)),
          quality_cell(ours),
          p_cell(tests.loss_uniform),
          p_cell(tests.loss_none),
          differences_cell(ours, none),
          mean_cell(over_seeds(ours, gradient_error_of)),
          mean_cell(over_seeds(ours, compression_of), 1, "×")};
}

// Columns after the first in which there is nothing at all.
void drop_empty_columns(reprise::Table& table) {
  for (std::size_t i = table.header.size(); i-- > 1;) {
    const auto is_empty = [&](const Cells& row) { return row[i] == kNothing; };
    if (!std::ranges::all_of(table.rows, is_empty)) continue;
    table.header.erase(table.header.begin() + static_cast<std::ptrdiff_t>(i));
    for (Cells& row : table.rows) row.erase(row.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

std::string units_of(const Runs& runs, const std::string& model) {
  const auto run = std::ranges::find(runs.runs, model, &RunFile::model);
  return run == runs.runs.end() ? "units" : run->units;
}

}  // namespace

MethodTables method_tables(const Runs& runs, const std::string& model) {
  const std::vector<std::string> methods = main_methods(runs, model);
  const std::vector<Tests> tests = corrected_tests(runs, model, methods);
  const MethodRuns none = runs.of(model, "none");
  reprise::Table cost{{"method", "peak (MB)", "× none", "budget (MB)", "fits", "ms a step",
                       "× none", "p, uniform", "p, none", "recomputed",
                       units_of(runs, model) + " a second", "changes of the mask", "kWh"}};
  reprise::Table quality{{"method", "exact", "validation loss", "perplexity or accuracy",
                          "p, uniform", "p, none", "steps with another loss than none",
                          "error of gradients", "compressed"}};
  for (std::size_t i = 0; i < methods.size(); ++i) {
    const MethodRuns ours = runs.of(model, methods[i]);
    cost.rows.push_back(cost_row(methods[i], ours, none, tests[i]));
    quality.rows.push_back(quality_row(methods[i], ours, none, tests[i]));
  }
  drop_empty_columns(quality);
  return {markdown(cost), markdown(quality)};
}

std::string expectation_table(const Runs& runs, const std::string& method) {
  reprise::Table table{{"expectation", "expected", "model", "measured", "verdict", "because"}};
  table.align.assign(table.header.size(), reprise::Table::Align::kLeft);
  std::vector<std::vector<Expectation>> by_model;
  const std::vector<std::string> models = runs.models();
  for (const std::string& model : models) by_model.push_back(expectations_of(runs, model, method));
  // The same expectation of all models stands together.
  for (std::size_t i = 0; !models.empty() && i < by_model[0].size(); ++i) {
    for (std::size_t m = 0; m < models.size(); ++m) {
      const Expectation& each = by_model[m][i];
      table.rows.push_back({each.claim, each.expected, models[m], percent_cell(each.measured),
                            fmt::format("*{}*", text_of(each.verdict)), each.reason});
    }
  }
  return markdown(table);
}

std::string ablation_table(const Runs& runs, const std::string& model) {
  reprise::Table table{{"method", "peak (MB)", "ms a step", "× the method's", "recomputed",
                        "validation loss", "perplexity or accuracy", "changes of the mask"}};
  const std::vector<std::string> methods = runs.methods(model);
  for (const std::string& base : methods) {
    std::vector<std::string> group = {base};
    for (const std::string& method : methods) {
      if (method.starts_with(base + ",")) group.push_back(method);
    }
    if (group.size() == 1) continue;
    const MethodRuns theirs = runs.of(model, base);
    for (const std::string& method : group) {
      const MethodRuns ours = runs.of(model, method);
      table.rows.push_back(
          {"`" + method + "`", mean_cell(over_seeds(ours, peak_bytes_of), 1e-6),
           figure_cell(over_seeds(ours, milliseconds_of)),
           method == base ? "1" : figure_cell(ratio_of(paired(ours, theirs, milliseconds_of))),
           percent_cell(over_seeds(ours, recompute_share_of)),
           figure_cell(over_seeds(ours, validation_loss_of)), quality_cell(ours),
           mean_cell(over_seeds(ours, mask_changes_of))});
    }
  }
  return table.rows.empty() ? "" : markdown(table);
}

}  // namespace reprise::app
