#include "libtorch/memory/transfer_engine.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/empty.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <map>
#include <mutex>
#include <utility>

#include "libtorch/memory/managed_memory.h"

namespace reprise::libtorch {
namespace {

class RecordedEvent final : public DeviceEvent {
 public:
  explicit RecordedEvent(c10::Stream stream) : event_(stream.device_type()) {
    event_.record(stream);
  }
  bool reached() override { return event_.query(); }
  void wait() override { event_.synchronize(); }
  void hold_back(c10::Stream stream) override { event_.block(stream); }

 private:
  c10::Event event_;
};

class AcceleratorEngine final : public TransferEngine {
 public:
  explicit AcceleratorEngine(c10::DeviceType type) : type_(type), guard_(type) {}

  bool serves(c10::Device device) const override { return device.type() == type_; }

  c10::Stream current(c10::Device device) override { return guard_.getStream(device); }

  // The same one each time, so that the copies of one direction queue up behind each other.
  c10::Stream side(c10::Device device, Direction direction) override {
    const std::lock_guard lock(mutex_);
    const auto key = std::pair(device.index(), direction);
    if (const auto found = sides_.find(key); found != sides_.end()) return found->second;
    return sides_.emplace(key, guard_.getStreamFromGlobalPool(device)).first->second;
  }

  std::unique_ptr<DeviceEvent> record(c10::Stream stream) override {
    return std::make_unique<RecordedEvent>(stream);
  }
  void drain(c10::Stream stream) override { stream.synchronize(); }

  at::Tensor allocate_host(at::ScalarType dtype, std::int64_t length) override {
    return at::empty({length}, at::TensorOptions(c10::kCPU).dtype(dtype).pinned_memory(true));
  }
  at::Tensor allocate_device(at::ScalarType dtype, std::int64_t length,
                             c10::Stream stream) override {
    const c10::StreamGuard guard(stream);
    return at::empty({length}, at::TensorOptions(stream.device()).dtype(dtype));
  }
  void copy(const at::Tensor& to, const at::Tensor& from, c10::Stream stream) override {
    const c10::StreamGuard guard(stream);
    to.copy_(from, /*non_blocking=*/true);
  }
  void lend(const at::Tensor& tensor, c10::Stream stream) override {
    // Allocators know their memory by its face, which a manager covers.
    auto& storage = *tensor.storage().unsafeGetStorageImpl();
    const MemoryManager* const manager = ManagedMemory::manager_of(storage);
    guard_.recordDataPtrOnStream(
        manager != nullptr ? ManagedMemory::memory_of(*manager) : storage.data_ptr(), stream);
  }

 private:
  const c10::DeviceType type_;
  const c10::impl::VirtualGuardImpl guard_;
  std::mutex mutex_;
  std::map<std::pair<c10::DeviceIndex, Direction>, c10::Stream> sides_;
};

}  // namespace

std::unique_ptr<TransferEngine> accelerator_engine() {
  const auto type = at::accelerator::getAccelerator();
  if (!type.has_value() || at::accelerator::deviceCount() == 0) return nullptr;
  // Without a GPU, tensors that are fake (torch.compile) make a LibTorch for CUDA count one.
  if (*type == c10::kCUDA && !at::hasCUDA()) return nullptr;
  return std::make_unique<AcceleratorEngine>(*type);
}

}  // namespace reprise::libtorch
