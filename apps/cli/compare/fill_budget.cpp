#include "apps/cli/compare/fill_budget.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <reprise/error.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "apps/cli/compare/comparison.h"
#include "apps/cli/compare/comparison_report.h"
#include "apps/cli/io/failure.h"
#include "apps/cli/io/figures.h"
#include "apps/cli/io/interrupt.h"
#include "apps/cli/io/progress.h"
#include "apps/cli/io/streams.h"
#include "apps/cli/training/device.h"
#include "apps/cli/training/memory_need.h"

namespace reprise::app {
namespace {

constexpr const char* kFillCommand = "reprise compare";
constexpr std::int64_t kMostBatch = std::int64_t{1} << 20;

// Finds the largest batch that fits, by doubling and halving with steps that run; 0 if not even one
// sequence does.
class BatchSearch {
 public:
  BatchSearch(Comparison& comparison, Measured& measured, Bytes limit)
      : comparison_(comparison), measured_(measured), limit_(limit) {}

  std::int64_t find() {
    std::int64_t fits = 0, fails = 1;
    while (fails <= kMostBatch && !is_far_beyond(fits, fails) && is_enough(fails)) {
      fits = fails;
      fails *= 2;
    }
    while (fails - fits > 1) {
      const std::int64_t middle = fits + (fails - fits) / 2;
      (is_enough(middle) ? fits : fails) = middle;
    }
    // A batch that seemed far beyond has not been tried.
    while (fits > 0 && fits < kMostBatch && !tried_.contains(fits + 1) && is_enough(fits + 1))
      ++fits;
    return fits;
  }

 private:
  // Peaks grow linearly with the batch. A batch that must fail is not tried, because it may need
  // more memory than the machine has.
  bool is_far_beyond(std::int64_t fits, std::int64_t next) const {
    if (fits < 2) return false;
    const Bytes last = tried_.at(fits), before = tried_.at(fits / 2);
    const double growth = (last - before).megabytes() / static_cast<double>(fits - fits / 2);
    const double expected = last.megabytes() + growth * static_cast<double>(next - fits);
    constexpr double kSurely = 1.05;
    return expected > kSurely * limit_.megabytes();
  }

  bool is_enough(std::int64_t batch) {
    interrupt_.end_if_interrupted("anything was measured");
    line_.show({fmt::format("{}: batch {}", escape(measured_.name), batch)});
    measured_.batch = batch;
    return (tried_[batch] = comparison_.peak_of(measured_)) <= limit_;
  }

