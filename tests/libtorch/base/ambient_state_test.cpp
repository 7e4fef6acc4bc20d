// Ambient state of forward is in force in a recomputation, and put back afterwards.
#include "libtorch/base/ambient_state.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <future>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tests/region/ambient_settings.h"

namespace reprise::libtorch {
namespace {

// Autocast for one device type as torch.amp.autocast sets it.
class Autocast {
 public:
  Autocast(at::ScalarType dtype, bool enabled = true, bool cache = true)
      : enabled_(at::autocast::is_autocast_enabled(at::kCPU)),
        cache_(at::autocast::is_autocast_cache_enabled()),
        dtype_(at::autocast::get_autocast_dtype(at::kCPU)) {
    at::autocast::increment_nesting();
    set(enabled, cache, dtype);
  }
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    set(enabled_, cache_, dtype_);
  }

 private:
  static void set(bool enabled, bool cache, at::ScalarType dtype) {
    at::autocast::set_autocast_enabled(at::kCPU, enabled);
    at::autocast::set_autocast_cache_enabled(cache);
    at::autocast::set_autocast_dtype(at::kCPU, dtype);
  }
  bool enabled_;
  bool cache_;
  at::ScalarType dtype_;
};

int nesting() {
  int level = at::autocast::increment_nesting() - 1;
  at::autocast::decrement_nesting();
  return level;
}

at::ScalarType dtype_of_matmul() {
  return torch::ones({4, 4}).mm(torch::ones({4, 4})).scalar_type();
}

class AmbientStateTest : public ::testing::Test {
 protected:
  // Each test must leave everything as it found it.
  void TearDown() override {
    EXPECT_TRUE(plain_.is_current());
    EXPECT_EQ(nesting(), nesting_);
  }
  AmbientState plain_ = AmbientState::take();
  int nesting_ = nesting();
};

TEST_F(AmbientStateTest, AutocastIsReplayedWithItsDtype) {
  for (at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    AmbientState state;
    {
      Autocast autocast(dtype);
      state = AmbientState::take();
    }
    EXPECT_FALSE(state.is_current());
    {
      AmbientScope scope(state);
      EXPECT_TRUE(state.is_current());
      EXPECT_EQ(dtype_of_matmul(), dtype);
    }
    EXPECT_EQ(dtype_of_matmul(), at::kFloat);
  }
}

TEST_F(AmbientStateTest, AutocastIsSwitchedOffWhereForwardHadItOff) {
  Autocast autocast(at::kBFloat16);
  EXPECT_EQ(dtype_of_matmul(), at::kBFloat16);
  {
    AmbientScope scope(plain_);
    EXPECT_EQ(dtype_of_matmul(), at::kFloat);
  }
  EXPECT_EQ(dtype_of_matmul(), at::kBFloat16);
}

TEST_F(AmbientStateTest, ScopesNest) {
  AmbientState half;
  {
    Autocast autocast(at::kHalf);
    half = AmbientState::take();
  }
  Autocast autocast(at::kBFloat16);
  AmbientScope outer(half);
  {
    AmbientScope off(plain_);
    EXPECT_EQ(dtype_of_matmul(), at::kFloat);
    {
      AmbientScope again(half);
      EXPECT_EQ(dtype_of_matmul(), at::kHalf);
    }
    EXPECT_EQ(dtype_of_matmul(), at::kFloat);
  }
  EXPECT_EQ(dtype_of_matmul(), at::kHalf);
}

TEST_F(AmbientStateTest, TheCacheFlagIsReplayed) {
  AmbientState state;
  {
    Autocast autocast(at::kBFloat16, /*enabled=*/true, /*cache=*/false);
    state = AmbientState::take();
  }
  ASSERT_TRUE(at::autocast::is_autocast_cache_enabled());
  AmbientScope scope(state);
  EXPECT_FALSE(at::autocast::is_autocast_cache_enabled());
}

TEST_F(AmbientStateTest, EveryDeviceTypeWithAutocastIsReplayed) {
  for (at::DeviceType type : at::autocast::_AUTOCAST_SUPPORTED_DEVICES) {
    at::ScalarType dtype = at::autocast::get_autocast_dtype(type);
    at::autocast::set_autocast_enabled(type, true);
    at::autocast::set_autocast_dtype(type, at::kDouble);
    AmbientState state = AmbientState::take();
    at::autocast::set_autocast_enabled(type, false);
    at::autocast::set_autocast_dtype(type, dtype);
    EXPECT_FALSE(state.is_current()) << type;
    AmbientScope scope(state);
    EXPECT_TRUE(at::autocast::is_autocast_enabled(type));
    EXPECT_EQ(at::autocast::get_autocast_dtype(type), at::kDouble);
  }
}

// A weight that autocast casts and caches is the same tensor each time, until the cache is dropped.
const void* cast_of(const at::Tensor& weight) {
  return at::autocast::cached_cast(at::kBFloat16, weight, at::kCPU).unsafeGetTensorImpl();
}

TEST_F(AmbientStateTest, CastsCachedInsideAreDroppedOnLeavingTheOutermostScope) {
  auto weight = torch::ones({4, 4}, torch::requires_grad());
  AmbientState state;
  {
    Autocast autocast(at::kBFloat16);
    state = AmbientState::take();
  }
  {
    AmbientScope scope(state);
    EXPECT_EQ(nesting(), nesting_ + 1);
    EXPECT_EQ(cast_of(weight), cast_of(weight));
    EXPECT_EQ(weight.weak_use_count(), 2u);
  }
  EXPECT_EQ(weight.weak_use_count(), 1u);
}

TEST_F(AmbientStateTest, CastsCachedInsideAnOuterAutocastAreKept) {
  auto weight = torch::ones({4, 4}, torch::requires_grad());
  AmbientState half;
  {
    Autocast autocast(at::kHalf);
    half = AmbientState::take();
  }
  Autocast autocast(at::kBFloat16);
  const void* cast = cast_of(weight);
  { AmbientScope scope(half); }
  EXPECT_EQ(cast_of(weight), cast);
}

TEST_F(AmbientStateTest, AScopeWhoseStateIsInForceTouchesNothing) {
  Autocast autocast(at::kBFloat16);
  AmbientState state = AmbientState::take();
  int level = nesting();
  AmbientScope scope(state);
  EXPECT_EQ(nesting(), level);
}

TEST_F(AmbientStateTest, AnExceptionInsideLeavesEverythingAsBefore) {
  AmbientState state;
  {
    Autocast autocast(at::kBFloat16, true, false);
    state = AmbientState::take();
  }
  EXPECT_THROW(
      {
        AmbientScope scope(state);
        throw std::runtime_error("inside");
      },
      std::runtime_error);
}

class AmbientSettings : public AmbientStateTest,
                        public ::testing::WithParamInterface<testing::AmbientSetting> {};
INSTANTIATE_TEST_SUITE_P(Settings, AmbientSettings,
                         ::testing::ValuesIn(testing::ambient_settings()),
                         [](const auto& info) { return info.param.name; });

TEST_P(AmbientSettings, AreReplayedAndPutBack) {
  const std::vector<double> plain = testing::read_ambient_settings();
  GetParam().set(true);
  const std::vector<double> other = testing::read_ambient_settings();
  const AmbientState of_region = AmbientState::take(), of_call = AmbientState::take_for_call();
  GetParam().set(false);
  EXPECT_FALSE(of_region.is_current());
  for (const AmbientState& state : {of_region, of_call}) {
    {
      const AmbientScope scope(state);
      EXPECT_EQ(testing::read_ambient_settings(), other);
    }
    EXPECT_EQ(testing::read_ambient_settings(), plain);
  }
}

TEST_P(AmbientSettings, AreLeftAloneByAScopeOfAnother) {
  for (const testing::AmbientSetting& another : testing::ambient_settings()) {
    if (another.name == GetParam().name) continue;
    another.set(true);
    const AmbientState state = AmbientState::take();
    another.set(false);
    const double plain = GetParam().get();
    {
      const AmbientScope scope(state);
      GetParam().set(true);
    }
    EXPECT_NE(GetParam().get(), plain) << another.name;
    GetParam().set(false);
  }
}

TEST_F(AmbientStateTest, OverlappingScopesOfTwoThreadsLeaveWhatWasThereBeforeThem) {
  const auto state_with = [](const char* precision) {
    at::globalContext().setFloat32MatmulPrecision(precision);
    return AmbientState::take();
  };
  const AmbientState medium = state_with("medium"), high = state_with("high");
  at::globalContext().setFloat32MatmulPrecision("highest");
  const auto now = [] { return at::globalContext().float32MatmulPrecision(); };
  const auto before = now();
  for (const AmbientState& second : {high, medium}) {
    std::optional<AmbientScope> first(std::in_place, medium);
    // A scope ends on the thread on which it began.
    std::promise<void> may_end;
    std::promise<at::Float32MatmulPrecision> began;
    std::thread other([&] {
      const AmbientScope scope(second);
      began.set_value(now());
      may_end.get_future().wait();
    });
    const auto inside = began.get_future().get();
    first.reset();
    EXPECT_EQ(now(), inside) << "the second scope is still open";
    may_end.set_value();
    other.join();
    EXPECT_EQ(now(), before);
  }
}

TEST_F(AmbientStateTest, WhatTheScopeDidNotChangeIsNotPutBack) {
  AmbientState state;
  {
    Autocast autocast(at::kBFloat16);
    state = AmbientState::take();
  }
  {
    AmbientScope scope(state);
    torch::set_default_dtype(caffe2::TypeMeta::Make<double>());
  }
  EXPECT_EQ(torch::get_default_dtype(), caffe2::TypeMeta::Make<double>());
  torch::set_default_dtype(caffe2::TypeMeta::Make<float>());
}

TEST_F(AmbientStateTest, AutocastIsPutBackOnAThreadThatNeverHadIt) {
  AmbientState state;
  {
    Autocast autocast(at::kBFloat16);
    state = AmbientState::take();
  }
  at::ScalarType inside;
  at::ScalarType after;
  std::thread([&] {
    {
      AmbientScope scope(state);
      inside = dtype_of_matmul();
    }
    after = dtype_of_matmul();
  }).join();
  EXPECT_EQ(inside, at::kBFloat16);
  EXPECT_EQ(after, at::kFloat);
}

TEST_F(AmbientStateTest, BackwardSeesForwardsAutocastOnlyThroughAScope) {
  auto p = torch::ones({4, 4}, torch::requires_grad());
  AmbientState state;
  at::Tensor loss;
  {
    Autocast autocast(at::kBFloat16);
    state = AmbientState::take();
    loss = p.mm(p).sum();
  }
  std::vector<at::ScalarType> seen;
  p.register_hook([&](const at::Tensor&) {
    seen.push_back(dtype_of_matmul());
    AmbientScope scope(state);
    seen.push_back(dtype_of_matmul());
  });
  loss.backward();
  EXPECT_EQ(seen, (std::vector<at::ScalarType>{at::kFloat, at::kBFloat16}));
}

TEST(RecordingScope, TurnsGradModeOnAndBack) {
  at::NoGradGuard no_grad;
  {
    RecordingScope scope;
    EXPECT_TRUE(torch::ones({1}, torch::requires_grad()).sin().requires_grad());
  }
  EXPECT_FALSE(at::GradMode::is_enabled());
}

TEST(RecordingScope, LeavesInferenceModeAndEntersItAgain) {
  auto p = torch::ones({2}, torch::requires_grad());
  c10::InferenceMode inference;
  {
    RecordingScope scope;
    EXPECT_FALSE(c10::InferenceMode::is_enabled());
    at::Tensor y = p.sin();
    EXPECT_FALSE(y.is_inference());
    EXPECT_TRUE(y.requires_grad());
  }
  EXPECT_TRUE(c10::InferenceMode::is_enabled());
  EXPECT_FALSE(at::GradMode::is_enabled());
  EXPECT_TRUE(torch::ones({1}).is_inference());
}

}  // namespace
}  // namespace reprise::libtorch
