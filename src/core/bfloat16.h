// Single and double precision as bfloat16, rounded to the nearest, and of two as near to the even
// one, once: not by way of single precision.
#pragma once

#include <cstdint>

#include "core/lanes.h"

namespace reprise {

// `type` is kFloat or kDouble. False if an element is not finite, or not when it is rounded: `out`
// holds anything then.
bool round_to_bfloat16(FloatType type, const void* data, std::int64_t elements, std::uint16_t* out);

void widen_bfloat16(const std::uint16_t* in, std::int64_t elements, FloatType type, void* data);

}  // namespace reprise
