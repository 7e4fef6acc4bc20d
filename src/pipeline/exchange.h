// The stages of one step send each other outputs, gradients and skips through an exchange. Whoever
// receives waits until the tensors are sent, or until the step has failed. On accelerators tensors
// are sent before they are made: the receiver's stream waits for them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <limits>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "libtorch/memory/worker_streams.h"
#include "pipeline/twins.h"

namespace reprise::pipeline {

using Way = libtorch::WorkerStreams::Way;

struct Parcel {
  libtorch::Shipment shipment;
  std::vector<Twins> twins;  // of each tensor; empty where there are none
};

// Ends the work of the other workers once one of them has failed.
class StepFailed final : public std::exception {
 public:
  const char* what() const noexcept override { return "another stage of the pipeline has failed"; }
};

class Exchange {
 public:
  // Waits until one more of the stage's port 0 may wait, and counts it. Throws StepFailed after
  // fail().
  void wait_for_room(Way way, std::int64_t stage);
  // To that stage. `port` 0 is what the stage beside it sends, for which there is room; the others are
  // skips.
  void send(Way way, std::int64_t stage, std::int64_t micro_batch, std::int64_t port,
            Parcel parcel);
  // At most so many of the stage's port 0 wait from then on.
  void limit(Way way, std::int64_t stage, std::int64_t most);
  // Throws StepFailed after fail().
  Parcel receive(Way way, std::int64_t stage, std::int64_t micro_batch, std::int64_t port);

  // The first error is kept.
  void fail(std::exception_ptr error);
  std::exception_ptr error() const;

 private:
  using Address = std::tuple<Way, std::int64_t, std::int64_t, std::int64_t>;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Address, Parcel> waiting_;
  struct Queue {
    std::int64_t waiting = 0, most = std::numeric_limits<std::int64_t>::max();
  };
  std::map<std::pair<Way, std::int64_t>, Queue> queues_;  // of ports 0
  std::exception_ptr error_;
};

}  // namespace reprise::pipeline
