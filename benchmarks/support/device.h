// The device that a call of the program measures on: the CPU, or the accelerator of --device. What steps read is made here,
// and times wait here for what was submitted.
#pragma once

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <string>

#include "core/clock.h"

namespace reprise::bench {

// "cpu", "cuda:0", or "cuda" for the current one. Throws UsageError for a device that is not here.
c10::Device device_of(const std::string& name);

// Drawn on the CPU, so that every device gets the same numbers.
inline at::Tensor randn_on(c10::Device device, at::IntArrayRef size) {
  return at::randn(size).to(device);
}

// On the CPU the processor time of this process: what neighbours take is not counted, which would fall on long steps and
// spare short batches. On an accelerator the elapsed time, after everything that was submitted to it has run.
Seconds time_on(c10::Device device);

}  // namespace reprise::bench
