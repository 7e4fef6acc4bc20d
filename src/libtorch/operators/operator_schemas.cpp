// Looks through the dispatcher's table; some hundred microseconds a question.
#include "libtorch/operators/operator_schemas.h"

#include "libtorch/operators/operator_facts.h"

namespace reprise::libtorch {

std::vector<const c10::FunctionSchema*> schemas_named(std::string_view name) {
  std::vector<const c10::FunctionSchema*> schemas;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& candidate : dispatcher.getAllOpNames()) {
    if (!is_named(candidate, name)) continue;
    if (const auto op = dispatcher.findSchema(candidate)) schemas.push_back(&op->schema());
  }
  return schemas;
}

bool schema_is_named(const c10::FunctionSchema& schema, std::string_view name) {
  return is_named(schema.operator_name(), name);
}

bool is_composite(const c10::FunctionSchema* schema) {
  const auto op = c10::Dispatcher::singleton().findSchema(schema->operator_name());
  if (!op || !facts_of(*op).composite) return false;
  using c10::DispatchKey;
  for (const DispatchKey backend :
       {DispatchKey::CPU, DispatchKey::CUDA, DispatchKey::XPU, DispatchKey::MPS}) {
    if (op->hasKernelForDispatchKey(backend)) return false;
  }
  return true;
}

}  // namespace reprise::libtorch
