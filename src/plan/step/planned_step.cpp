#include "plan/step/planned_step.h"

#include <reprise/error.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "plan/io/json_tree.h"
#include "plan/io/text_file.h"

namespace reprise::plan {
namespace {

constexpr std::string_view kPlanFormat = "reprise learned plan";
constexpr std::int64_t kPlanVersion = 1;
constexpr double kMostTimes = 1e9;
constexpr ValueNumber kMostNumbers = 1 << 24;
// In the order of StepScript::Do.
constexpr std::string_view kActions[] = {"make", "drop", "forget"};

std::string hex(std::uint64_t bits) {
  char text[17] = "0000000000000000";
  char digits[17];
  const auto end = std::to_chars(std::begin(digits), std::end(digits), bits, 16).ptr;
  std::copy(std::begin(digits), end, text + 16 - (end - digits));
  return text;
}

std::uint64_t hash_in(const JsonTree& tree) {
  const std::string& text = tree.text();
  std::uint64_t bits = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bits, 16);
  if (text.size() != 16 || error != std::errc() || end != text.data() + text.size()) {
    tree.refuse("is \"" + text + "\"; a hash has 16 hexadecimal digits");
  }
  return bits;
}

std::uint64_t checksum(const PlannedStep& step) {
  const StepScript& script = *step.script;
  PrefixHash hash;
  hash.add(static_cast<std::uint64_t>(step.limit.count));
  hash.add(std::bit_cast<std::uint64_t>(step.slowdown));
  hash.add(std::bit_cast<std::uint64_t>(step.bound));
  for (const std::uint64_t prefix : script.prefixes) hash.add(prefix);
  for (const std::uint32_t begin : script.begins) hash.add(begin);
  for (const StepScript::Action& action : script.actions) {
    hash.add(std::uint64_t{action.value} << 2 | static_cast<std::uint64_t>(action.what));
  }
  return hash.value();
}

// "make 17, drop 3": a text takes less of a reader than a list of lists.
void add_actions(const JsonTree& tree, StepScript& script) {
  std::string_view rest = tree.text();
  while (!rest.empty()) {
    const std::string_view each = rest.substr(0, rest.find(", "));
    rest.remove_prefix(std::min(rest.size(), each.size() + 2));
    const std::size_t space = each.find(' ');
    const std::string_view name = each.substr(0, space);
    const auto* const found = std::find(std::begin(kActions), std::end(kActions), name);
    if (found == std::end(kActions)) {
      tree.refuse("has \"" + std::string(name) + "\"; choose from make, drop, forget");
    }
    const std::string_view number = space < each.size() ? each.substr(space + 1) : "";
    ValueNumber value = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (error != std::errc() || end != number.data() + number.size() || value >= kMostNumbers) {
      tree.refuse("has \"" + std::string(each) + "\"; an action has a value from 0 to " +
                  std::to_string(kMostNumbers - 1) + ", such as \"drop 17\"");
    }
    script.actions.push_back({static_cast<StepScript::Do>(found - std::begin(kActions)), value});
  }
}

// A call is its hash, and what is done before and after it.
void add_call(const JsonTree& tree, StepScript& script) {
  const std::vector<JsonTree>& items = tree.items();
  if (items.size() != 1 && items.size() != 3) {
    tree.refuse("must be a hash, or a hash and the actions before and after the operator");
  }
  script.prefixes.push_back(hash_in(items[0]));
  for (std::size_t part = 1; part <= 2; ++part) {
    if (items.size() == 3) add_actions(items[part], script);
    script.begins.push_back(static_cast<std::uint32_t>(script.actions.size()));
  }
}

std::string listed(std::span<const StepScript::Action> actions) {
  std::string text;
  for (const StepScript::Action& each : actions) {
    if (!text.empty()) text += ", ";
    text += kActions[static_cast<std::size_t>(each.what)];
    text += " " + std::to_string(each.value);
  }
  return text;
}

}  // namespace

PlannedStep parse_planned_step(std::string_view json, const std::string& origin) {
  const JsonTree tree = JsonTree::parse(json, origin);
  tree.allow(
      {"format", "version", "step", "limit_bytes", "slowdown", "bound", "operators", "checksum"});
  expect_format(tree, kPlanFormat, kPlanVersion);
  auto script = std::make_shared<StepScript>();
  const PlannedStep step{.limit = Bytes(tree.at("limit_bytes").whole(1)),
                         .slowdown = tree.at("slowdown").number(1, kMostTimes),
                         .bound = tree.at("bound").number(1, kMostTimes),
                         .script = script};
  for (const JsonTree& each : tree.at("operators").items()) add_call(each, *script);
  if (script->prefixes.empty()) tree.at("operators").refuse("is empty; a step has operators");
  script->note_named();
  if (hash_in(tree.at("step")) != script->hash()) {
    tree.at("step").refuse("is " + tree.at("step").text() + ", and its operators' hash is " +
                           hex(script->hash()) + ": the plan was changed; make it again");
  }
  if (hash_in(tree.at("checksum")) != checksum(step)) {
    tree.at("checksum")
        .refuse("is " + tree.at("checksum").text() + ", and that of the text is " +
                hex(checksum(step)) + ": the plan was changed; make it again");
  }
  return step;
}

PlannedStep read_planned_step(const std::filesystem::path& file) {
  return parse_planned_step(read_text_file(file, "the plan", JsonTree::kMostText), file.string());
}

std::string json_of(const PlannedStep& step) {
  const StepScript& script = *step.script;
  nlohmann::ordered_json whole = {
      {"format", kPlanFormat},           {"version", kPlanVersion},   {"step", hex(script.hash())},
      {"limit_bytes", step.limit.count}, {"slowdown", step.slowdown}, {"bound", step.bound},
      {"checksum", hex(checksum(step))}};
  auto list = nlohmann::ordered_json::array();
  for (std::size_t call = 0; call < script.calls(); ++call) {
    auto each = nlohmann::ordered_json::array({hex(script.prefixes[call])});
    if (!script.before(call).empty() || !script.after(call).empty()) {
      each.push_back(listed(script.before(call)));
      each.push_back(listed(script.after(call)));
    }
    list.push_back(std::move(each));
  }
  whole["operators"] = std::move(list);
  return whole.dump() + "\n";
}

void write_planned_step(const PlannedStep& step, const std::filesystem::path& file) {
  std::filesystem::path part = file;
  part += ".part" + std::to_string(getpid());
  std::ofstream stream(part, std::ios::binary | std::ios::trunc);
  stream << json_of(step);
  stream.close();
  std::error_code error;
  if (stream) std::filesystem::rename(part, file, error);
  if (stream && !error) return;
  std::error_code ignored;
  std::filesystem::remove(part, ignored);
  throw Error("cannot write the plan " + file.string() + ": " +
              (error ? error.message() : "its folder is not there, or full"));
}

}  // namespace reprise::plan
