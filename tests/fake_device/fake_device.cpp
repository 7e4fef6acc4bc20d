// Registers the fake accelerator with LibTorch before main(), with its generators. Its memory,
// streams and operators are in files of their own.
#include "tests/fake_device/fake_device.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/empty.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>

#include <cstring>
#include <vector>

#include "tests/fake_device/fake_streams.h"

namespace reprise::testing_support {

namespace {

std::vector<at::Generator>& generators() {
  static std::vector<at::Generator> all = [] {
    std::vector<at::Generator> made;
    for (int i = 0; i < kFakeDevices; ++i)
      made.push_back(at::make_generator<FakeGenerator>(fake(i)));
    return made;
  }();
  return all;
}

struct FakeHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  // Any memory of the host will do.
  at::Allocator* getPinnedMemoryAllocator() const override { return c10::GetAllocator(c10::kCPU); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    if (index == -1) index = c10::impl::getDeviceGuardImpl(c10::kPrivateUse1)->getDevice().index();
    TORCH_CHECK(index < kFakeDevices, "no fake device has index ", static_cast<int>(index));
    return generators()[static_cast<std::size_t>(index)];
  }
};

const bool device_registered = [] {
  c10::register_privateuse1_backend("fake");
  at::RegisterPrivateUse1HooksInterface(new FakeHooks);
  return true;
}();

}  // namespace

c10::DataPtr allocate_fake(std::int64_t bytes, int index) {
  const c10::DeviceGuard guard(fake(index));
  return c10::GetAllocator(c10::kPrivateUse1)->allocate(static_cast<std::size_t>(bytes));
}

at::Tensor tensor_on(c10::Device device) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), sizeof(float),
                       c10::DataPtr(nullptr, device),
                       /*allocator=*/nullptr, /*resizable=*/false);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      caffe2::TypeMeta::Make<float>());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({1});
  return tensor;
}

FakeGenerator::FakeGenerator(c10::Device device)
    : c10::GeneratorImpl(device, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

std::uint64_t FakeGenerator::get_offset() const {
  TORCH_CHECK(FakeStreams::recorded != current_fake_stream(device().index()), "a graph records");
  return drawn;
}

void FakeGenerator::set_state(const c10::TensorImpl& state) {
  std::memcpy(&drawn, state.data(), sizeof drawn);
}

c10::intrusive_ptr<c10::TensorImpl> FakeGenerator::get_state() const {
  at::Tensor state = at::empty({sizeof drawn}, at::kByte);
  std::memcpy(state.mutable_data_ptr(), &drawn, sizeof drawn);
  return state.getIntrusivePtr();
}

FakeGenerator* FakeGenerator::clone_impl() const {
  auto* copy = new FakeGenerator(device());
  copy->drawn = drawn;
  return copy;
}

FakeGenerator& fake_generator(int index) {
  return *generators()[static_cast<std::size_t>(index)].get<FakeGenerator>();
}

}  // namespace reprise::testing_support
