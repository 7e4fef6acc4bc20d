// Registers the fake accelerator with LibTorch before main().
#include "tests/fake_device/fake_device.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/FakeGuardImpl.h>

#include <array>
#include <cstring>
#include <stdexcept>
#include <vector>

namespace reprise::testing_support {

namespace {

using FakeGuard = c10::impl::FakeGuardImpl<c10::kPrivateUse1>;
using c10::CachingDeviceAllocator::DeviceStats;
constexpr auto kAggregate = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
static_assert(kFakeDevices == c10::impl::kFakeGuardImplMaxDevices);

std::array<DeviceStats, kFakeDevices>& statistics() {
  static std::array<DeviceStats, kFakeDevices> all;
  return all;
}

// What must be known to take the bytes back; there is no memory behind it.
struct Block {
  std::size_t bytes;
  c10::DeviceIndex device;
};

void release(void* pointer) {
  auto* block = static_cast<Block*>(pointer);
  DeviceStats& stats = statistics().at(static_cast<std::size_t>(block->device));
  stats.allocated_bytes[kAggregate].decrease(block->bytes);
  stats.allocation[kAggregate].decrease(1);
  delete block;
}

class FakeAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    auto device = FakeGuard::getDeviceIndex();
    DeviceStats& stats = statistics().at(static_cast<std::size_t>(device));
    stats.allocated_bytes[kAggregate].increase(bytes);
    stats.allocation[kAggregate].increase(1);
    auto* block = new Block{bytes, device};
    return {block, block, &release, fake(device)};
  }
  void copy_data(void*, const void*, std::size_t) const override {
    throw std::logic_error("the fake device has no memory");
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    return statistics().at(static_cast<std::size_t>(device));
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    statistics().at(static_cast<std::size_t>(device)).allocation[kAggregate].reset_accumulated();
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    statistics().at(static_cast<std::size_t>(device)).allocated_bytes[kAggregate].reset_peak();
  }
};

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
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    if (index == -1) index = FakeGuard::getDeviceIndex();
    TORCH_CHECK(index < kFakeDevices, "no fake device has index ", static_cast<int>(index));
    return generators()[static_cast<std::size_t>(index)];
  }
};

const bool registered = [] {
  static FakeAllocator allocator;
  c10::register_privateuse1_backend("fake");
  c10::impl::DeviceGuardImplRegistrar(c10::kPrivateUse1, new FakeGuard);
  c10::SetAllocator(c10::kPrivateUse1, &allocator);
  at::RegisterPrivateUse1HooksInterface(new FakeHooks);
  return true;
}();

}  // namespace

void set_current_fake_device(int index) {
  FakeGuard::setDeviceIndex(static_cast<c10::DeviceIndex>(index));
}

c10::DataPtr allocate_fake(std::int64_t bytes, int index) {
  c10::DeviceIndex before = FakeGuard::getDeviceIndex();
  set_current_fake_device(index);
  auto data = c10::GetAllocator(c10::kPrivateUse1)->allocate(static_cast<std::size_t>(bytes));
  set_current_fake_device(before);
  return data;
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
