// A Pgac's state as JSON, for checkpoints of a training.
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "influence/pgac_impl.h"
#include "plan/json_tree.h"

namespace reprise {
namespace {

using plan::JsonTree;

constexpr std::string_view kStateFormat = "reprise pgac state";
constexpr std::int64_t kStateVersion = 1;
constexpr std::int64_t kMostLayers = std::int64_t{1} << 32;
constexpr std::int64_t kMostCount = std::int64_t{1} << 53;
constexpr double kMostScore = std::numeric_limits<double>::max();

// A layer without an average has no such field.
void put(nlohmann::ordered_json& layer, const char* field, double value) {
  if (!std::isnan(value)) layer[field] = value;
}

double score_in(const JsonTree& layer, std::string_view field) {
  const JsonTree* const value = layer.find(field);
  return value == nullptr ? std::numeric_limits<double>::quiet_NaN() : value->number(0, kMostScore);
}

}  // namespace

std::string Pgac::state() const {
  const Impl& impl = *impl_;
  nlohmann::ordered_json json = {{"format", kStateFormat},
                                 {"version", kStateVersion},
                                 {"step", impl.report.step},
                                 {"decisions", impl.decision},
                                 {"since_change", impl.since_change},
                                 {"is_set", impl.is_set},
                                 {"changes", impl.report.changes},
                                 {"not_finite", impl.report.not_finite},
                                 {"changed", impl.report.changed},
                                 {"first_writes_input", impl.first_stays},
                                 {"gamma_steps", impl.gamma.steps()},
                                 {"gamma_weights", impl.gamma.weights()}};
  auto& layers = json["layers"] = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < impl.found.size(); ++i) {
    nlohmann::ordered_json layer = {{"name", impl.found[i].name},
                                    {"count", impl.found[i].count},
                                    {"wanted", static_cast<bool>(impl.wanted[i])}};
    if (i < impl.report.mask.size()) layer["kept"] = static_cast<bool>(impl.report.mask[i]);
    put(layer, "average", impl.averages[i]);
    put(layer, "decided", impl.decided[i]);
    layers.push_back(std::move(layer));
  }
  return json.dump(1) + "\n";
}

namespace {

struct ReadState {
  std::vector<PgacLayer> layers;
  std::vector<double> averages, decided;
  std::vector<bool> wanted;
  influence::LearnedGamma::Weights weights{};
  PgacReport report;

  std::int64_t model_layers() const {
    return layers.empty() ? 0 : layers.back().first + layers.back().count;
  }
};

void read_weights(const JsonTree& given, influence::LearnedGamma::Weights& weights) {
  constexpr double kMostWeight = 1e6;
  if (given.items().size() != weights.size()) {
    given.refuse("has " + std::to_string(given.items().size()) + " entries; it must have " +
                 std::to_string(weights.size()));
  }
  for (std::size_t i = 0; i < weights.size(); ++i) {
    weights[i] = given.items()[i].number(-kMostWeight, kMostWeight);
  }
}

void read_layers(const JsonTree& layers, ReadState& state) {
  std::vector<bool>& kept = state.report.mask;
  for (const JsonTree& layer : layers.items()) {
    layer.allow({"name", "count", "wanted", "kept", "average", "decided"});
    const std::int64_t first = state.model_layers();
    state.layers.push_back(
        {layer.at("name").text(), first, layer.at("count").whole(1, kMostLayers)});
    state.wanted.push_back(layer.at("wanted").boolean());
    if (const JsonTree* each = layer.find("kept")) kept.push_back(each->boolean());
    state.averages.push_back(score_in(layer, "average"));
    state.decided.push_back(score_in(layer, "decided"));
  }
  if (!kept.empty() && kept.size() != state.wanted.size()) {
    layers.refuse(
        "says of some layers whether they were kept, and not of others; it must of all, "
        "or of none");
  }
}

// The model's, where they are known.
void expect_layers(const JsonTree& tree, const std::vector<PgacLayer>& read,
                   const std::vector<PgacLayer>& found) {
  if (found.empty()) return;
  if (read.size() != found.size()) {
    tree.refuse("has " + std::to_string(read.size()) + " entries, but the model has " +
                std::to_string(found.size()) + " layers; restore a state of the same model");
  }
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (read[i].name == found[i].name && read[i].count == found[i].count) continue;
    tree.items()[i].refuse("is \"" + read[i].name + "\" of " + std::to_string(read[i].count) +
                           " layers, but the model's is \"" + found[i].name + "\" of " +
                           std::to_string(found[i].count) + "; restore a state of the same model");
  }
}

}  // namespace

void Pgac::restore(const std::string& state, const std::string& origin) {
  const JsonTree tree = JsonTree::parse(state, origin);
  tree.allow({"format", "version", "step", "decisions", "since_change", "is_set", "changes",
              "not_finite", "changed", "first_writes_input", "gamma_steps", "gamma_weights",
              "layers"});
  plan::expect_format(tree, kStateFormat, kStateVersion);
  ReadState read;
  read_weights(tree.at("gamma_weights"), read.weights);
  read_layers(tree.at("layers"), read);
  expect_layers(tree.at("layers"), read.layers, impl_->found);
  read.report.step = tree.at("step").whole(-1, kMostCount);
  read.report.changes = tree.at("changes").whole(0, kMostCount);
  read.report.not_finite = tree.at("not_finite").whole(0, kMostCount);
  read.report.changed = tree.at("changed").whole(0, kMostCount);
  const std::int64_t decisions = tree.at("decisions").whole(0, kMostCount);
  const std::int64_t since_change = tree.at("since_change").whole(0, kMostCount);
  const bool is_set = tree.at("is_set").boolean();
  const bool first_stays = tree.at("first_writes_input").boolean();
  const std::int64_t gamma_steps = tree.at("gamma_steps").whole(0, kMostCount);

  Impl& impl = *impl_;
  impl.meter->clear();
  if (impl.found.empty()) {
    impl.layers_of_model = read.model_layers();
    impl.found = std::move(read.layers);
    impl.first_stays = first_stays;
  }
  impl.averages = std::move(read.averages);
  impl.decided = std::move(read.decided);
  impl.wanted = std::move(read.wanted);
  impl.decision = decisions;
  impl.since_change = since_change;
  impl.is_set = is_set;
  impl.gamma.restore(read.weights, gamma_steps);
  impl.report = std::move(read.report);
  for (const auto& shape : impl.shapes) shape->decision = -1;
}

}  // namespace reprise
