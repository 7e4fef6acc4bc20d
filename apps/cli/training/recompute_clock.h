// A stopwatch for recomputation: runs while a layer runs again for backward. It watches layers, not
// regions, because regions nest and layers do not.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "apps/cli/training/network.h"

namespace reprise::app {

class RecomputeClock {
 public:
  // Once, for every layer of the network.
  void watch(Network& network);
  // The layer, watched.
  models::Layer watched(models::Layer layer) const;

  // From now on time is counted; the device is waited for around each recomputed layer, so that the
  // time is spent where it is counted.
  void start(c10::Device device);
  // Seconds spent recomputing since start(), summed over threads.
  double stop();

 private:
  struct State {
    std::atomic<bool> running{false};
    std::atomic<std::int64_t> nanoseconds{0};
    c10::Device device{c10::kCPU};
  };
  class Lap;
  // Layers hold it too: graphs may outlive the clock.
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace reprise::app
