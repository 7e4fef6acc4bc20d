// Schedules as JSON, by the same reader as chains, whose errors name lines and fields.
#include <reprise/chain.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include "plan/chain/chain_walk.h"
#include "plan/io/json_tree.h"
#include "plan/io/text_file.h"

namespace reprise {
namespace {

using plan::JsonTree;

constexpr std::string_view kScheduleFormat = "reprise schedule";
constexpr std::int64_t kScheduleVersion = 1;
// In the order of ScheduleOp::Kind.
constexpr std::string_view kKinds[] = {"keep", "checkpoint", "drop", "backward", "offload", "load"};

ScheduleOp op_of(const JsonTree& tree) {
  const std::vector<JsonTree>& items = tree.items();
  if (items.size() != 2) tree.refuse("must be an operation and its stage, such as [\"keep\", 0]");
  const auto* const found = std::find(std::begin(kKinds), std::end(kKinds), items[0].text());
  if (found == std::end(kKinds)) {
    items[0].refuse("is \"" + items[0].text() +
                    "\"; choose from keep, checkpoint, drop, backward, offload, load");
  }
  const std::int64_t stage = items[1].whole(0, std::numeric_limits<std::int32_t>::max());
  return {static_cast<ScheduleOp::Kind>(found - std::begin(kKinds)),
          static_cast<std::int32_t>(stage)};
}

}  // namespace

Schedule Schedule::parse(std::string_view json, const std::string& origin) {
  const JsonTree tree = JsonTree::parse(json, origin);
  tree.allow({"format", "version", "layers", "steps"});
  plan::expect_format(tree, kScheduleFormat, kScheduleVersion);
  Schedule schedule;
  if (const JsonTree* layers = tree.find("layers")) {
    for (const JsonTree& each : layers->items())
      schedule.layers.push_back(each.whole(1, plan::kMostLayers));
  }
  for (const JsonTree& op : tree.at("steps").items()) schedule.ops.push_back(op_of(op));
  return schedule;
}

Schedule Schedule::read(const std::filesystem::path& file) {
  return parse(plan::read_text_file(file, "the schedule", JsonTree::kMostText), file.string());
}

std::string Schedule::json() const {
  nlohmann::ordered_json whole = {{"format", kScheduleFormat}, {"version", kScheduleVersion}};
  if (!layers.empty()) whole["layers"] = layers;
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ScheduleOp& op : ops) {
    list.push_back({kKinds[static_cast<std::size_t>(op.kind)], op.stage});
  }
  whole["steps"] = std::move(list);
  return whole.dump() + "\n";
}

}  // namespace reprise
