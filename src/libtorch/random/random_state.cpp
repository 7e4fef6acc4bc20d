// Snapshots of generators of any device. The CPU's are copied as plain structures
// (cpu_generator_state.h); all others speak for themselves, through get_state() and set_state(),
// which is what torch.utils.checkpoint uses and what every backend must offer.
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <reprise/error.h>
#include <reprise/random_state.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include "libtorch/random/cpu_generator_state.h"

namespace reprise {

namespace {

using libtorch::CpuGeneratorState;

at::CPUGeneratorImpl& cpu_impl(const at::Generator& generator) {
  return *generator.get<at::CPUGeneratorImpl>();
}

// Generators are handles; locking one does not change it.
at::Tensor state_tensor(at::Generator generator) {
  std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_state_tensor(at::Generator generator, const at::Tensor& state) {
  std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

std::string present_devices() {
  auto accelerator = at::accelerator::getAccelerator();
  if (!accelerator || at::accelerator::deviceCount() == 0) return "only cpu is";
  return "cpu and " + c10::DeviceTypeName(*accelerator, /*lower_case=*/true) + " are";
}

at::Generator default_generator(c10::Device device) {
  try {
    return at::globalContext().defaultGenerator(device);
  } catch (const c10::Error& error) {
    throw UsageError(
        "device " + device.str() + " has no random generator here, where " + present_devices() +
        " present. Use one of these. (LibTorch says: " + error.what_without_backtrace() + ")");
  }
}

bool has_generator(c10::Device device) { return !device.is_cpu() && !device.is_meta(); }

}  // namespace

struct RandomState::States {
  struct Cpu {
    explicit Cpu(at::Generator source) : generator(std::move(source)), state(cpu_impl(generator)) {}
    at::Generator generator;
    CpuGeneratorState state;
  };
  struct Other {
    explicit Other(at::Generator source)
        : generator(std::move(source)), state(state_tensor(generator)) {}
    at::Generator generator;
    at::Tensor state;
  };

  // Not defaulted: the implicit one would write zeros over 2.5 KB first.
  States() {}

  void add(const at::Generator& generator) {
    if (!libtorch::is_plain_cpu_generator(generator)) {
      others.emplace_back(generator);
    } else if (!first_cpu) {
      first_cpu.emplace(generator);
    } else {
      more_cpu.emplace_back(generator);
    }
  }

  // The usual snapshot is one CPU generator; it takes a single allocation.
  std::optional<Cpu> first_cpu;
  std::vector<Cpu> more_cpu;
  std::vector<Other> others;
};

RandomState RandomState::of_cpu() {
  // Regions that draw nothing follow each other: they share one snapshot, and are spared 2.5 KB
  // each, which malloc also serves slowly.
  static thread_local RandomState latest;
  if (latest.empty() || !latest.is_current()) {
    auto states = std::make_shared<States>();
    states->first_cpu.emplace(at::detail::getDefaultCPUGenerator());
    latest.states_ = std::move(states);
  }
  return latest;
}

RandomState RandomState::of_devices(std::span<const c10::Device> devices) {
  if (std::none_of(devices.begin(), devices.end(), has_generator)) return of_cpu();
  auto states = std::make_shared<States>();
  states->first_cpu.emplace(at::detail::getDefaultCPUGenerator());
  for (c10::Device device : devices) {
    if (!has_generator(device)) continue;
    at::Generator generator = default_generator(device);
    // Compared by generator, since a device without index is the current one.
    auto known = [&](const States::Other& other) { return other.generator == generator; };
    if (std::none_of(states->others.begin(), states->others.end(), known)) {
      states->others.emplace_back(std::move(generator));
    }
  }
  RandomState result;
  result.states_ = std::move(states);
  return result;
}

RandomState RandomState::of_generators(std::span<const at::Generator> generators) {
  auto states = std::make_shared<States>();
  for (std::size_t i = 0; i < generators.size(); ++i) {
    if (!generators[i].defined()) {
      throw UsageError("generator " + std::to_string(i) + " of " +
                       std::to_string(generators.size()) +
                       " is undefined; leave it out or make one, for example with "
                       "at::detail::createCPUGenerator()");
    }
    states->add(generators[i]);
  }
  RandomState result;
  result.states_ = std::move(states);
  return result;
}

void RandomState::restore() const {
  if (empty()) return;
  libtorch::count_restore();
  if (states_->first_cpu) {
    states_->first_cpu->state.restore(cpu_impl(states_->first_cpu->generator));
  }
  for (const auto& cpu : states_->more_cpu) cpu.state.restore(cpu_impl(cpu.generator));
  for (const auto& other : states_->others) set_state_tensor(other.generator, other.state);
}

bool RandomState::is_current() const {
  if (empty()) return true;
  auto cpu_is_current = [](const States::Cpu& cpu) {
    return cpu.state.is_current(cpu_impl(cpu.generator));
  };
  auto other_is_current = [](const States::Other& other) {
    at::Tensor now = state_tensor(other.generator);
    return now.nbytes() == other.state.nbytes() &&
           std::memcmp(now.const_data_ptr(), other.state.const_data_ptr(), now.nbytes()) == 0;
  };
  return (!states_->first_cpu || cpu_is_current(*states_->first_cpu)) &&
         std::all_of(states_->more_cpu.begin(), states_->more_cpu.end(), cpu_is_current) &&
         std::all_of(states_->others.begin(), states_->others.end(), other_is_current);
}

std::vector<c10::Device> accelerator_devices(std::span<const at::Tensor> tensors) {
  std::vector<c10::Device> devices;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || !has_generator(tensor.device())) continue;
    if (std::find(devices.begin(), devices.end(), tensor.device()) == devices.end()) {
      devices.push_back(tensor.device());
    }
  }
  return devices;
}

DeviceStates get_device_states(std::span<const at::Tensor> tensors) {
  DeviceStates result{accelerator_devices(tensors), {}};
  for (c10::Device device : result.devices) {
    result.states.push_back(state_tensor(default_generator(device)));
  }
  return result;
}

void set_device_states(const DeviceStates& states) {
  if (states.devices.size() != states.states.size()) {
    throw UsageError("set_device_states was given " + std::to_string(states.devices.size()) +
                     " devices and " + std::to_string(states.states.size()) +
                     " states; give one state for each device");
  }
  libtorch::count_restore();
  for (std::size_t i = 0; i < states.devices.size(); ++i) {
    if (states.devices[i].is_meta()) continue;
    set_state_tensor(default_generator(states.devices[i]), states.states[i]);
  }
}

namespace {

// -1: not set. Read by every region without an accelerator tensor, from any thread.
std::atomic<int> chosen_default_type{-1};

c10::DeviceType machine_default_type() {
  // Asked once: LibTorch takes longer over it than a region may.
  static const c10::DeviceType type = [] {
    auto accelerator = at::accelerator::getAccelerator();
    return accelerator && at::accelerator::deviceCount() > 0 ? *accelerator : c10::kCPU;
  }();
  return type;
}

}  // namespace

c10::DeviceType DefaultDeviceType::get() {
  int chosen = chosen_default_type.load(std::memory_order_relaxed);
  return chosen < 0 ? machine_default_type() : static_cast<c10::DeviceType>(chosen);
}

void DefaultDeviceType::set(c10::DeviceType type) {
  if (type != c10::kCPU) default_generator(c10::Device(type, -1));
  chosen_default_type.store(static_cast<int>(type), std::memory_order_relaxed);
}

}  // namespace reprise
