// Operators with ordered effects: what they do besides computing results must happen once, in the
// program's order. A selective region keeps their results and never runs them again.
//
// torch/_library/effects.py (2.15) keeps a table in Python. Here they are known by their schemas,
// which must declare neither a write nor a view, and by what the program declares.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string_view>

namespace reprise::libtorch {

struct OperatorFacts;

// The check behind linalg operators, which torch lists among those with effects.
inline constexpr std::string_view kLinalgCheck = "aten::_linalg_check_errors";

// `facts` holds the operator's other facts.
bool has_ordered_effects(const c10::OperatorHandle& op, const OperatorFacts& facts);

// Overrules from now on what the schemas of the operators of this name say.
enum class Declaration {
  kDone,
  kUnknown,  // no operator has the name
  kRefused,  // each writes to an argument or returns a view of one
};
Declaration declare_ordered_effects(std::string_view name, bool has_effects);

}  // namespace reprise::libtorch
