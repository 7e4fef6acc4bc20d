// From an operator's name to its schema, whose address identifies the operator as long as it is
// registered.
#pragma once

#include <ATen/core/function_schema.h>

#include <string_view>
#include <vector>

namespace reprise::libtorch {

// Of all overloads that go by this name (operator_facts.h, is_named); empty if there is none.
std::vector<const c10::FunctionSchema*> schemas_named(std::string_view name);

// Whether `schema` goes by this name.
bool schema_is_named(const c10::FunctionSchema& schema, std::string_view name);

// Whether no backend has a kernel of its own for it: it never comes below autograd.
bool is_composite(const c10::FunctionSchema* schema);

}  // namespace reprise::libtorch
