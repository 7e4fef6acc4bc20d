// Costs two clock readings a recomputed layer while it runs, one branch a layer while it does not.
#include "apps/cli/training/recompute_clock.h"

#include <reprise/checkpoint.h>

#include <chrono>
#include <utility>

#include "apps/cli/training/device.h"

namespace reprise::app {

// One run of a layer. A recomputation may leave the layer by an exception (early stop), hence the
// destructor.
class RecomputeClock::Lap {
 public:
  explicit Lap(State& state) : state_(state) {
    synchronize(state.device);
    start_ = std::chrono::steady_clock::now();
  }
  ~Lap() {
    synchronize(state_.device);
    state_.nanoseconds +=
        std::chrono::nanoseconds(std::chrono::steady_clock::now() - start_).count();
  }
  Lap(const Lap&) = delete;
  Lap& operator=(const Lap&) = delete;

 private:
  State& state_;
  std::chrono::steady_clock::time_point start_;
};

models::Layer RecomputeClock::watched(models::Layer layer) const {
  return [state = state_, layer = std::move(layer)](const at::Tensor& x) {
    if (!state->running || !is_recomputing()) return layer(x);
    const Lap lap(*state);
    return layer(x);
  };
}

void RecomputeClock::watch(Network& network) {
  network.wrap_layers([this](models::Layer layer) { return watched(std::move(layer)); });
}

void RecomputeClock::start(c10::Device device) {
  state_->device = device;
  state_->nanoseconds = 0;
  state_->running = true;
}

double RecomputeClock::stop() {
  state_->running = false;
  return static_cast<double>(state_->nanoseconds) * 1e-9;
}

}  // namespace reprise::app
