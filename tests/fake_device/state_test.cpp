// State and draws of a region on an accelerator, whose allocator tells nobody how old its memory
// is.
#include <gtest/gtest.h>
#include <reprise/checkpoint.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "tests/fake_device/fake_device.h"

namespace reprise {
namespace {

using testing_support::fake;
using testing_support::fake_generator;
using testing_support::tensor_on;

float* data_of(const at::Tensor& tensor) {
  return static_cast<float*>(tensor.storage().mutable_data()) + tensor.storage_offset();
}

// Adds one; says so.
at::Tensor& increase(at::Tensor& tensor) {
  for (std::int64_t i = 0; i < tensor.numel(); ++i) data_of(tensor)[i] += 1;
  return tensor;
}

// The next number of the device's default generator, or of the one given.
double draw(const at::Tensor& tensor, std::optional<at::Generator> generator) {
  if (!generator) generator = at::globalContext().defaultGenerator(tensor.device());
  return static_cast<double>(generator->get<testing_support::FakeGenerator>()->draw());
}

TORCH_LIBRARY(reprise_fake, library) {
  library.def("increase(Tensor(a!) tensor) -> Tensor(a!)");
  library.def("draw(Tensor tensor, Generator? generator=None) -> float");
}
TORCH_LIBRARY_IMPL(reprise_fake, PrivateUse1, library) {
  library.impl("increase", &increase);
  library.impl("draw", &draw);
}

void call_increase(at::Tensor tensor) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("reprise_fake::increase", "")
                             .typed<at::Tensor&(at::Tensor&)>();
  op.call(tensor);
}

double call_draw(const at::Tensor& tensor, const std::optional<at::Generator>& generator = {}) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("reprise_fake::draw", "")
                             .typed<double(const at::Tensor&, std::optional<at::Generator>)>();
  return op.call(tensor, generator);
}

at::Tensor zeros_on_fake(std::int64_t size) {
  return at::zeros({size}, at::TensorOptions(fake(0)));
}

std::vector<float> values(const at::Tensor& tensor) {
  return {data_of(tensor), data_of(tensor) + tensor.numel()};
}

class DeviceState : public ::testing::TestWithParam<bool> {
 protected:
  CheckpointOptions options_{.reentrant = GetParam()};
  at::Tensor x_ = torch::randn({3}).requires_grad_(true);
};
INSTANTIATE_TEST_SUITE_P(Variants, DeviceState, ::testing::Bool());

TEST_P(DeviceState, WhatTheRecomputationWritesIsUndone) {
  const at::Tensor count = zeros_on_fake(4);
  const auto body = [&](const at::Tensor& x) {
    call_increase(count.as_strided({2}, {1}, 1));
    return x.sin();
  };
  const at::Tensor loss = checkpoint(options_, body, x_).sum();
  for (int i = 0; i < 2; ++i) {
    loss.backward({}, /*retain_graph=*/true);
    EXPECT_EQ(values(count), (std::vector<float>{0, 1, 1, 0}));
  }
}

TEST_P(DeviceState, TheRecomputationStartsFromWhatThereIs) {
  const at::Tensor count = zeros_on_fake(1);
  std::vector<float> seen;
  const auto body = [&](const at::Tensor& x) {
    call_increase(count);
    seen.push_back(values(count)[0]);
    return x.sin();
  };
  checkpoint(options_, body, x_).sum().backward();
  EXPECT_EQ(seen, (std::vector<float>{1, 2}));
  EXPECT_EQ(values(count), std::vector<float>{1});
}

TEST_P(DeviceState, WithoutPreserveStateBothRunsCount) {
  options_.preserve_state = false;
  const at::Tensor count = zeros_on_fake(1);
  const auto body = [&](const at::Tensor& x) {
    call_increase(count);
    return x.sin();
  };
  checkpoint(options_, body, x_).sum().backward();
  EXPECT_EQ(values(count), std::vector<float>{2});
}

TEST_P(DeviceState, WhatTheRecomputationMakesItselfIsLeftAsItMadeIt) {
  std::vector<at::Tensor> made;
  const auto body = [&](const at::Tensor& x) {
    made.push_back(zeros_on_fake(2));
    call_increase(made.back());
    return x.sin();
  };
  checkpoint(options_, body, x_).sum().backward();
  ASSERT_EQ(made.size(), 2u);
  for (const at::Tensor& tensor : made) EXPECT_EQ(values(tensor), (std::vector<float>{1, 1}));
}

TEST_P(DeviceState, DrawsFromDevicesThatAreNoArgumentsAreReplayed) {
  // A region replays the current device of the default type anyway.
  const at::Tensor captured = tensor_on(fake(3));
  const at::Generator own = at::make_generator<testing_support::FakeGenerator>(fake(5));
  std::vector<double> drawn;
  const auto body = [&](const at::Tensor& x) {
    drawn.push_back(call_draw(captured) + 100 * call_draw(captured, own));
    return x.sin();
  };
  fake_generator(3).drawn = 7;
  const at::Tensor loss = checkpoint(options_, body, x_).sum();
  fake_generator(3).drawn = 50;
  loss.backward();
  EXPECT_EQ(drawn, (std::vector<double>{108, 108}));
  EXPECT_EQ(fake_generator(3).drawn, 50u);
  EXPECT_EQ(own.get<testing_support::FakeGenerator>()->drawn, 1u);
}

TEST_P(DeviceState, WithoutPreserveRngStateDrawsAreMadeAnew) {
  options_.preserve_rng_state = false;
  const at::Tensor captured = tensor_on(fake(3));
  std::vector<double> drawn;
  const auto body = [&](const at::Tensor& x) {
    drawn.push_back(call_draw(captured));
    return x.sin();
  };
  fake_generator(3).drawn = 7;
  checkpoint(options_, body, x_).sum().backward();
  EXPECT_EQ(drawn, (std::vector<double>{8, 9}));
}

}  // namespace
}  // namespace reprise
