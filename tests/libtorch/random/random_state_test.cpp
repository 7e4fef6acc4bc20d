// Replay of random draws, bitwise, through snapshots of CPU generators. (Devices:
// tests/fake_device.)
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <reprise/error.h>
#include <reprise/random_state.h>
#include <torch/torch.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/refusal.h"

namespace reprise {
namespace {

at::Generator default_generator() { return at::detail::getDefaultCPUGenerator(); }

RandomState cpu_state() { return RandomState::of_devices({}); }

struct Draw {
  std::string name;
  std::function<at::Tensor()> run;
};
void PrintTo(const Draw& draw, std::ostream* out) { *out << draw.name; }

class RandomStateReplay : public ::testing::TestWithParam<Draw> {};

TEST_P(RandomStateReplay, RepeatsTheDrawBitwise) {
  torch::manual_seed(7);
  RandomState state = cpu_state();
  at::Tensor first = GetParam().run();
  EXPECT_FALSE(state.is_current());
  state.restore();
  EXPECT_TRUE(state.is_current());
  at::Tensor second = GetParam().run();
  EXPECT_TRUE(at::equal(first, second));
  EXPECT_FALSE(at::equal(first, GetParam().run())) << "the draw is not random";
}

INSTANTIATE_TEST_SUITE_P(
    Draws, RandomStateReplay,
    ::testing::Values(Draw{"randn", [] { return torch::randn({100}); }},
                      Draw{"randn_few", [] { return torch::randn({3}); }},
                      Draw{"randn_double", [] { return torch::randn({33}, at::kDouble); }},
                      Draw{"rand", [] { return torch::rand({100}); }},
                      Draw{"randint", [] { return torch::randint(1000, {50}); }},
                      Draw{"randperm", [] { return torch::randperm(64); }},
                      Draw{"bernoulli", [] { return torch::empty({200}).bernoulli_(0.5); }},
                      Draw{"dropout", [] { return torch::dropout(torch::ones({200}), 0.5, true); }},
                      Draw{"multinomial",
                           [] { return torch::multinomial(torch::ones({50}), 20, false); }}),
    [](const auto& info) { return info.param.name; });

TEST(RandomState, KeepsTheHalfOfANormalPairThatWasNotHandedOut) {
  torch::manual_seed(7);
  torch::randn({3});  // draws pairs one by one and leaves a half behind
  ASSERT_TRUE(default_generator().get<at::CPUGeneratorImpl>()->next_double_normal_sample());
  RandomState state = cpu_state();
  at::Tensor first = torch::randn({3});
  torch::randn({1});
  state.restore();
  EXPECT_TRUE(at::equal(first, torch::randn({3})));
}

TEST(RandomState, NoticesThatOnlyTheHalfPairWasUsed) {
  torch::manual_seed(7);
  torch::randn({3});
  RandomState state = cpu_state();
  torch::randn({1});
  EXPECT_FALSE(state.is_current());
}

TEST(RandomState, NoticesDrawsThatLeaveThePositionWhereItWas) {
  torch::manual_seed(7);
  auto* generator = default_generator().get<at::CPUGeneratorImpl>();
  generator->random();
  RandomState state = cpu_state();
  for (int i = 0; i < at::MERSENNE_STATE_N; ++i) generator->random();
  EXPECT_FALSE(state.is_current());
}

TEST(RandomState, StaysCurrentWhileNothingIsDrawn) {
  RandomState state = cpu_state();
  at::Tensor x = torch::ones({8, 8}, torch::requires_grad());
  x.mm(x).sin().sum().backward();
  torch::dropout(x, 0.5, /*train=*/false);
  EXPECT_TRUE(state.is_current());
}

TEST(RandomState, NoticesSeeding) {
  torch::manual_seed(7);
  RandomState state = cpu_state();
  torch::manual_seed(8);
  EXPECT_FALSE(state.is_current());
  torch::manual_seed(7);
  EXPECT_TRUE(state.is_current());
}

TEST(RandomState, MayBeRestoredAnyNumberOfTimesAndFromCopies) {
  RandomState state = cpu_state();
  at::Tensor first = torch::rand({10});
  RandomState copy = state;
  state = RandomState();
  for (int i = 0; i < 3; ++i) {
    copy.restore();
    EXPECT_TRUE(at::equal(first, torch::rand({10})));
  }
}

TEST(RandomState, AnEmptyOneRestoresNothingAndIsAlwaysCurrent) {
  RandomState empty;
  EXPECT_TRUE(empty.empty());
  RandomState state = cpu_state();
  EXPECT_FALSE(state.empty());
  empty.restore();
  EXPECT_TRUE(state.is_current());
  torch::rand({1});
  EXPECT_TRUE(empty.is_current());
}

TEST(RandomState, AgreesWithLibTorchsOwnStateTensor) {
  torch::manual_seed(3);
  torch::randn({5});
  at::Tensor tensor = default_generator().get_state();
  RandomState state = cpu_state();
  torch::randn({1000});
  state.restore();
  EXPECT_TRUE(at::equal(tensor, default_generator().get_state()));
}

TEST(RandomState, ReplaysGeneratorsOfTheUserAndLeavesTheDefaultOneAlone) {
  std::vector<at::Generator> generators{at::detail::createCPUGenerator(1),
                                        at::make_generator<at::CPUGeneratorImpl>(2)};
  RandomState state = RandomState::of_generators(generators);
  auto draw = [&] {
    return at::cat({at::rand({4}, generators[0]), at::randn({5}, generators[1])});
  };
  at::Tensor first = draw();
  EXPECT_FALSE(state.is_current());
  RandomState default_state = cpu_state();
  state.restore();
  EXPECT_TRUE(state.is_current());
  EXPECT_TRUE(at::equal(first, draw()));
  EXPECT_TRUE(default_state.is_current());
}

TEST(RandomState, KeepsAUsersGeneratorAlive) {
  RandomState state;
  {
    at::Generator generator = at::detail::createCPUGenerator(1);
    state = RandomState::of_generators({&generator, 1});
  }
  EXPECT_TRUE(state.is_current());
  state.restore();
}

// A generator that keeps state which LibTorch's own generator has not.
struct CountingGenerator final : at::CPUGeneratorImpl {
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return at::full({1}, count, at::kByte).getIntrusivePtr();
  }
  void set_state(const c10::TensorImpl& state) override {
    count = *static_cast<const std::uint8_t*>(state.data());
  }
  std::uint8_t count = 0;
};

TEST(RandomState, AsksGeneratorsOfAUsersOwnTypeForTheirState) {
  auto generator = at::make_generator<CountingGenerator>();
  auto* own = generator.get<CountingGenerator>();
  own->count = 5;
  RandomState state = RandomState::of_generators({&generator, 1});
  EXPECT_TRUE(state.is_current());
  own->count = 9;
  EXPECT_FALSE(state.is_current());
  state.restore();
  EXPECT_EQ(own->count, 5);
}

TEST(RandomState, NamesTheUndefinedGenerator) {
  std::vector<at::Generator> generators{at::detail::createCPUGenerator(), at::Generator()};
  std::string message = refusal_of([&] { RandomState::of_generators(generators); });
  EXPECT_NE(message.find("generator 1 of 2 is undefined"), std::string::npos) << message;
}

TEST(RandomState, IgnoresTheCpuAndMetaDevices) {
  std::vector<c10::Device> devices{c10::kCPU, c10::kMeta, c10::kCPU};
  RandomState state = RandomState::of_devices(devices);
  at::Tensor first = torch::rand({3});
  state.restore();
  EXPECT_TRUE(at::equal(first, torch::rand({3})));
}

TEST(RandomState, NamesADeviceThatIsNotThere) {
  c10::Device device("xpu:1");
  std::string message = refusal_of([&] { RandomState::of_devices({&device, 1}); });
  EXPECT_NE(message.find("device xpu:1 has no random generator here"), std::string::npos)
      << message;
  EXPECT_NE(message.find("cpu"), std::string::npos) << message;
}

TEST(RandomState, IsNeverTornByThreadsThatDraw) {
  auto generator = at::detail::createCPUGenerator(5);
  RandomState state = RandomState::of_generators({&generator, 1});
  at::Tensor expected = at::rand({1}, generator);
  std::atomic<bool> stop = false;
  std::thread drawer([&] {
    while (!stop) at::rand({700}, generator);
  });
  for (int i = 0; i < 500; ++i) {
    RandomState now = RandomState::of_generators({&generator, 1});
    now.is_current();
    state.restore();
  }
  stop = true;
  drawer.join();
  state.restore();
  EXPECT_TRUE(at::equal(expected, at::rand({1}, generator)));
}

TEST(AcceleratorDevices, OfCpuMetaAndUndefinedTensorsAreNone) {
  std::vector<at::Tensor> tensors{torch::ones({2}), torch::empty({2}, at::kMeta), at::Tensor()};
  EXPECT_TRUE(accelerator_devices(tensors).empty());
  EXPECT_TRUE(get_device_states(tensors).devices.empty());
}

TEST(DeviceStates, RestoreTheCpuAndSkipMeta) {
  DeviceStates states;
  states.devices = {c10::kCPU, c10::kMeta};
  states.states = {default_generator().get_state(), at::Tensor()};
  at::Tensor first = torch::rand({4});
  set_device_states(states);
  EXPECT_TRUE(at::equal(first, torch::rand({4})));
}

TEST(DeviceStates, RefuseListsOfDifferentLength) {
  DeviceStates states;
  states.devices = {c10::kCPU};
  std::string message = refusal_of([&] { set_device_states(states); });
  EXPECT_NE(message.find("1 devices and 0 states"), std::string::npos) << message;
}

TEST(DefaultDeviceType, IsSettableAndRefusesTypesWithoutGenerators) {
  c10::DeviceType before = DefaultDeviceType::get();
  DefaultDeviceType::set(c10::kCPU);
  EXPECT_EQ(DefaultDeviceType::get(), c10::kCPU);
  std::string message = refusal_of([] { DefaultDeviceType::set(c10::kMeta); });
  EXPECT_NE(message.find("device meta has no random generator"), std::string::npos) << message;
  EXPECT_EQ(DefaultDeviceType::get(), c10::kCPU);
  DefaultDeviceType::set(before);
}

}  // namespace
}  // namespace reprise
