#include "selective/operator_set.h"

#include <reprise/error.h>

#include <algorithm>
#include <functional>

#include "libtorch/operators/operator_schemas.h"

namespace reprise::selecting {

OperatorSet::OperatorSet(const std::vector<std::string>& names, std::string_view caller) {
  for (const std::string& name : names) {
    if (name.starts_with(kFunctionPrefix)) {
      functions_.push_back(name);
      continue;
    }
    const auto schemas = libtorch::schemas_named(name);
    if (schemas.empty()) {
      throw UsageError(std::string(caller) + ": LibTorch knows no operator '" + name +
                       "'; give a name such as 'mm', 'aten::mm' or 'aten::add.Tensor' "
                       "(or 'autograd::Name' for a custom autograd function)");
    }
    const auto is_hidden = [](const c10::FunctionSchema* schema) {
      return schema->is_mutable() || libtorch::is_composite(schema);
    };
    if (std::all_of(schemas.begin(), schemas.end(), is_hidden) &&
        std::any_of(schemas.begin(), schemas.end(), libtorch::is_composite)) {
      throw UsageError(
          std::string(caller) + ": '" + name +
          "' is made of other operators, and a policy sees only these parts; name "
          "the parts instead ('addmm' and 'mm' for 'linear', 'convolution' for 'conv2d')");
    }
    schemas_.insert(schemas_.end(), schemas.begin(), schemas.end());
  }
  std::sort(schemas_.begin(), schemas_.end(), std::less<>());
}

bool OperatorSet::contains(const c10::FunctionSchema& schema) const {
  if (std::binary_search(schemas_.begin(), schemas_.end(), &schema, std::less<>())) return true;
  return std::any_of(functions_.begin(), functions_.end(), [&](const std::string& name) {
    return function_is_named(schema.name(), name);
  });
}

bool function_is_named(std::string_view function, std::string_view text) {
  if (!text.starts_with(kFunctionPrefix) || !function.starts_with(kFunctionPrefix)) return false;
  text.remove_prefix(kFunctionPrefix.size());
  return function.ends_with(text) &&
         function.substr(0, function.size() - text.size()).ends_with("::");
}

}  // namespace reprise::selecting
