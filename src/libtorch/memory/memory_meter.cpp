// The public figures of memory.h: the CPU's from the counting allocator, an accelerator's from its
// allocator's statistics, both through one PeakTracker a device.
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <reprise/error.h>
#include <reprise/memory.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "core/peak_tracker.h"
#include "libtorch/memory/counting_allocator.h"

namespace reprise {

namespace {

constexpr auto kAggregate = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);

// The statistics of one accelerator device. They are read and restarted in two calls, since
// LibTorch has no single one: a peak of another thread that rises and falls between the two is lost
// to the periods that were open before. Restarting moves the device's own maximum
// (torch.cuda.max_memory_allocated), as any use of LibTorch's reset does; peak_bytes() does not
// suffer.
class DeviceLevels final : public LevelSource {
 public:
  explicit DeviceLevels(c10::Device device) : device_(device) {}

  c10::CachingDeviceAllocator::DeviceStats stats() const {
    return c10::getDeviceAllocator(device_.type())->getDeviceStats(device_.index());
  }
  std::int64_t live() override { return stats().allocated_bytes[kAggregate].current; }
  std::int64_t mark() override { return stats().allocated_bytes[kAggregate].peak; }
  std::int64_t restart_mark() override {
    std::int64_t before = mark();
    c10::getDeviceAllocator(device_.type())->resetPeakStats(device_.index());
    return before;
  }

 private:
  c10::Device device_;
};

std::string known_devices() {
  auto accelerator = at::accelerator::getAccelerator();
  c10::DeviceIndex count = accelerator ? at::accelerator::deviceCount() : c10::DeviceIndex{0};
  if (count == 0) return "only cpu is";
  std::string name = c10::DeviceTypeName(*accelerator, /*lower_case=*/true);
  std::string devices = "cpu and " + name + ":0";
  if (count > 1) devices += " to " + name + ":" + std::to_string(count - 1);
  return devices + " are";
}

// Fills in the current device's index where it is left out.
c10::Device resolve(c10::Device device) {
  if (device.is_cpu()) {
    if (!libtorch::counting_allocator_is_installed()) {
      throw UsageError(
          "memory on device cpu is not counted: the program has set a CPU allocator of its own "
          "(c10::SetAllocator). Leave LibTorch's in place to have figures");
    }
    return c10::kCPU;
  }
  auto accelerator = at::accelerator::getAccelerator();
  if (accelerator != device.type() || device.index() >= at::accelerator::deviceCount()) {
    throw UsageError("there is no memory to measure on device " + device.str() + ": " +
                     known_devices() + " present. Use one of these");
  }
  at::globalContext().lazyInitDevice(device.type());
  if (device.has_index()) return device;
  return {device.type(), at::accelerator::getDeviceIndex()};
}

PeakTracker& tracker_of(c10::Device device) {
  struct Tracked {
    explicit Tracked(c10::Device device) : levels(device), tracker(levels) {}
    DeviceLevels levels;
    PeakTracker tracker;
  };
  // Leaked, so that a static PeakScope may be destroyed in any order.
  static auto* cpu = new PeakTracker(libtorch::cpu_levels());
  if (device.is_cpu()) return *cpu;
  static auto* mutex = new std::mutex;
  static auto* devices = new std::map<c10::DeviceIndex, std::unique_ptr<Tracked>>;
  std::lock_guard lock(*mutex);
  auto& tracked = (*devices)[device.index()];
  if (tracked == nullptr) tracked = std::make_unique<Tracked>(device);
  return tracked->tracker;
}

}  // namespace

Bytes live_bytes(c10::Device device) { return Bytes(tracker_of(resolve(device)).live()); }

Bytes peak_bytes(c10::Device device) { return Bytes(tracker_of(resolve(device)).peak()); }

std::int64_t allocation_count(c10::Device device) {
  device = resolve(device);
  if (device.is_cpu()) return libtorch::cpu_allocation_count();
  return DeviceLevels(device).stats().allocation[kAggregate].allocated;
}

class PeakScope::Impl {
 public:
  explicit Impl(c10::Device device) : period(tracker_of(device)) {}
  PeakTracker::Period period;
};

PeakScope::PeakScope(c10::Device device) : impl_(std::make_unique<Impl>(resolve(device))) {}
PeakScope::~PeakScope() = default;

Bytes PeakScope::live_at_start() const { return Bytes(impl_->period.live_at_start()); }
Bytes PeakScope::peak() const { return Bytes(impl_->period.peak()); }

}  // namespace reprise
