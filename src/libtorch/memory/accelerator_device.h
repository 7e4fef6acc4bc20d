// One accelerator device as a byte budget sees it: the statistics of its allocator, which memory is
// that allocator's, its streams, and copies of bytes on it. Through LibTorch's device-neutral
// interfaces alone; nothing here waits for the device but to_host().
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <vector>

namespace reprise::libtorch {

// Bytes as a tensor of bytes, without autograd. `memory` keeps its owner.
at::Tensor flat_tensor(c10::DataPtr memory, std::int64_t bytes, c10::Device device);

class AcceleratorDevice {
 public:
  // Throws UsageError for a device that is not there, or whose allocator does not tell its memory
  // from others'. A device without an index is the current one.
  explicit AcceleratorDevice(c10::Device device);

  c10::Device device() const { return device_; }
  // Handed out by its allocator now.
  std::int64_t live() const;
  // All the bytes that the device has. Throws UsageError where it does not tell.
  std::int64_t total() const;
  // Frees what the allocator keeps for later.
  void empty_cache() const;

  // Whether the memory was handed out by the device's allocator, and is not somebody else's.
  bool is_own(const c10::DataPtr& memory) const {
    return memory.get_deleter() == deleter_ && memory.device() == device_;
  }

  // The one that this thread's operators go to.
  c10::Stream current_stream() const;
  // Whether that stream's work is recorded into a graph (CUDA graphs), and does not run now. Asks
  // the stream only if it is not the default one, which no graph can record.
  bool is_recorded_by_graph() const;
  // What `memory` lies on is not used for anything else before `stream` has done what it has been
  // given when the memory is freed. Nothing to do for the stream that it was allocated for.
  void lend(const c10::DataPtr& memory, c10::Stream stream) const;
  // `stream` goes on when `earlier` has done what it has been given so far.
  static void hold_back(c10::Stream stream, c10::Stream earlier);

  // Uninitialized, for the current stream.
  c10::Storage new_storage(std::int64_t bytes) const;
  // On the current stream.
  c10::Storage copy_of(const void* data, std::int64_t bytes) const;
  // Waits for all that the device has been given.
  std::vector<std::uint8_t> to_host(const void* data, std::int64_t bytes) const;

  // For the calling thread, while it lives.
  class Current {
   public:
    explicit Current(const AcceleratorDevice& device) : guard_(device.device_) {}

   private:
    c10::DeviceGuard guard_;
  };

 private:
  c10::Device device_;
  c10::DeviceAllocator* allocator_;
  c10::DeleterFnPtr deleter_;
  c10::StreamId default_stream_;
  bool has_graphs_;
};

}  // namespace reprise::libtorch
