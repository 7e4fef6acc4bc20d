// The operators of the fake accelerator: the CPU's, on the memory where it lies, through one
// fallback for all of them. Results are bitwise the CPU's, but for draws, which come from the
// device's own generators.
#pragma once

#include <cstdint>

namespace reprise::testing_support {

// Bytes that matrix products take beside their results, as libraries of real devices do.
void set_fake_workspace(std::int64_t bytes);
// Operators that ran on fake devices so far.
std::int64_t fake_operators_run();

}  // namespace reprise::testing_support
