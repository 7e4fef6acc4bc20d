// What the CPU's kernels copy of their arguments before they begin: to another type, or to lie in
// another order.
#pragma once

#include <ATen/core/function_schema.h>

#include <cstdint>

#include "estimate/operator_cost.h"

namespace reprise::estimate {

// Bytes that kernels of these forms have beside their results. Each takes arguments and results of
// a call.

// One type for all: arguments of another than the result's are cast as a whole.
std::int64_t cast_to_result(Values arguments, Values results);
// Comparisons: to the type that both are promoted to.
std::int64_t cast_to_common(Values arguments, Values results);
// Softmaxes: their first one or two arguments, made contiguous.
std::int64_t first_contiguous(Values arguments, Values results);
std::int64_t first_two_contiguous(Values arguments, Values results);
// The values and their places, sorted in part.
std::int64_t sorted_values(Values arguments, Values results);
std::int64_t soft_margin(Values arguments, Values results);
std::int64_t soft_margin_backward(Values arguments, Values results);

}  // namespace reprise::estimate