  Comparison& comparison_;
  Measured& measured_;
  const Bytes limit_;
  std::map<std::int64_t, Bytes> tried_;
  const InterruptScope interrupt_;
  ProgressLine line_;
};

double samples_a_second(const Measured& each) {
  return 1e3 * static_cast<double>(each.batch) / each.typical_milliseconds();
}

// The median over the rounds of samples a second, in multiples of the first row's.
double throughput_ratio(const Measured& each, const Measured& first) {
  return static_cast<double>(each.batch) / static_cast<double>(first.batch) / each.ratio_to(first);
}

void print_filled(const CompareOptions& options, const std::vector<Measured>& all, Bytes limit,
                  Comparison& comparison, const TextData& data) {
  Facts facts;
  comparison.network().describe(facts);
  facts.add("data", data.origin);
  facts.add("machine", describe_machine(options, comparison.network().device()));
  facts.add("budget", fmt::format("{}, of all bytes alive", to_string(limit)));
  print_result(facts.text() + "\n");
  TextTable table({"strategy", "batch", "peak", "ms/step", "samples/s", "of the first", "spread"});
  for (const Measured& each : all) {
    std::vector<std::string> row = {escape(each.name),
                                    fmt::format("{}", each.batch),
                                    "-",
                                    "-",
                                    "-",
                                    "-",
                                    each.batch > 0 ? "-" : "does not fit"};
    if (each.is_examined) row[2] = to_string(each.peak);
    if (!each.milliseconds.empty()) {
      // The spread is one of times, so the fastest round has the lowest ratio.
      const Spread spread = spread_of(each, all.front());
      const double batches =
          static_cast<double>(each.batch) / static_cast<double>(all.front().batch);
      row[3] = format_milliseconds(each.typical_milliseconds());
      row[4] = fmt::format("{:.2f}", samples_a_second(each));
      row[5] = fmt::format("{:.2f}×", throughput_ratio(each, all.front()));
      row[6] = fmt::format("{:.2f}–{:.2f}", batches / spread.highest, batches / spread.lowest);
    }
    if (!each.failure.empty()) row[6] = "failed";
    table.add(row);
  }
  print_result(table.text() + "\n");
  print_result(
      "batch: the largest whose step, weights and gradients included, stays in the budget\n");
}

void print_filled_json(const CompareOptions& options, const std::vector<Measured>& all, Bytes limit,
                       Comparison& comparison) {
  nlohmann::json rows = nlohmann::json::array();
  for (const Measured& each : all) {
    nlohmann::json row = {{"strategy", each.name}, {"batch", each.batch}, {"fits", each.batch > 0}};
    if (each.is_examined) row["peak_bytes"] = each.peak.count;
    if (!each.milliseconds.empty()) {
      const Spread spread = spread_of(each, all.front());
      const double batches =
          static_cast<double>(each.batch) / static_cast<double>(all.front().batch);
      row.update({{"timed_steps", each.milliseconds.size()},
                  {"ms_per_step", each.typical_milliseconds()},
                  {"samples_per_second", samples_a_second(each)},
                  {"ratio_to_first", throughput_ratio(each, all.front())},
                  {"lowest_ratio", batches / spread.highest},
                  {"highest_ratio", batches / spread.lowest}});
    }
    if (!each.failure.empty()) row["failure"] = each.failure;
    rows.push_back(std::move(row));
  }
  const nlohmann::json result = {{"options", describe(options)},
                                 {"device", comparison.network().device().str()},
                                 {"threads", at::get_num_threads()},
                                 {"budget_bytes", limit.count},
                                 {"strategies", std::move(rows)}};
  print_object(result);
}

}  // namespace

int fill_budget(const CompareOptions& options) {
  const InterruptScope interrupt;
  const auto [device, data] = prepare(options);
  const AskedBudget& asked = options.budgets.front();
  std::vector<Measured> all = strategies_to_measure(options.strategies, device);
  interrupt.end_if_interrupted("anything was measured");

  Comparison comparison(options, data, device);
  // Shares are shares of the plain step at --batch.
  Measured plain(models::Strategy::parse("none"));
  if (asked.is_share()) {
    comparison.measure_plain(plain);
  } else {
    plain.batch = 1;
    comparison.measure_plain(plain);
  }
  const Bytes limit = asked.limit(comparison.live(), comparison.plain_peak());
  if (device.is_cpu() && limit.megabytes() * 1e6 > physical_memory()) {
    throw UsageError(
        fmt::format("--budget {} comes to {}, and this machine has {}: no batch that fills it can "
                    "be run; give less",
                    asked.text(), to_string(limit),
                    to_string(Bytes(static_cast<std::int64_t>(physical_memory())))));
  }
  check_budget_memory(asked.text(), limit, device);
  for (Measured& each : all) each.batch = BatchSearch(comparison, each, limit).find();
  std::vector<Measured> fitting;
  std::ranges::copy_if(all, std::back_inserter(fitting),
                       [](const Measured& each) { return each.batch > 0; });
  if (fitting.empty()) {
    print_error_line(fmt::format(
        "{}: no step of one sequence fits in {}, and {} are live before it; give a larger "
        "--budget, or a smaller model",
        kFillCommand, to_string(limit), to_string(comparison.live())));
    return kOverBudget;
  }
  const int signal = comparison.run(fitting);
  for (const Measured& each : all) {
    if (each.batch == 0) fitting.push_back(each);
  }
  options.json ? print_filled_json(options, fitting, limit, comparison)
               : print_filled(options, fitting, limit, comparison, data);
  return report_end(kFillCommand, signal, report_differences(fitting, kFillCommand));
}

}  // namespace reprise::app
