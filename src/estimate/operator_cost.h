// What an operator call costs by its shapes alone: floating-point operations and bytes moved. The
// formulas are in docs/estimates.md; the time that they come to is the machine's business.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <functional>

namespace reprise::estimate {

// Arguments or results of a call.
using Values = at::ArrayRef<c10::IValue>;

struct OperatorCost {
  // Multiplications and additions both count, as in 2 n m k for a matrix product.
  double flops = 0;
  // Read and written once each.
  double bytes = 0;
  // Of 16-bit operands, for which machines have faster units.
  bool is_low_precision = false;
  // Nothing runs on the device: a view, a question about sizes.
  bool is_free = false;
};

// Of a call with these arguments and results. `is_free`: as above.
OperatorCost cost_of(const c10::FunctionSchema& schema, Values arguments, Values results,
                     bool is_free);

// Calls `visit` with each defined tensor in a value, lists included.
void visit_tensors_in(const c10::IValue& value,
                      const std::function<void(const at::Tensor&)>& visit);

}  // namespace reprise::estimate
