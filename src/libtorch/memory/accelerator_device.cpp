#include "libtorch/memory/accelerator_device.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <reprise/error.h>

#include <cstring>
#include <string>
#include <utility>

#include "libtorch/base/backends_only.h"
#include "libtorch/base/versions.h"

namespace reprise::libtorch {
namespace {

constexpr auto kAggregate = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);

c10::Device resolved(c10::Device device) {
  const auto accelerator = at::accelerator::getAccelerator();
  const auto count = accelerator ? at::accelerator::deviceCount() : c10::DeviceIndex{0};
  if (accelerator != device.type() || device.index() >= count) {
    throw UsageError("MemoryBudget: there is no device " + device.str() + " here, but cpu" +
                     (count == 0 ? std::string()
                                 : " and " + c10::DeviceTypeName(*accelerator, true) +
                                       ":0 to :" + std::to_string(count - 1)) +
                     "; give BudgetOptions::device one of these");
  }
  at::globalContext().lazyInitDevice(device.type());
  if (device.has_index()) return device;
  return {device.type(), at::accelerator::getDeviceIndex()};
}

c10::DeviceAllocator* allocator_of(c10::Device device) {
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (allocator == nullptr || allocator->raw_deleter() == nullptr) {
    throw UsageError("MemoryBudget: the allocator of device " + device.str() +
                     " keeps no statistics, or does not tell its memory from others' "
                     "(c10::DeviceAllocator, raw_deleter()); a budget needs both. Use the "
                     "allocator that LibTorch has for the device");
  }
  return allocator;
}

// CUDA's streams always tell, and its default stream must not be asked while another is recorded.
bool tells_of_graphs(c10::Stream default_stream) {
  if (default_stream.device_type() == c10::kCUDA) return true;
  try {
    return !libtorch::is_recorded_by_graph(default_stream);
  } catch (const c10::Error&) {
    return false;
  }
}

}  // namespace

at::Tensor flat_tensor(c10::DataPtr memory, std::int64_t bytes, c10::Device device) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<std::size_t>(bytes),
                       std::move(memory), nullptr, /*resizable=*/false);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage),
      c10::DispatchKeySet(c10::computeDispatchKey(at::kByte, c10::kStrided, device)),
      caffe2::TypeMeta::Make<std::uint8_t>());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({bytes});
  return tensor;
}

AcceleratorDevice::AcceleratorDevice(c10::Device device)
    : device_(resolved(device)),
      allocator_(allocator_of(device_)),
      deleter_(allocator_->raw_deleter()) {
  const auto stream = c10::impl::VirtualGuardImpl(device_.type()).getDefaultStream(device_);
  default_stream_ = stream.id();
  has_graphs_ = tells_of_graphs(stream);
}

std::int64_t AcceleratorDevice::live() const {
  return allocator_->getDeviceStats(device_.index()).allocated_bytes[kAggregate].current;
}

std::int64_t AcceleratorDevice::total() const {
  try {
    return static_cast<std::int64_t>(allocator_->getMemoryInfo(device_.index()).second);
  } catch (const c10::Error& error) {
    throw UsageError("MemoryBudget: device " + device_.str() +
                     " does not tell how much memory it has; give the budget in bytes. (LibTorch "
                     "says: " +
                     error.what_without_backtrace() + ")");
  }
}

void AcceleratorDevice::empty_cache() const { allocator_->emptyCache(); }

c10::Stream AcceleratorDevice::current_stream() const {
  return c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
}

bool AcceleratorDevice::is_recorded_by_graph() const {
  const c10::Stream now = current_stream();
  return has_graphs_ && now.id() != default_stream_ && libtorch::is_recorded_by_graph(now);
}

void AcceleratorDevice::lend(const c10::DataPtr& memory, c10::Stream stream) const {
  if (memory.get() != nullptr) allocator_->recordStream(memory, stream);
}

void AcceleratorDevice::hold_back(c10::Stream stream, c10::Stream earlier) {
  c10::Event event(earlier.device_type());
  event.record(earlier);
  event.block(stream);
}

c10::Storage AcceleratorDevice::new_storage(std::int64_t bytes) const {
  const Current here(*this);
  return {c10::Storage::use_byte_size_t(), static_cast<std::size_t>(bytes),
          allocator_->allocate(static_cast<std::size_t>(bytes)), allocator_, /*resizable=*/true};
}

c10::Storage AcceleratorDevice::copy_of(const void* data, std::int64_t bytes) const {
  c10::Storage copy = new_storage(bytes);
  if (bytes == 0) return copy;
  const Current here(*this);
  const BackendsOnly below;
  const auto view = [&](void* start) {
    return flat_tensor(c10::DataPtr(start, device_), bytes, device_);
  };
  view(copy.mutable_data()).copy_(view(const_cast<void*>(data)));
  return copy;
}

std::vector<std::uint8_t> AcceleratorDevice::to_host(const void* data, std::int64_t bytes) const {
  std::vector<std::uint8_t> host(static_cast<std::size_t>(bytes));
  if (bytes == 0) return host;
  at::accelerator::synchronizeDevice(device_.index());
  const Current here(*this);
  const BackendsOnly below;
  flat_tensor(c10::DataPtr(host.data(), c10::kCPU), bytes, c10::kCPU)
      .copy_(flat_tensor(c10::DataPtr(const_cast<void*>(data), device_), bytes, device_));
  return host;
}

}  // namespace reprise::libtorch
