// A set of operators, given by names: those of LibTorch as the addresses of their schemas, custom
// autograd functions by name.
#pragma once

#include <ATen/core/function_schema.h>

#include <string>
#include <string_view>
#include <vector>

namespace reprise::selecting {

// Prefix of the names of custom autograd functions, which LibTorch does not list.
inline constexpr std::string_view kFunctionPrefix = "autograd::";

class OperatorSet {
 public:
  // Throws UsageError for a name that stands for nothing; `caller` opens the text.
  OperatorSet(const std::vector<std::string>& names, std::string_view caller);

  bool contains(const c10::FunctionSchema& schema) const;

 private:
  // Sorted.
  std::vector<const c10::FunctionSchema*> schemas_;
  std::vector<std::string> functions_;
};

// Whether `text` is the name of a custom autograd function (function_name()), or the end of it.
bool function_is_named(std::string_view function, std::string_view text);

}  // namespace reprise::selecting
