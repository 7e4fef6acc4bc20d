// What the schemas of LibTorch's operators do not say. An operator that is new, or that a new
// LibTorch changes, gets its line here when the test of operator_facts names it.
//
// Names are without overload and stand for all of them: the `.out` overload of an operator has the
// same hidden writes.
#pragma once

#include <array>
#include <string_view>

namespace reprise::libtorch {

// An operator that writes to these arguments although its schema does not say so; only if the
// argument `only_if` is true, where one is named.
struct HiddenWrite {
  std::string_view name;
  std::array<std::string_view, 2> arguments;
  std::string_view only_if = {};
};

// Null where the operator has no hidden writes.
const HiddenWrite* hidden_write_of(std::string_view name);

// The schema says "write", but no byte of the tensor's data changes.
bool writes_only_around_data(std::string_view name);
// Results share memory with an argument although the schema does not say so.
bool has_hidden_alias(std::string_view name);
// Some bytes of its results are as nobody has set them; nobody reads them.
bool leaves_bytes_unset(std::string_view name);
// Its results depend on memory that nobody has set.
bool reads_bytes_unset(std::string_view name);
// Results are no tensors; reads sizes, dtypes or flags only.
bool reads_metadata_only(std::string_view name);

// For operators that look as if they wrote to an argument, judging by its name or theirs, or that
// hold objects whose inside is not seen: these are known to write nothing but what their schema or
// the table says.
bool is_known_harmless(std::string_view name);

}  // namespace reprise::libtorch
