// Random state of accelerators: several devices and device types besides the CPU.
#include <gtest/gtest.h>
#include <reprise/error.h>
#include <reprise/random_state.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "tests/fake_device/fake_device.h"

namespace reprise {
namespace {

using testing_support::fake;
using testing_support::fake_generator;
using testing_support::FakeGenerator;
using testing_support::set_current_fake_device;
using testing_support::tensor_on;
using Devices = std::vector<c10::Device>;

TEST(DeviceRandomState, ReplaysTheCpuAndEveryNamedDevice) {
  Devices devices{fake(1), c10::kCPU, fake(0)};
  RandomState state = RandomState::of_devices(devices);
  at::Tensor on_cpu = torch::rand({5});
  auto on_0 = fake_generator(0).draw();
  auto on_1 = fake_generator(1).draw();
  auto on_2 = fake_generator(2).draw();
  state.restore();
  EXPECT_TRUE(state.is_current());
  EXPECT_TRUE(at::equal(on_cpu, torch::rand({5})));
  EXPECT_EQ(fake_generator(0).draw(), on_0);
  EXPECT_EQ(fake_generator(1).draw(), on_1);
  EXPECT_NE(fake_generator(2).draw(), on_2) << "fake:2 was not in the list";
}

TEST(DeviceRandomState, NoticesADrawOnAnyDevice) {
  Devices devices{fake(0), fake(1)};
  for (int drawn : {0, 1}) {
    RandomState state = RandomState::of_devices(devices);
    EXPECT_TRUE(state.is_current());
    fake_generator(drawn).draw();
    EXPECT_FALSE(state.is_current());
  }
}

TEST(DeviceRandomState, OfADeviceWithoutIndexIsTheOneCurrentWhenTaken) {
  set_current_fake_device(4);
  c10::Device current("fake");
  RandomState state = RandomState::of_devices({&current, 1});
  set_current_fake_device(0);
  fake_generator(0).draw();
  EXPECT_TRUE(state.is_current());
  fake_generator(4).draw();
  EXPECT_FALSE(state.is_current());
}

TEST(DeviceRandomState, MixesGeneratorsOfSeveralDeviceTypes) {
  std::vector<at::Generator> generators{at::detail::createCPUGenerator(1),
                                        at::make_generator<FakeGenerator>(fake(0)),
                                        at::make_generator<FakeGenerator>(c10::Device("xla:0"))};
  RandomState state = RandomState::of_generators(generators);
  at::Tensor on_cpu = at::rand({3}, generators[0]);
  auto on_fake = generators[1].get<FakeGenerator>()->draw();
  auto on_xla = generators[2].get<FakeGenerator>()->draw();
  EXPECT_FALSE(state.is_current());
  state.restore();
  EXPECT_TRUE(at::equal(on_cpu, at::rand({3}, generators[0])));
  EXPECT_EQ(generators[1].get<FakeGenerator>()->draw(), on_fake);
  EXPECT_EQ(generators[2].get<FakeGenerator>()->draw(), on_xla);
}

TEST(DeviceRandomState, NamesADeviceThatIsNotThereAndWhatIs) {
  for (const char* name : {"fake:9", "cuda:0"}) {
    c10::Device device(name);
    std::string message;
    try {
      RandomState::of_devices({&device, 1});
    } catch (const UsageError& error) {
      message = error.what();
    }
    EXPECT_NE(message.find("device " + std::string(name) + " has no random generator here"),
              std::string::npos)
        << message;
    EXPECT_NE(message.find("cpu and fake are present"), std::string::npos) << message;
  }
}

TEST(AcceleratorDevices, AreListedOnceInOrderOfAppearance) {
  std::vector<at::Tensor> tensors{torch::ones({1}), tensor_on(fake(3)), at::Tensor(),
                                  tensor_on(fake(1)), tensor_on(fake(3))};
  EXPECT_EQ(accelerator_devices(tensors), (Devices{fake(3), fake(1)}));
}

TEST(DeviceStates, AreTakenFromTensorsAndRestored) {
  std::vector<at::Tensor> tensors{tensor_on(fake(3)), torch::ones({1}), tensor_on(fake(1))};
  DeviceStates states = get_device_states(tensors);
  EXPECT_EQ(states.devices, (Devices{fake(3), fake(1)}));
  auto on_3 = fake_generator(3).draw();
  auto on_1 = fake_generator(1).draw();
  set_device_states(states);
  EXPECT_EQ(fake_generator(3).draw(), on_3);
  EXPECT_EQ(fake_generator(1).draw(), on_1);
}

TEST(DefaultDeviceType, IsTheMachinesAcceleratorUntilSet) {
  EXPECT_EQ(DefaultDeviceType::get(), c10::kPrivateUse1);
  DefaultDeviceType::set(c10::kCPU);
  EXPECT_EQ(DefaultDeviceType::get(), c10::kCPU);
  EXPECT_THROW(DefaultDeviceType::set(c10::kCUDA), UsageError);
  DefaultDeviceType::set(c10::kPrivateUse1);
  EXPECT_EQ(DefaultDeviceType::get(), c10::kPrivateUse1);
}

}  // namespace
}  // namespace reprise
