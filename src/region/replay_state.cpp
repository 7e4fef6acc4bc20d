#include "region/replay_state.h"

#include <ATen/DeviceAccelerator.h>

#include <reprise/error.h>

#include "libtorch/cpu_generator_state.h"
#include "libtorch/thread_state.h"

namespace reprise::region {
namespace {

std::mutex& replay_mutex() {
  // Never destroyed: a backward on a detached thread may outlive static destruction.
  static auto* mutex = new std::mutex;
  return *mutex;
}

std::vector<c10::Device> devices_of_region(at::TensorList tensors) {
  std::vector<c10::Device> devices = accelerator_devices({tensors.data(), tensors.size()});
  if (devices.empty()) {
    if (const c10::DeviceType type = DefaultDeviceType::get(); type != c10::kCPU) {
      devices.emplace_back(type, at::accelerator::getDeviceIndex());
    }
  }
  return devices;
}

bool has_generator(c10::Device device) {
  try {
    RandomState::of_devices(std::span<const c10::Device>(&device, 1));
    return true;
  } catch (const UsageError&) {
    return false;
  }
}

}  // namespace

ReplayState::ReplayState(const CheckpointOptions& options, at::TensorList tensors)
    : random_(options.preserve_rng_state) {
  if (random_) {
    devices_ = devices_of_region(tensors);
    generators_ = options.generators;
    try {
      default_state_ = take_default();
    } catch (const UsageError&) {
      // Some backends have tensors and no generators: there is nothing to replay on those.
      std::erase_if(devices_, [](c10::Device device) { return !has_generator(device); });
      default_state_ = take_default();
    }
    own_state_ = take_own();
    restores_before_ = libtorch::count_of_restores();
  }
  if (options.preserve_ambient_state) ambient_ = libtorch::AmbientState::take();
}

RandomState ReplayState::take_default() const { return RandomState::of_devices(devices_); }

RandomState ReplayState::take_own() const {
  return generators_.empty() ? RandomState() : RandomState::of_generators(generators_);
}

void ReplayState::end_forward() {
  if (!random_) return;
  // A function that set generators itself may have drawn and covered it up.
  if (libtorch::count_of_restores() != restores_before_) return;
  if (default_state_.is_current()) default_state_ = {};
  if (!own_state_.empty() && own_state_.is_current()) own_state_ = {};
}

ReplayState::Scope::Scope(const ReplayState& state) {
  if (state.ambient_) ambient_.emplace(*state.ambient_);
  if (!state.random_) return;
  replays_random_ = !state.default_state_.empty() || !state.own_state_.empty();
  // Without the lock nothing may be touched, or another thread's replay would be disturbed.
  if (!replays_random_) return;
  const libtorch::ThreadState* thread = libtorch::current_state();
  if (thread == nullptr || !thread->replaying_random) {
    lock_ = std::unique_lock<std::mutex>(replay_mutex());
  }
  if (!state.default_state_.empty()) default_before_ = state.take_default();
  if (!state.own_state_.empty()) own_before_ = state.take_own();
  try {
    if (!state.default_state_.empty()) state.default_state_.restore();
    if (!state.own_state_.empty()) state.own_state_.restore();
  } catch (...) {
    put_back();
    throw;
  }
}

ReplayState::Scope::~Scope() {
  try {
    put_back();
  } catch (const std::exception& error) {
    TORCH_WARN("checkpoint(): a random generator could not be put back after a recomputation: ",
               error.what());
  }
}

void ReplayState::Scope::put_back() {
  if (!own_before_.empty() && !own_before_.is_current()) own_before_.restore();
  if (!default_before_.empty() && !default_before_.is_current()) default_before_.restore();
}

}  // namespace reprise::region
