// A recomputation runs under the settings of its forward, whatever is in force in backward, and
// puts those back. (Autocast in depth: checkpoint_autocast_test.cpp.)
#include "tests/region/ambient_settings.h"
#include "tests/region/testing.h"

namespace reprise {
namespace {

using at::Tensor;
using testing::ambient_settings;
using testing::AmbientSetting;
using testing::read_ambient_settings;

class CheckpointAmbient : public ::testing::TestWithParam<AmbientSetting> {
 protected:
  void TearDown() override {
    GetParam().set(false);
    EXPECT_EQ(read_ambient_settings(), plain_);
  }
  // Of a region whose function was entered in forward under another value: what it saw there, and
  // in backward.
  std::vector<std::vector<double>> seen(const CheckpointOptions& options) {
    std::vector<std::vector<double>> values;
    const Tensor x = testing::leaf({2});
    GetParam().set(true);
    const Tensor y = checkpoint(
        options,
        [&](const Tensor& h) {
          values.push_back(read_ambient_settings());
          return h.to(at::kDouble).sin();
        },
        x);
    GetParam().set(false);
    y.sum().backward();
    EXPECT_EQ(read_ambient_settings(), plain_);
    return values;
  }
  const std::vector<double> plain_ = read_ambient_settings();
};
INSTANTIATE_TEST_SUITE_P(Settings, CheckpointAmbient, ::testing::ValuesIn(ambient_settings()),
                         [](const auto& info) { return info.param.name; });

TEST_P(CheckpointAmbient, ARecomputationRunsUnderThatOfForwardAndPutsBackWhatWasThere) {
  for (const CheckpointOptions& options : {CheckpointOptions(), testing::reentrant()}) {
    const auto values = seen(options);
    ASSERT_EQ(values.size(), 2u);
    EXPECT_EQ(values[1], values[0]);
    EXPECT_NE(values[0], plain_);
  }
}

TEST_P(CheckpointAmbient, WithoutPreservingItRunsUnderThatOfBackward) {
  CheckpointOptions options;
  options.preserve_ambient_state = false;
  const auto values = seen(options);
  ASSERT_EQ(values.size(), 2u);
  EXPECT_EQ(values[1], plain_);
}

TEST_P(CheckpointAmbient, WhatTheFunctionSwitchesWhenItIsLeftHalfWayIsPutBack) {
  CheckpointOptions options = testing::with_early_stop(EarlyStop::kAlways);
  const Tensor x = testing::leaf({2});
  const Tensor y = checkpoint(
      options,
      [&](const Tensor& h) {
        GetParam().set(true);
        const Tensor sine = h.to(at::kDouble).sin();
        GetParam().set(false);
        return sine;
      },
      x);
  y.sum().backward();
  EXPECT_EQ(read_ambient_settings(), plain_);
}

}  // namespace
}  // namespace reprise
