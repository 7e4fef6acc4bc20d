#include "influence/lossy_state.h"

#include <string>
#include <utility>
#include <vector>

namespace reprise::influence {
namespace {

using plan::JsonTree;

constexpr std::int64_t kMostCount = std::int64_t{1} << 53;
// Sums of products of such numbers are finite.
constexpr double kMostKnown = 1e60;

// A number from 0, or what stands for none.
double known_in(const JsonTree& value) {
  const double number = value.number(LayerNoise::kUnknown, kMostKnown);
  if (number < 0 && number != LayerNoise::kUnknown) {
    value.refuse("is " + std::to_string(number) + "; it must be from 0, or -1 for unknown");
  }
  return number;
}

const std::vector<JsonTree>& items_of(const JsonTree& list, std::size_t count, const char* each) {
  if (list.items().size() == count) return list.items();
  list.refuse("has " + std::to_string(list.items().size()) + " entries; it must have " +
              std::to_string(count) + ", one for each " + each);
}

std::vector<double> numbers_in(const JsonTree& list, std::size_t count, double least) {
  std::vector<double> numbers;
  for (const JsonTree& each : items_of(list, count, "layer")) {
    numbers.push_back(each.number(least, kMostKnown));
  }
  return numbers;
}

Compression route_in(const JsonTree& layer, const char* field) {
  return static_cast<Compression>(
      layer.at(field).whole(0, static_cast<std::int64_t>(Compression::kInt4)));
}

nlohmann::ordered_json json_of(const Sensitivities::State& state) {
  nlohmann::ordered_json audits = nlohmann::ordered_json::array();
  for (const std::vector<AuditedLayer>& audit : state.audits) {
    nlohmann::ordered_json layers = nlohmann::ordered_json::array();
    for (const AuditedLayer& of : audit) {
      layers.push_back({of.sensitivity, of.incoherence, of.carriers});
    }
    audits.push_back(std::move(layers));
  }
  return {{"audits", std::move(audits)},
          {"ratios", state.ratios},
          {"incoherences", state.incoherences}};
}

void expect_window(const JsonTree& list, std::size_t most) {
  if (list.items().size() <= most) return;
  list.refuse("has " + std::to_string(list.items().size()) + " entries; it must have at most " +
              std::to_string(most));
}

Sensitivities::State read_sensitivities(const JsonTree& tree, std::size_t count) {
  tree.allow({"audits", "ratios", "incoherences"});
  for (const char* field : {"audits", "ratios", "incoherences"}) {
    expect_window(tree.at(field), Sensitivities::kWindow);
  }
  Sensitivities::State state;
  for (const JsonTree& audit : tree.at("audits").items()) {
    std::vector<AuditedLayer>& layers = state.audits.emplace_back();
    for (const JsonTree& layer : items_of(audit, count, "layer")) {
      const auto& numbers = items_of(layer, 3, "figure");
      layers.push_back({.sensitivity = numbers[0].number(0, kMostKnown),
                        .incoherence = numbers[1].number(0, kMostKnown),
                        .carriers = numbers[2].number(0, kMostKnown)});
    }
  }
  for (const JsonTree& ratio : tree.at("ratios").items()) {
    // Logarithms are taken of them.
    state.ratios.push_back(ratio.number(1 / kMostKnown, kMostKnown));
  }
  for (const JsonTree& step : tree.at("incoherences").items()) {
    state.incoherences.push_back(numbers_in(step, count, 0));
  }
  return state;
}

nlohmann::ordered_json json_of(const std::vector<Regimes::Audited>& regimes) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const Regimes::Audited& each : regimes) {
    json.push_back({{"inputs", each.inputs}, {"weights", each.weights}});
  }
  return json;
}

std::vector<Regimes::Audited> read_regimes(const JsonTree& list, std::size_t count) {
  expect_window(list, Regimes::kWindow);
  std::vector<Regimes::Audited> regimes;
  for (const JsonTree& each : list.items()) {
    each.allow({"inputs", "weights"});
    Regimes::Audited& audited = regimes.emplace_back();
    for (const JsonTree& input : items_of(each.at("inputs"), count, "layer")) {
      std::vector<Features>& runs = audited.inputs.emplace_back();
      for (const JsonTree& run : input.items()) {
        Features& features = runs.emplace_back();
        const auto numbers = numbers_in(run, features.size(), -kMostKnown);
        std::copy(numbers.begin(), numbers.end(), features.begin());
      }
    }
    audited.weights = numbers_in(each.at("weights"), count, -kMostKnown);
  }
  return regimes;
}

}  // namespace

nlohmann::ordered_json lossy_json(const LossyTier::State& state) {
  const LossyTier::Turns& turns = state.turns;
  nlohmann::ordered_json json = {{"steps", turns.steps},
                                 {"next_audit", turns.next},
                                 {"audit_interval", turns.interval},
                                 {"audit_credit", turns.credit},
                                 {"audits_spoilt", turns.spoilt},
                                 {"is_inspected", state.is_inspected},
                                 {"off", state.off},
                                 {"audits", state.audits},
                                 {"audit_failures", state.failures},
                                 {"audited_error", state.audited_error},
                                 {"next_stream", state.next_stream}};
  auto& layers = json["layers"] = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < state.layers.size(); ++i) {
    const LayerNoise& layer = state.layers[i];
    layers.push_back({{"wanted_route", static_cast<int>(state.wanted[i])},
                      {"route", static_cast<int>(state.chosen[i])},
                      {"spread", layer.spread},
                      {"values", layer.values},
                      {"sensitivity", layer.sensitivity}});
  }
  json["sensitivities"] = json_of(state.sensitivities);
  json["regimes"] = json_of(state.regimes);
  return json;
}

LossyTier::State read_lossy(const JsonTree& tree, std::size_t count) {
  tree.allow({"steps", "next_audit", "audit_interval", "audit_credit", "audits_spoilt",
              "is_inspected", "off", "audits", "audit_failures", "audited_error", "next_stream",
              "layers", "sensitivities", "regimes"});
  LossyTier::State state;
  LossyTier::Turns& turns = state.turns;
  turns.steps = tree.at("steps").whole(0, kMostCount);
  turns.next = tree.at("next_audit").whole(0, kMostCount);
  turns.interval = tree.at("audit_interval").whole(1, std::int64_t{1} << 32);
  turns.credit = tree.at("audit_credit").number(-kMostKnown, kMostKnown);
  turns.spoilt = tree.at("audits_spoilt").whole(0, kMostCount);
  state.is_inspected = tree.at("is_inspected").boolean();
  state.off = tree.at("off").text();
  state.audits = tree.at("audits").whole(0, kMostCount);
  state.failures = tree.at("audit_failures").whole(0, kMostCount);
  state.audited_error = known_in(tree.at("audited_error"));
  state.next_stream = static_cast<std::uint64_t>(tree.at("next_stream").whole(0, kMostCount));
  for (const JsonTree& layer : items_of(tree.at("layers"), count, "layer")) {
    layer.allow({"wanted_route", "route", "spread", "values", "sensitivity"});
    state.layers.push_back({.spread = known_in(layer.at("spread")),
                            .values = layer.at("values").number(0, kMostKnown),
                            .sensitivity = known_in(layer.at("sensitivity"))});
    state.wanted.push_back(route_in(layer, "wanted_route"));
    state.chosen.push_back(route_in(layer, "route"));
  }
  state.sensitivities = read_sensitivities(tree.at("sensitivities"), count);
  state.regimes = read_regimes(tree.at("regimes"), count);
  return state;
}

}  // namespace reprise::influence
