// An accelerator that is the host in disguise, so that the code for accelerators runs on a machine
// without one.
//
// LibTorch lets a program bring a backend of its own (PrivateUse1). This one has eight devices
// called "fake:0" to "fake:7", with generators, memory (fake_memory.h), streams and events
// (fake_streams.h), and the CPU's operators (fake_operators.h). A process in which it is registered
// has an accelerator for good; hence the tests that use it are a program of their own, in which it
// is registered from the start.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>

namespace reprise::testing_support {

constexpr c10::DeviceIndex kFakeDevices = 8;

inline c10::Device fake(int index) {
  return {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index)};
}

// The device that is current for the calling thread.
void set_current_fake_device(int index);

// Bytes on a device; freed with the pointer.
c10::DataPtr allocate_fake(std::int64_t bytes, int index = 0);

// A tensor of one float on `device`, of which only the metadata can be used.
at::Tensor tensor_on(c10::Device device);

// A generator for any device whose whole state is how often it was drawn from.
struct FakeGenerator final : c10::GeneratorImpl {
  explicit FakeGenerator(c10::Device device);

  std::uint64_t draw() { return ++drawn; }
  void set_current_seed(std::uint64_t seed) override { drawn = seed; }
  std::uint64_t current_seed() const override { return drawn; }
  std::uint64_t seed() override { return drawn; }
  void set_offset(std::uint64_t offset) override { drawn = offset; }
  // Throws while a graph records the current stream, as CUDA's generators do.
  std::uint64_t get_offset() const override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  std::uint64_t drawn = 0;

 protected:
  FakeGenerator* clone_impl() const override;
};

// The default generator of a fake device.
FakeGenerator& fake_generator(int index);

}  // namespace reprise::testing_support
