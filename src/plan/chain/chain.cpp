// Chains as data: sums, checks, and JSON.
#include "reprise/chain.h"

#include <reprise/error.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "plan/chain/chain_walk.h"
#include "plan/io/json_tree.h"
#include "plan/io/text_file.h"

namespace reprise {
namespace {

using plan::JsonTree;

constexpr std::string_view kChainFormat = "reprise chain";
constexpr std::int64_t kChainVersion = 1;
// Of anything that is added up; far above any machine, and far below what would overflow.
constexpr Bytes kMost{std::int64_t{1} << 52};
constexpr double kMostSeconds = 1e9;

// One row serves reading, writing and checking.
struct BytesField {
  const char* name;
  Bytes ChainStage::*member;
  bool is_required;
  bool may_be_negative = false;
};
constexpr BytesField kBytes[] = {
    {"output_bytes", &ChainStage::output, true},
    {"saved_bytes", &ChainStage::saved, true},
    {"forward_temporary_bytes", &ChainStage::forward_temporaries, false},
    {"keep_temporary_bytes", &ChainStage::keep_temporaries, false},
    {"backward_temporary_bytes", &ChainStage::backward_temporaries, false, true},
    {"output_gradient_bytes", &ChainStage::output_gradient, false},
    {"parameter_gradient_bytes", &ChainStage::parameter_gradients, false},
};
struct SecondsField {
  const char* name;
  Seconds ChainStage::*member;
};
constexpr SecondsField kSeconds[] = {
    {"forward_seconds", &ChainStage::forward},
    {"backward_seconds", &ChainStage::backward},
};

struct FlagField {
  const char* name;
  bool ChainStage::*member;
};
constexpr FlagField kFlags[] = {
    {"saves_output", &ChainStage::saves_output},
    {"needs_input", &ChainStage::needs_input},
};

ChainStage stage_of(const JsonTree& tree) {
  tree.allow({"name", kSeconds[0].name, kSeconds[1].name, kBytes[0].name, kBytes[1].name,
              kBytes[2].name, kBytes[3].name, kBytes[4].name, kBytes[5].name, kBytes[6].name,
              "layers", kFlags[0].name, kFlags[1].name});
  ChainStage stage;
  if (const JsonTree* name = tree.find("name")) stage.name = name->text();
  for (const SecondsField& field : kSeconds) {
    stage.*field.member = Seconds(tree.at(field.name).number(0, kMostSeconds));
  }
  for (const BytesField& field : kBytes) {
    const JsonTree* value = field.is_required ? &tree.at(field.name) : tree.find(field.name);
    if (value == nullptr) continue;
    stage.*field.member =
        Bytes(value->whole(field.may_be_negative ? -kMost.count : 0, kMost.count));
  }
  for (const FlagField& field : kFlags) {
    if (const JsonTree* flag = tree.find(field.name)) stage.*field.member = flag->boolean();
  }
  if (const JsonTree* layers = tree.find("layers")) {
    stage.layers = layers->whole(1, plan::kMostLayers);
  }
  if (tree.find("output_gradient_bytes") == nullptr) stage.output_gradient = stage.output;
  if (stage.saves_output && stage.saved < stage.output) {
    tree.at("saved_bytes")
        .refuse("is " + std::to_string(stage.saved.count) + ", less than output_bytes, " +
                std::to_string(stage.output.count) +
                ", which it includes; give more, or set saves_output to false");
  }
  return stage;
}

}  // namespace

Seconds Chain::forward() const {
  Seconds sum{};
  for (const ChainStage& stage : stages) sum += stage.forward;
  return sum;
}

Seconds Chain::backward() const {
  Seconds sum{};
  for (const ChainStage& stage : stages) sum += stage.backward;
  return sum;
}

Chain Chain::parse(std::string_view json, const std::string& origin) {
  const JsonTree tree = JsonTree::parse(json, origin);
  tree.allow({"format", "version", "input_gradient_bytes", "stages"});
  plan::expect_format(tree, kChainFormat, kChainVersion);
  Chain chain;
  if (const JsonTree* gradient = tree.find("input_gradient_bytes")) {
    chain.input_gradient = Bytes(gradient->whole(0, kMost.count));
  }
  for (const JsonTree& stage : tree.at("stages").items()) chain.stages.push_back(stage_of(stage));
  if (chain.stages.empty()) tree.at("stages").refuse("a chain has at least one stage");
  try {
    chain.check();
  } catch (const UsageError& error) {
    tree.at("stages").refuse(error.what());
  }
  return chain;
}

Chain Chain::read(const std::filesystem::path& file) {
  return parse(plan::read_text_file(file, "the chain", plan::JsonTree::kMostText), file.string());
}

std::string Chain::json() const {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ChainStage& stage : stages) {
    nlohmann::ordered_json row = {{"name", stage.name}};
    for (const SecondsField& field : kSeconds) row[field.name] = (stage.*field.member).count();
    for (const BytesField& field : kBytes) row[field.name] = (stage.*field.member).count;
    for (const FlagField& field : kFlags) row[field.name] = stage.*field.member;
    row["layers"] = stage.layers;
    list.push_back(std::move(row));
  }
  const nlohmann::ordered_json whole = {{"format", kChainFormat},
                                        {"version", kChainVersion},
                                        {"input_gradient_bytes", input_gradient.count},
                                        {"stages", std::move(list)}};
  // Names may be any bytes.
  return whole.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

void Chain::check() const {
  if (stages.empty()) throw UsageError("the chain has no stage; a chain has at least one");
  if (input_gradient < Bytes(0) || input_gradient > kMost) {
    throw UsageError("input_gradient_bytes is " + std::to_string(input_gradient.count) +
                     "; it must be between 0 and 2^52");
  }
  Bytes sum = input_gradient;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const ChainStage& stage = stages[i];
    const std::string where = plan::stage_text(*this, static_cast<std::int64_t>(i)) + ": ";
    for (const SecondsField& field : kSeconds) {
      const double seconds = (stage.*field.member).count();
      if (!(seconds >= 0) || seconds > kMostSeconds) {
        throw UsageError(where + field.name + " is " + std::to_string(seconds) +
                         "; it must be between 0 and 1e9");
      }
    }
    for (const BytesField& field : kBytes) {
      const Bytes bytes = stage.*field.member;
      const Bytes least = field.may_be_negative ? -kMost : Bytes(0);
      if (bytes < least || bytes > kMost) {
        throw UsageError(where + field.name + " is " + std::to_string(bytes.count) +
                         "; it must be between " + std::to_string(least.count) + " and 2^52");
      }
      sum += std::max(bytes, Bytes(0));
    }
    if (stage.saves_output && stage.saved < stage.output) {
      throw UsageError(where + "saved_bytes is " + std::to_string(stage.saved.count) +
                       ", less than output_bytes, " + std::to_string(stage.output.count) +
                       ", which it includes; give more, or set saves_output to false");
    }
    if (stage.layers < 1 || stage.layers > plan::kMostLayers) {
      throw UsageError(where + "layers is " + std::to_string(stage.layers) +
                       "; it must be between 1 and 1e9");
    }
    if (sum > kMost) {
      throw UsageError(where + "the bytes of the chain up to it are " + std::to_string(sum.count) +
                       "; they must be at most 2^52");
    }
  }
}

}  // namespace reprise
