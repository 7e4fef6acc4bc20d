// Copies between an accelerator and the host in the background: streams, events and memory, as a
// small interface. LibTorch's own are behind accelerator_engine(); a test puts a device of its own
// behind it and watches the order in which things are asked for.
//
// A stream does what it is given in order, at a time of its own. Nothing here waits, but for
// DeviceEvent::wait().
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>

namespace reprise::libtorch {

// A point in a stream: everything that the stream had been given before.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  virtual bool reached() = 0;
  // Blocks the calling thread until it is.
  virtual void wait() = 0;
  // Makes `stream` wait for it before it goes on.
  virtual void hold_back(c10::Stream stream) = 0;
};

class TransferEngine {
 public:
  enum class Direction { kToHost, kToDevice };

  virtual ~TransferEngine() = default;

  // Whether tensors on `device` can be moved.
  virtual bool serves(c10::Device device) const = 0;

  // The stream of the calling thread's operators, and one for copies alone.
  virtual c10::Stream current(c10::Device device) = 0;
  virtual c10::Stream side(c10::Device device, Direction direction) = 0;
  virtual std::unique_ptr<DeviceEvent> record(c10::Stream stream) = 0;
  // Blocks the calling thread until `stream` has nothing to do.
  virtual void drain(c10::Stream stream) = 0;

  // A row of elements in memory that copies from and to the device need no staging for.
  virtual at::Tensor allocate_host(at::ScalarType dtype, std::int64_t length) = 0;
  // A row of elements that `stream` may use at once; once freed, it is used again for that stream.
  virtual at::Tensor allocate_device(at::ScalarType dtype, std::int64_t length,
                                     c10::Stream stream) = 0;
  virtual void copy(const at::Tensor& to, const at::Tensor& from, c10::Stream stream) = 0;
  // The memory of `tensor`, which belongs to another stream, is not used again before `stream` has
  // done what it has been given when the memory is freed.
  virtual void lend(const at::Tensor& tensor, c10::Stream stream) = 0;
};

// For the process's accelerator; null if it has none.
std::unique_ptr<TransferEngine> accelerator_engine();

}  // namespace reprise::libtorch
