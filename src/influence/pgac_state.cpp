// A Pgac's state as JSON, for checkpoints of a training.
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "influence/lossy_state.h"
#include "influence/pgac_impl.h"
#include "plan/io/json_tree.h"

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

// What decides how a training goes on, as texts to be compared. Not the budget, which may be that
// of another machine, nor steps where nothing goes by them.
nlohmann::ordered_json options_json(const PgacOptions& options) {
  const auto text = [](const auto& value) { return nlohmann::json(value).dump(); };
  const GammaSchedule& gamma = options.gamma;
  constexpr const char* kSchedules[] = {"constant", "linear", "cosine", "learned"};
  constexpr const char* kRankings[] = {"influence", "cost", "influence times cost", "random"};
  nlohmann::ordered_json json = {
      {"alpha", text(options.alpha)},
      {"quantile", text(options.quantile)},
      {"gamma", std::string(kSchedules[static_cast<int>(gamma.kind)]) + " from " +
                    text(gamma.first) + " to " + text(gamma.last)},
      {"start", options.start == PgacOptions::Start::kZero ? "zero" : "first score"},
      {"follow_pseudocode", text(options.follow_pseudocode)},
      {"ranking", kRankings[static_cast<int>(options.ranking)]},
      {"fill_budget", text(options.fill_budget)},
      {"exact_search", text(options.exact_search)},
      {"hysteresis", text(options.hysteresis)},
      {"steps_between_changes", text(options.steps_between_changes)},
      {"stride", text(options.stride)},
      {"seed", text(options.seed)}};
  if (gamma.kind != GammaSchedule::Kind::kConstant) json["steps"] = text(options.steps);
  if (!options.lossy) return json;
  const LossyOptions& lossy = *options.lossy;
  json["lossy.gradient_error"] = text(lossy.gradient_error);
  json["lossy.int4_threshold"] = text(lossy.int4_threshold);
  json["lossy.min_bytes"] = text(lossy.min_bytes.count);
  json["lossy.block"] = text(lossy.block);
  json["lossy.seed"] = text(lossy.seed);
  json["lossy.audit_every"] = text(lossy.audit_every);
  return json;
}

// States of before there were options in them have none.
void expect_options(const JsonTree& tree, const PgacOptions& options) {
  const JsonTree* const saved = tree.find("options");
  if (saved == nullptr) return;
  const nlohmann::ordered_json here = options_json(options);
  for (const auto& [name, value] : here.items()) {
    const JsonTree* const before = saved->find(name);
    const std::string now = value.get<std::string>();
    if (before != nullptr && before->text() == now) continue;
    saved->refuse("has " + name + (before == nullptr ? " missing" : " as " + before->text()) +
                  ", and this Pgac's is " + now +
                  "; restore a state with the options that it was made with");
  }
}

}  // namespace

std::string Pgac::state() const {
  const Impl& impl = *impl_;
  nlohmann::ordered_json json = {{"format", kStateFormat},
                                 {"version", kStateVersion},
                                 {"options", options_json(impl.options)},
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
  put(json, "threshold", impl.report.threshold);
  if (impl.lossy) json["lossy"] = influence::lossy_json(impl.lossy->state());
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
  tree.allow({"format", "version", "options", "step", "decisions", "since_change", "is_set",
              "changes", "not_finite", "changed", "first_writes_input", "gamma_steps",
              "gamma_weights", "layers", "threshold", "lossy"});
  plan::expect_format(tree, kStateFormat, kStateVersion);
  ReadState read;
  read_weights(tree.at("gamma_weights"), read.weights);
  read_layers(tree.at("layers"), read);
  expect_layers(tree.at("layers"), read.layers, impl_->found);
  read.report.threshold = score_in(tree, "threshold");
  read.report.step = tree.at("step").whole(-1, kMostCount);
  read.report.changes = tree.at("changes").whole(0, kMostCount);
  read.report.not_finite = tree.at("not_finite").whole(0, kMostCount);
  read.report.changed = tree.at("changed").whole(0, kMostCount);
  const std::int64_t decisions = tree.at("decisions").whole(0, kMostCount);
  const std::int64_t since_change = tree.at("since_change").whole(0, kMostCount);
  const bool is_set = tree.at("is_set").boolean();
  const bool first_stays = tree.at("first_writes_input").boolean();
  const std::int64_t gamma_steps = tree.at("gamma_steps").whole(0, kMostCount);
  const JsonTree* const lossy = tree.find("lossy");
  if ((lossy != nullptr) != (impl_->lossy != nullptr)) {
    tree.refuse(std::string("was made ") + (lossy != nullptr ? "with" : "without") +
                " the lossy tier; restore it with the options that it was made with");
  }
  expect_options(tree, impl_->options);
  influence::LossyTier::State lossy_state;
  if (lossy != nullptr) lossy_state = influence::read_lossy(*lossy, read.layers.size());

  Impl& impl = *impl_;
  impl.meter->clear();
  if (impl.lossy) impl.lossy->restore(std::move(lossy_state));
  if (impl.found.empty()) {
    impl.layers_of_model = read.model_layers();
    impl.found = std::move(read.layers);
    impl.first_stays = first_stays;
    impl.is_restored = !impl.found.empty();
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
