// Snapshots of random generators, with which a recomputation draws the same dropout mask again.
//
// checkpoint() takes and restores them by itself. They are public for functions that manage random
// state by hand, as torch.utils.checkpoint's get_device_states and set_device_states are.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <memory>
#include <span>
#include <vector>

namespace reprise {

// The states of some generators at one moment. Copies share one immutable snapshot.
//
// Thread rules: taking and restoring lock each generator for the moment of the copy. Restoring
// changes a generator that other threads may be drawing from. Recomputations of reprise exclude
// each other while they replay draws. A thread that draws on its own disturbs another thread's
// replay, as in PyTorch. Threads that must draw concurrently should own their generators
// (CheckpointOptions::generators).
class RandomState {
 public:
  RandomState() = default;

  // The CPU's default generator and the default generators of `devices`. CPU and meta devices in
  // the list are ignored, duplicates are taken once, and device types may be mixed (torch ignores
  // all but one type). Throws UsageError for a device whose backend is not available.
  static RandomState of_devices(std::span<const c10::Device> devices);
  // Exactly these generators, on any device. All must be defined.
  static RandomState of_generators(std::span<const at::Generator> generators);

  // Sets every generator back to its state at the snapshot.
  void restore() const;
  // True if no generator has drawn, been seeded or been restored to another state since.
  bool is_current() const;
  bool empty() const { return states_ == nullptr; }

 private:
  static RandomState of_cpu();

  struct States;
  std::shared_ptr<const States> states_;
};

// The accelerator devices of these tensors, in order of first appearance and without repetition.
// CPU, meta and undefined tensors have none.
std::vector<c10::Device> accelerator_devices(std::span<const at::Tensor> tensors);

// The default generators' states for the devices of `tensors`, as torch.utils.checkpoint (2.15)
// has them in get_device_states: one state tensor (uint8, on the CPU) a device.
struct DeviceStates {
  std::vector<c10::Device> devices;
  std::vector<at::Tensor> states;
};
DeviceStates get_device_states(std::span<const at::Tensor> tensors);
// Restores them. Skips meta devices. Throws UsageError if the two lists differ in length.
void set_device_states(const DeviceStates& states);

// The device type whose current device a region snapshots, besides the CPU, if no argument of the
// region is an accelerator tensor. The setting is process-wide. Its default is the machine's
// accelerator, or the CPU.
class DefaultDeviceType {
 public:
  static c10::DeviceType get();
  // Throws UsageError for a type without random generators on this machine, such as meta.
  static void set(c10::DeviceType type);
};

}  // namespace reprise
