#include "libtorch/operators/ordered_effects.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "libtorch/operators/operator_facts.h"
#include "libtorch/operators/operator_tables.h"

namespace reprise::libtorch {
namespace {

// The keys are names of operators. It is never destroyed, since operators are looked up while the
// process ends.
struct Declarations {
  std::mutex mutex;
  std::map<std::string, bool> has_effects;
};
Declarations& declarations() {
  static auto* const made = new Declarations;
  return *made;
}

std::optional<bool> declared(const c10::OperatorHandle& op) {
  Declarations& all = declarations();
  std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.has_effects.find(c10::toString(op.operator_name()));
  return found == all.has_effects.end() ? std::nullopt : std::optional(found->second);
}

bool may_have_ordered_effects(const c10::FunctionSchema& schema, const OperatorFacts& facts) {
  const auto is_alias = [](const c10::Argument& argument) {
    return argument.alias_info() != nullptr;
  };
  return facts.writes.empty() && !facts.aliases &&
         std::ranges::none_of(schema.arguments(), is_alias) &&
         std::ranges::none_of(schema.returns(), is_alias);
}

// The type itself, or what it is an optional, a list or a tuple of.
bool holds(const c10::Type& type, c10::TypeKind kind) {
  return type.kind() == kind ||
         std::ranges::any_of(type.containedTypes(),
                             [kind](const auto& contained) { return holds(*contained, kind); });
}

}  // namespace

bool has_ordered_effects(const c10::OperatorHandle& op, const OperatorFacts& facts) {
  const c10::FunctionSchema& schema = op.schema();
  if (!may_have_ordered_effects(schema, facts)) return false;
  if (const auto answer = declared(op)) return *answer;
  const std::string_view name = schema.name();
  if (name == "aten::_print" || name == kLinalgCheck) return true;
  // Collectives go on after they return, so that their results are no place to go on from.
  if (facts.communicates || is_known_harmless(name) || schema.is_vararg() || schema.is_varret()) {
    return false;
  }
  const auto takes = [&](c10::TypeKind kind) {
    return std::ranges::any_of(schema.arguments(), [kind](const c10::Argument& argument) {
      return holds(*argument.type(), kind);
    });
  };
  // An object may change inside. An operator that returns nothing is called for an effect; but one
  // that takes tensors may fill them, with a schema that does not say so.
  return takes(c10::TypeKind::ClassType) ||
         (schema.returns().empty() && !takes(c10::TypeKind::TensorType));
}

Declaration declare_ordered_effects(std::string_view name, bool has_effects) {
  auto& dispatcher = c10::Dispatcher::singleton();
  Declaration result = Declaration::kUnknown;
  for (const c10::OperatorName& candidate : dispatcher.getAllOpNames()) {
    if (!is_named(candidate, name)) continue;
    const auto op = dispatcher.findSchema(candidate);
    if (!op) continue;
    if (result == Declaration::kUnknown) result = Declaration::kRefused;
    if (!may_have_ordered_effects(op->schema(), facts_of(*op))) continue;
    result = Declaration::kDone;
    {
      Declarations& all = declarations();
      std::lock_guard<std::mutex> lock(all.mutex);
      all.has_effects[c10::toString(candidate)] = has_effects;
    }
    forget_facts_of(*op);
  }
  return result;
}

}  // namespace reprise::libtorch
