#include "apps/cli/compare/comparison_report.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/cli/training/training_report.h"

namespace reprise::app {

namespace {

nlohmann::json budget_of(const Measured& each) {
  nlohmann::json budget = {{"budget_bytes", each.limit.count},
                           {"fits", !each.is_over_budget},
                           {"per_step", per_step(each.tape, 1)}};
  if (each.asked->is_share()) budget["training_budget_bytes"] = each.training_limit.count;
  return budget;
}

}  // namespace

bool is_shown(const Measured& each) { return each.is_examined || !each.failure.empty(); }

std::string verdict_of(const Measured& each) {
  if (each.difference) return "no";
  if (each.failure.empty()) return "yes";
  return each.is_over_budget ? "does not fit" : "failed";
}

Spread spread_of(const Measured& each, const Measured& plain) {
  Spread spread;
  const std::size_t rounds = std::min(each.milliseconds.size(), plain.milliseconds.size());
  for (std::size_t i = 0; i < rounds; ++i) {
    const double ratio = each.milliseconds[i] / plain.milliseconds[i];
    spread.lowest = i == 0 ? ratio : std::min(spread.lowest, ratio);
    spread.highest = std::max(spread.highest, ratio);
  }
  return spread;
}

std::string percent(double part) { return fmt::format("{:.0f} %", 100 * part); }

nlohmann::json json_of(const Measured& each, const Measured& plain) {
  nlohmann::json json = {{"strategy", each.name}};
  if (each.is_examined) {
    json.update({{"peak_bytes", each.peak.count},
                 {"activation_bytes", each.activations.count},
                 {"recompute_share", each.recompute_share},
                 {"gradients_equal", !each.difference}});
  }
  if (!each.milliseconds.empty()) {
    const Spread spread = spread_of(each, plain);
    json.update({{"timed_steps", each.milliseconds.size()},
                 {"ms_per_step", each.typical_milliseconds()},
                 {"ratio_to_none", each.ratio_to(plain)},
                 {"lowest_ratio", spread.lowest},
                 {"highest_ratio", spread.highest}});
  }
  if (each.asked) json.update(budget_of(each));
  if (each.pipelined != nullptr) {
    json["pipeline"] = each.pipelined->json();
    json["gradients_compared_with"] = "the same micro-batches without a pipeline";
  }
  if (!each.failure.empty()) json["failure"] = each.failure;
  if (each.difference) json["first_difference"] = each.difference->json();
  return json;
}

nlohmann::json head_of(const CompareOptions& options, Comparison& comparison,
                       const Measured& plain) {
  return {{"options", describe(options)},
          {"device", comparison.network().device().str()},
          {"threads", at::get_num_threads()},
          {"timed_steps", plain.milliseconds.size()},
          {"live_before_step_bytes", comparison.live().count}};
}

std::string misfits_of(const std::vector<Measured>& all) {
  std::string text;
  for (const Measured& each : all) {
    if (each.is_over_budget) text += fmt::format("{}: {}\n", escape(each.name), each.failure);
  }
  return text;
}

Facts facts_of(const CompareOptions& options, Comparison& comparison, const TextData& data) {
  Facts facts;
  Network& network = comparison.network();
  network.describe(facts);
  facts.add("data", fmt::format("{}, {} sequences a step", data.origin, options.batch));
  facts.add("machine", describe_machine(options, network.device()));
  if (const auto& training = comparison.training()) {
    facts.add("shares",
              fmt::format("100% is {}, the peak of a plain training step with AdamW's moments and "
                          "without gradients before it",
                          to_string(training->peak)));
  }
  return facts;
}

}  // namespace reprise::app
