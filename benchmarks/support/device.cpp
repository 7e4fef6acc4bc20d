#include "benchmarks/support/device.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <reprise/error.h>

#include <chrono>
#include <ctime>
#include <optional>

namespace reprise::bench {

c10::Device device_of(const std::string& name) {
  std::optional<c10::Device> device;
  try {
    device.emplace(name);
  } catch (const c10::Error&) {
    // Not the name of any device; refused below.
  }
  const auto accelerator = at::accelerator::getAccelerator();
  const int count = accelerator ? at::accelerator::deviceCount() : 0;
  if (device && device->is_cpu()) return c10::kCPU;
  if (device && accelerator == device->type() && device->index() < count) {
    if (device->has_index()) return *device;
    return {device->type(), at::accelerator::getDeviceIndex()};
  }
  throw UsageError(
      fmt::format("--device {}: there is no such device here; give cpu{}", name,
                  count == 0 ? ""
                             : fmt::format(" or {0}:0 to {0}:{1}",
                                           c10::DeviceTypeName(*accelerator, true), count - 1)));
}

Seconds time_on(c10::Device device) {
  if (!device.is_cpu()) {
    at::accelerator::synchronizeDevice(device.index());
    return std::chrono::steady_clock::now().time_since_epoch();
  }
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

}  // namespace reprise::bench
