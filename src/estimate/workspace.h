// The bytes that a kernel allocates for itself and gives back before it returns: no operator call
// shows them, and in the fullest moment of a step they count.
#pragma once

#include <c10/core/DeviceType.h>

#include <cstdint>

#include "estimate/operator_cost.h"

namespace reprise::estimate {

// Of LibTorch's CPU kernels, as docs/estimates.md lists them; 0 for other operators, and for
// CUDA's, whose workspaces depend on its libraries.
std::int64_t workspace_of(const c10::FunctionSchema& schema, Values arguments, Values results,
                          c10::DeviceType device);

}  // namespace reprise::estimate
