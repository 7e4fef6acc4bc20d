// One place for what `reprise compare` and `reprise frontier` both say.
#include "apps/reprise/comparison_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace reprise::app {

namespace {

nlohmann::json budget_of(const Measured& each) {
  return {{"budget_bytes", each.limit.count},
          {"dropped", each.tape.dropped},
          {"dropped_bytes", each.tape.dropped_bytes.count},
          {"replayed", each.tape.replayed},
          {"replay_seconds", each.tape.replay_seconds},
          {"fits", !each.is_over_budget}};
}

}  // namespace

bool is_shown(const Measured& each) { return each.is_examined || !each.failure.empty(); }

std::string verdict_of(const Measured& each) {
  if (each.difference) return "no";
  if (each.failure.empty()) return "yes";
  return each.is_over_budget ? "does not fit" : "failed";
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
    json.update(
        {{"ms_per_step", each.typical_milliseconds()}, {"ratio_to_none", each.ratio_to(plain)}});
  }
  if (each.asked) json.update(budget_of(each));
  if (!each.failure.empty()) json["failure"] = each.failure;
  if (each.difference) json["first_difference"] = each.difference->json();
  return json;
}

Facts facts_of(const CompareOptions& options, Network& network, const TextData& data) {
  Facts facts;
  network.describe(facts);
  facts.add("data", fmt::format("{}, {} sequences a step", data.origin, options.batch));
  facts.add("machine", describe_machine(options, network.device()));
  return facts;
}

}  // namespace reprise::app
