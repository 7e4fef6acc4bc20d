// Devices by name through LibTorch's device-neutral accelerator interface; no CUDA header.
#include "apps/cli/training/device.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/autocast_mode.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <reprise/error.h>

#include <optional>

namespace reprise::app {

namespace {

c10::DeviceIndex accelerator_count() {
  return at::accelerator::getAccelerator() ? at::accelerator::deviceCount() : 0;
}

std::optional<c10::Device> read_device(const std::string& text) {
  try {
    return c10::Device(text);
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

}  // namespace

std::string available_devices() {
  std::string list = "cpu";
  for (c10::DeviceIndex index = 0; index < accelerator_count(); ++index) {
    list += ", " + c10::Device(*at::accelerator::getAccelerator(), index).str();
  }
  return list;
}

c10::Device parse_device(const std::string& text) {
  if (text == "auto") {
    return accelerator_count() > 0 ? c10::Device(*at::accelerator::getAccelerator(), 0)
                                   : c10::Device(c10::kCPU);
  }
  const std::optional<c10::Device> device = read_device(text);
  if (!device) {
    throw UsageError(fmt::format("--device is '{}': give auto, {}", text, available_devices()));
  }
  if (device->is_cpu() && device->index() <= 0) return c10::Device(c10::kCPU);
  const c10::Device numbered(device->type(),
                             device->has_index() ? device->index() : c10::DeviceIndex{0});
  if (at::accelerator::getAccelerator() != numbered.type() ||
      numbered.index() >= accelerator_count()) {
    throw UsageError(
        fmt::format("--device {} is not available here: give auto, {}", text, available_devices()));
  }
  return numbered;
}

Bytes reserved_bytes(c10::Device device) {
  if (device.is_cpu()) return Bytes(0);
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return Bytes(at::accelerator::getDeviceStats(device.index()).reserved_bytes[kAll].current);
}

std::optional<Bytes> available_bytes(c10::Device device) {
  try {
    const std::size_t free = at::accelerator::getMemoryInfo(device.index()).first;
    return Bytes(static_cast<std::int64_t>(free)) + reserved_bytes(device);
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

void synchronize(c10::Device device) {
  if (!device.is_cpu()) at::accelerator::synchronizeDevice(device.index());
}

Autocast::Autocast(c10::Device device, const std::string& dtype)
    : type_(device.type()), active_(dtype == "bf16") {
  if (!active_) return;
  enabled_before_ = at::autocast::is_autocast_enabled(type_);
  dtype_before_ = at::autocast::get_autocast_dtype(type_);
  at::autocast::set_autocast_enabled(type_, true);
  at::autocast::set_autocast_dtype(type_, at::kBFloat16);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (!active_) return;
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(type_, enabled_before_);
  at::autocast::set_autocast_dtype(type_, dtype_before_);
}

}  // namespace reprise::app
