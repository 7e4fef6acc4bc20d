// The working part of a host store: values on their way between an accelerator and host memory.
//
// The order of things, which is all there is to get right:
// - To the host: the side stream waits for what the caller's stream has been given so far (it may
//   still be computing the value), then copies. The source is held until the copy has ended, so its
//   memory is not used again by whoever frees it meanwhile.
// - Back: the side stream waits for the copy to the host, then copies into memory from its own
//   pool. The stream that asks for the value waits for that copy, and the memory is lent to it: the
//   value may be freed while that stream still has to read it.
// - Host memory is held until the copies from and to it have ended, also if the value is dropped.
// The caller's stream is asked for at every call, before any other stream is made current: a thread
// may have changed it (a recomputation, a device thread).
#pragma once

#include <ATen/core/Tensor.h>
#include <reprise/bytes.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "libtorch/memory/transfer_engine.h"

namespace reprise::store {

struct HostLimits {
  std::int64_t in_flight;
  std::int64_t read_ahead;
};

class HostTransfers {
 public:
  class Entry;
  using EntryPointer = std::shared_ptr<Entry>;
  using Count = std::function<void(std::int64_t waiting, std::int64_t written, std::int64_t read)>;

  HostTransfers(std::unique_ptr<libtorch::TransferEngine> engine, const HostLimits& limits,
                Count count);
  ~HostTransfers();

  const libtorch::TransferEngine& engine() const { return *engine_; }
  EntryPointer put(const at::Tensor& flat);
  at::Tensor get(const EntryPointer& entry);
  bool prefetch(const EntryPointer& entry);
  void drop(const EntryPointer& entry);
  void flush();

 private:
  using Event = std::shared_ptr<libtorch::DeviceEvent>;
  using Direction = libtorch::TransferEngine::Direction;
  using Lock = std::unique_lock<std::mutex>;
  // A copy that a stream has been given, and the memory that it needs until it has ended.
  struct Copy;
  struct Fetch;

  // Gives a side stream the copy, behind `before` if that is set.
  Event start(const at::Tensor& to, const at::Tensor& from, c10::Stream side,
              libtorch::DeviceEvent* before);
  void start_fetch(Entry& entry, bool ahead);
  void forget_fetch(Entry& entry);
  // Lets go of what ended; with `most`, waits until no more bytes than that are on their way out.
  void settle(Lock& lock);
  void settle(Lock& lock, std::int64_t most);
  void finish_first(Lock& lock);

  const std::unique_ptr<libtorch::TransferEngine> engine_;
  const HostLimits limits_;
  const Count count_;

  std::mutex mutex_;
  std::deque<std::shared_ptr<Copy>> copies_;  // in the order in which they were started
  std::int64_t waiting_bytes_ = 0;
  std::int64_t ahead_bytes_ = 0;
};

}  // namespace reprise::store
