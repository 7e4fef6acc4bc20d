// The plain step comes first, so that what follows is the step as it would have been without it.
#include "apps/cli/training/verification.h"

#include <c10/core/GradMode.h>
#include <reprise/memory.h>

#include <array>
#include <chrono>

#include "apps/cli/training/device.h"

namespace reprise::app {

namespace {

class Stopwatch {
 public:
  explicit Stopwatch(double& milliseconds) : milliseconds_(milliseconds) {}
  ~Stopwatch() {
    const auto passed = std::chrono::steady_clock::now() - start_;
    milliseconds_ += std::chrono::duration<double, std::milli>(passed).count();
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& milliseconds_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

RandomState state_of(c10::Device device) {
  const std::array<c10::Device, 1> devices = {device};
  return RandomState::of_devices(devices);
}

}  // namespace

StartingPoint::StartingPoint(const torch::nn::Module& model, c10::Device device)
    : random_(state_of(device)) {
  const c10::NoGradGuard no_grad;
  for (const at::Tensor& buffer : model.buffers()) buffers_.emplace_back(buffer, buffer.clone());
}

void StartingPoint::restore() const {
  const c10::NoGradGuard no_grad;
  for (const auto& [buffer, before] : buffers_) buffer.copy_(before);
  random_.restore();
}

Verification::Verification(torch::nn::Module& model, c10::Device device,
                           const std::function<void()>& plain_step)
    : start_(model, device), device_(device) {
  const Stopwatch stopwatch(report_.milliseconds);
  const PeakScope memory(device);
  const auto restore = [&] {
    model.zero_grad();
    start_.restore();
  };
  model.zero_grad();
  try {
    plain_step();
    expected_ = gradient_bits(model);
  } catch (...) {
    restore();
    throw;
  }
  report_.peak = memory.peak();
  restore();
}

double Verification::compare(const torch::nn::Module& model) {
  synchronize(device_);
  double milliseconds = 0;
  {
    const Stopwatch stopwatch(milliseconds);
    report_.difference = first_difference(model, std::exchange(expected_, {}));
  }
  report_.milliseconds += milliseconds;
  return milliseconds;
}

}  // namespace reprise::app
