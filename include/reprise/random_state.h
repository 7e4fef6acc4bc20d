// Snapshots of random generators: what a recomputation needs to draw the same dropout mask again.
//
// `checkpoint()` takes and restores these by itself. They are public for functions that manage
// random state by hand, as torch.utils.checkpoint's get_device_states and set_device_states are.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <memory>
#include <span>
#include <vector>

namespace reprise {

// The state of some generators at one moment. Copies share one immutable snapshot.
//
// Thread rules: taking and restoring lock each generator for the moment of the copy. A restore sets
// a generator that other threads may be drawing from; reprise's own recomputations exclude each
// other while they replay draws, but a thread that draws on its own during another one's replay
// disturbs it, as in PyTorch. Threads that must draw concurrently should own their generators (see
// CheckpointOptions::generators).
class RandomState {
 public:
  RandomState() = default;

  // The CPU's default generator and the default generators of `devices` (CPU and meta devices in
  // the list are ignored, duplicates taken once). Any number of device types may be mixed; torch
  // ignores all but one. Throws UsageError for a device whose backend is not available.
  static RandomState of_devices(std::span<const c10::Device> devices);
  // Exactly these generators, defined ones, of any device.
  static RandomState of_generators(std::span<const at::Generator> generators);

  // Puts every generator back to the state it had when the snapshot was taken.
  void restore() const;
  // True when no generator has drawn, been seeded or been restored to another state since.
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

// The default generators' states of the devices of `tensors`, as (2.13) torch.utils.checkpoint's
// get_device_states: one state tensor (uint8, on the CPU) per device.
struct DeviceStates {
  std::vector<c10::Device> devices;
  std::vector<at::Tensor> states;
};
DeviceStates get_device_states(std::span<const at::Tensor> tensors);
// Restores them. Meta devices are skipped. Throws UsageError if the two lists differ in length.
void set_device_states(const DeviceStates& states);

// The device type whose current device is snapshotted besides the CPU by a region that has no
// accelerator tensor among its arguments. Process-wide; default: the machine's accelerator, or the
// CPU.
class DefaultDeviceType {
 public:
  static c10::DeviceType get();
  // Throws UsageError for a type without random generators (meta) on this machine.
  static void set(c10::DeviceType type);
};

}  // namespace reprise
