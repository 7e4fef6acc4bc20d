// Regions on an accelerator; skipped where there is none. What is not particular to a device is
// tested on the CPU.
#include <ATen/DeviceAccelerator.h>
#include <ATen/autocast_mode.h>
#include <reprise/random_state.h>

#include "tests/region/testing.h"

namespace reprise {
namespace {

using namespace reprise::testing;

class CheckpointAccelerator : public ::testing::TestWithParam<Variant> {
 protected:
  void SetUp() override {
    const auto type = at::accelerator::getAccelerator();
    if (!type || at::accelerator::deviceCount() == 0) GTEST_SKIP() << "there is no accelerator";
    device_ = c10::Device(*type, 0);
    torch::manual_seed(14);
  }
  at::Tensor device_leaf(at::IntArrayRef sizes) {
    return torch::randn(sizes, device_).requires_grad_(true);
  }
  CheckpointOptions options_ = options_of(GetParam());
  c10::Device device_ = c10::kCPU;
};
INSTANTIATE_TEST_SUITE_P(Variants, CheckpointAccelerator,
                         ::testing::Values(Variant::kNonReentrant, Variant::kReentrant),
                         variant_name);

TEST_P(CheckpointAccelerator, RecomputeReplaysTheDropoutMask) {
  const auto body = [](const at::Tensor& t) { return dropout(t).exp(); };
  for (std::uint64_t round = 0; round < 5; ++round) {
    const at::Tensor x = device_leaf({20000});
    EXPECT_TRUE(
        same_bits(gradients_of([&] { return checkpoint(options_, body, dropout(x)); }, {x}, round),
                  gradients_of([&] { return body(dropout(x)); }, {x}, round)));
  }
}

TEST_P(CheckpointAccelerator, WithoutPreserveRngStateARegionRuns) {
  options_.preserve_rng_state = false;
  const at::Tensor x = device_leaf({2});
  checkpoint(options_, dropout, x).sum().backward();
  EXPECT_TRUE(x.grad().defined());
}

TEST_P(CheckpointAccelerator, DrawsOnTheDeviceAreReplayedForArgumentsOnTheHost) {
  const at::Tensor x = leaf({5000});
  const auto body = [&](const at::Tensor& t) { return dropout(t.to(device_)).exp().cpu(); };
  EXPECT_TRUE(same_bits(gradients_of([&] { return checkpoint(options_, body, x); }, {x}),
                        gradients_of([&] { return body(x); }, {x})));
}

TEST_P(CheckpointAccelerator, AutocastOfTheDeviceIsAsInForward) {
  const at::Tensor x = device_leaf({8, 8}), y = device_leaf({8, 8});
  std::vector<at::ScalarType> seen;
  const auto body = [&](const at::Tensor& a, const at::Tensor& b) {
    const at::Tensor product = a.mm(b);
    seen.push_back(product.scalar_type());
    return product.mm(b);
  };
  at::autocast::set_autocast_enabled(device_.type(), true);
  at::autocast::set_autocast_dtype(device_.type(), at::kBFloat16);
  const at::Tensor loss = checkpoint(options_, body, x, y).sum();
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_.type(), false);
  loss.backward();
  EXPECT_EQ(seen, std::vector<at::ScalarType>(2, at::kBFloat16));
}

TEST_P(CheckpointAccelerator, PeakOfAStepIsBelowThePlainOne) {
  torch::nn::Sequential layer(torch::nn::Linear(256, 256), torch::nn::Tanh(),
                              torch::nn::Linear(256, 256), torch::nn::Tanh());
  layer->to(device_);
  const at::Tensor x = device_leaf({4096, 256});
  const auto peak = [&](auto&& call) {
    const PeakScope scope(device_);
    at::Tensor y = x;
    for (int i = 0; i < 8; ++i) y = call(y);
    y.sum().backward();
    return scope.peak_above_start();
  };
  const auto plain = [&](const at::Tensor& t) { return layer->forward(t); };
  peak(plain);
  EXPECT_LT(peak([&](const at::Tensor& t) { return checkpoint(options_, layer, t); }), peak(plain));
}

TEST_P(CheckpointAccelerator, ABackwardThatStartsOnTheHostMayEndInsideARegionOnTheDevice) {
  const at::Tensor x = torch::rand({2}).requires_grad_(true);
  at::Tensor branch = x.to(device_);
  for (int i = 0; i < 3; ++i) branch = branch / branch;
  const auto to_device = [&](const at::Tensor& t) { return (t * 2 * 2 * 2 * 2).to(device_); };
  (checkpoint(options_, to_device, x) + branch).sum().backward();
  EXPECT_TRUE(torch::allclose(x.grad(), torch::full({2}, 16.0)));
}

TEST_P(CheckpointAccelerator, StatesOfSeveralDevicesAreFoundInContainers) {
  const auto count = at::accelerator::deviceCount();
  if (count < 2) GTEST_SKIP() << "there is one accelerator only";
  const c10::Device second(device_.type(), 1);
  const Tensors tensors = {torch::rand({10}, device_), torch::rand({10}, second),
                           torch::rand({10}, device_)};
  const DeviceStates states = get_device_states(tensors);
  EXPECT_EQ(states.devices, (std::vector<c10::Device>{device_, second}));
  EXPECT_EQ(states.states.size(), 2u);
}

TEST_P(CheckpointAccelerator, DeviceTypesMayBeMixedWithoutAWarning) {
  WarningLog log;
  const Tensors tensors = {torch::rand({10}, device_), torch::rand({10}, torch::kMeta),
                           torch::rand({10})};
  EXPECT_EQ(accelerator_devices(tensors), std::vector<c10::Device>{device_});
  EXPECT_TRUE(log.texts.empty());
}

}  // namespace
}  // namespace reprise
