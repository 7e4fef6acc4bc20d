#include "selective/operator_set.h"

#include <reprise/error.h>

#include <algorithm>
#include <functional>

#include "libtorch/operator_schemas.h"

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
    schemas_.insert(schemas_.end(), schemas.begin(), schemas.end());
  }
  std::sort(schemas_.begin(), schemas_.end(), std::less<>());
}

bool OperatorSet::contains(const c10::FunctionSchema& schema) const {
  if (std::binary_search(schemas_.begin(), schemas_.end(), &schema, std::less<>())) return true;
  return !functions_.empty() &&
         std::find(functions_.begin(), functions_.end(), schema.name()) != functions_.end();
}

}  // namespace reprise::selecting
