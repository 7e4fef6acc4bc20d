// The streams of a pipeline's worker on an accelerator, and how tensors get from one to another:
// one stream computes, and one for each direction copies, so that copies run beside kernels.
//
//   const WorkerStreams::Scope here(streams);   // the worker's operators go to its compute stream
//   Shipment made = ship(tensors, sender, receiver, WorkerStreams::Way::kForward);
//   ... on the receiver's thread, in its scope:
//   tensors = take(std::move(made));
//
// Nothing here waits on the host, but for copies to the host. Order comes from events: a copy waits
// for the kernels that made its source, and the receiver's stream for the copy. Whoever uses memory
// that belongs to another stream tells its allocator, so that it is not used again too early.
// On the CPU all of this does nothing.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include <array>
#include <optional>
#include <utility>
#include <vector>

namespace reprise::libtorch {

// Points in streams.
class StreamPoints {
 public:
  // Everything that `stream` has been given so far, in place of an earlier point of it.
  void add(c10::Stream stream);
  // The calling thread's stream of `device`, if that has streams.
  void add_current(c10::Device device);
  // `stream`, or the calling thread's of `device`, goes on after the points of all other streams.
  void hold_back_current(c10::Device device) const;
  void hold_back(c10::Stream stream) const;

 private:
  std::vector<std::pair<c10::Stream, c10::Event>> points_;
};

class WorkerStreams {
 public:
  enum class Way { kForward, kBackward };

  explicit WorkerStreams(c10::Device device);

  c10::Device device() const { return device_; }
  // Blocks the calling thread until all streams have done what they were given.
  void drain() const;

  // While it lives, the calling thread's operators go to the compute stream.
  class Scope {
   public:
    explicit Scope(const WorkerStreams& streams) {
      if (streams.compute_) guard_.emplace(*streams.compute_);
    }

   private:
    std::optional<c10::StreamGuard> guard_;
  };

 private:
  friend void lend_gradients(const std::vector<at::Tensor>& parameters,
                             const WorkerStreams& worker);
  friend struct Shipment ship(std::vector<at::Tensor> tensors, const WorkerStreams* sender,
                              const WorkerStreams* receiver, Way way);
  std::optional<c10::Stream> copies(Way way) const {
    return copies_[static_cast<std::size_t>(way)];
  }

  c10::Device device_;
  std::optional<c10::Stream> compute_;
  std::array<std::optional<c10::Stream>, 2> copies_;
};

struct Shipment {
  std::vector<at::Tensor> tensors;
  StreamPoints ready;
};

// On the sender's thread: tensors on their way to the receiver's device. Null for the caller of a
// pipeline, who takes tensors where they are.
Shipment ship(std::vector<at::Tensor> tensors, const WorkerStreams* sender,
              const WorkerStreams* receiver, WorkerStreams::Way way);
// On the receiver's thread.
std::vector<at::Tensor> take(Shipment shipment);

// Gradients that the worker has made belong to its stream, or to that of whoever made them before.
// From now on the worker's and the calling thread's stream use them.
void lend_gradients(const std::vector<at::Tensor>& parameters, const WorkerStreams& worker);

}  // namespace reprise::libtorch
