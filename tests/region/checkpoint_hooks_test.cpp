// Regions together with the other users of saved tensors: hook scopes around and inside, offload to
// host memory, and custom autograd functions that read their saved tensors themselves.
#include "tests/region/testing.h"

#include <reprise/saved_tensor_hooks.h>

namespace reprise {
namespace {

using namespace reprise::testing;

at::Tensor network(const at::Tensor& x, const at::Tensor& w) {
  return (x * w).exp().sin() * x.sigmoid();
}

class CheckpointAndHooks : public ::testing::TestWithParam<Variant> {
 protected:
  void SetUp() override { torch::manual_seed(2); }
  CheckpointOptions options_ = options_of(GetParam());
  at::Tensor x_ = leaf();
  at::Tensor w_ = leaf();
  Tensors plain() {
    return gradients_of([&] { return network(x_, w_); }, {x_, w_});
  }
};
INSTANTIATE_TEST_SUITE_P(Variants, CheckpointAndHooks,
                         ::testing::Values(Variant::kNonReentrant, Variant::kReentrant),
                         variant_name);

TEST_P(CheckpointAndHooks, SaveOnCpuAroundARegionChangesNoGradient) {
  const Tensors expected = plain();
  EXPECT_TRUE(same_bits(gradients_of(
                            [&] {
                              const SaveOnCpuScope offload;
                              return checkpoint(options_, network, x_, w_);
                            },
                            {x_, w_}),
                        expected));
}

TEST_P(CheckpointAndHooks, SaveOnCpuInsideARegionChangesNoGradient) {
  const Tensors expected = plain();
  const auto inside = [](const at::Tensor& x, const at::Tensor& w) {
    const SaveOnCpuScope offload;
    return network(x, w);
  };
  EXPECT_TRUE(same_bits(
      gradients_of([&] { return checkpoint(options_, inside, x_, w_); }, {x_, w_}), expected));
}

TEST_P(CheckpointAndHooks, SaveOnCpuAroundAPartOfARegionChangesNoGradient) {
  const Tensors expected = plain();
  const auto partly = [](const at::Tensor& x, const at::Tensor& w) {
    at::Tensor product = x * w;
    {
      const SaveOnCpuScope offload;
      product = product.exp();
    }
    return product.sin() * x.sigmoid();
  };
  EXPECT_TRUE(same_bits(
      gradients_of([&] { return checkpoint(options_, partly, x_, w_); }, {x_, w_}), expected));
}

TEST_P(CheckpointAndHooks, AnOuterScopeIsShownTheArgumentsAndNothingElse) {
  std::vector<const void*> packed;
  at::Tensor y;
  const at::Tensor h = x_ * 2;  // not a leaf: an activation like any other
  {
    const SavedTensorHooksScope scope(
        [&](const at::Tensor& t) {
          packed.push_back(t.const_data_ptr());
          return t;
        },
        [](const at::Tensor& t) { return t; });
    y = checkpoint(options_, network, h, w_);
  }
  EXPECT_EQ(packed, (std::vector<const void*>{h.const_data_ptr(), w_.const_data_ptr()}));
  y.sum().backward();
  const Tensors actual = take_gradients({x_, w_});
  EXPECT_TRUE(same_bits(actual, gradients_of([&] { return network(x_ * 2, w_); }, {x_, w_})));
}

TEST_P(CheckpointAndHooks, AnOuterScopeDecidesHowLongAnArgumentsMemoryLives) {
  at::Tensor h = x_ * 2;
  const StorageWatch watch(h);
  at::Tensor y;
  {
    const SavedTensorHooksScope copies([](const at::Tensor& t) { return t.clone(); },
                                       [](const at::Tensor& t) { return t; });
    y = checkpoint(options_, network, std::move(h), w_);
  }
  EXPECT_FALSE(watch.alive());
  y.sum().backward();
  const Tensors actual = take_gradients({x_, w_});
  EXPECT_TRUE(same_bits(actual, gradients_of([&] { return network(x_ * 2, w_); }, {x_, w_})));
}

TEST_P(CheckpointAndHooks, AScopeAroundBackwardIsNotAppliedToTheRecomputation) {
  const Tensors expected = plain();
  int packs = 0;
  const at::Tensor loss = checkpoint(options_, network, x_, w_).sum();
  {
    const SavedTensorHooksScope scope([&](const at::Tensor& t) { return ++packs, t.clone(); },
                                      [](const at::Tensor& t) { return t; });
    loss.backward();
  }
  EXPECT_TRUE(same_bits(take_gradients({x_, w_}), expected));
  if (!options_.reentrant) {
    EXPECT_EQ(packs, 0);
  }
}

// Saves its inputs and its result, and reads them as often as told.
struct ReadsSavedTensors : torch::autograd::Function<ReadsSavedTensors> {
  static inline int reads = 1;
  static inline std::string second_read_error;

  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& y) {
    at::Tensor out = x * y;
    ctx->save_for_backward({x, y, out});
    return out;
  }
  static Tensors backward(torch::autograd::AutogradContext* ctx, const Tensors& grad) {
    const Tensors saved = ctx->get_saved_variables();
    if (reads == 2) {
      second_read_error = error_of<DeterminismError>([&] { ctx->get_saved_variables(); });
    }
    return {grad[0] * saved[1], grad[0] * saved[0]};
  }
};

at::Tensor with_custom_function(const at::Tensor& x, const at::Tensor& y) {
  return ReadsSavedTensors::apply(x * x * y, y.sin()).tanh();
}

TEST_P(CheckpointAndHooks, ACustomFunctionInsideGetsItsSavedTensors) {
  ReadsSavedTensors::reads = 1;
  EXPECT_TRUE(same_bits(
      gradients_of([&] { return checkpoint(options_, with_custom_function, x_, w_); }, {x_, w_}),
      gradients_of([&] { return with_custom_function(x_, w_); }, {x_, w_})));
}

TEST(CheckpointAndCustomFunctions, ReadingSavedTensorsASecondTimeInOneBackwardIsAnError) {
  const at::Tensor x = leaf(), w = leaf();
  const at::Tensor loss = checkpoint(with_custom_function, x, w).sum();
  ReadsSavedTensors::reads = 2;
  ReadsSavedTensors::second_read_error.clear();
  loss.backward();
  ReadsSavedTensors::reads = 1;
  EXPECT_TRUE(contains(ReadsSavedTensors::second_read_error, "already unpacked once"));
  const Tensors actual = take_gradients({x, w});
  EXPECT_TRUE(same_bits(actual, gradients_of([&] { return with_custom_function(x, w); }, {x, w})));
}

// Passes its first argument through and remembers which tensor came back for the second.
struct KeepsIdentity : torch::autograd::Function<KeepsIdentity> {
  static inline at::Tensor seen;

  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& y) {
    ctx->save_for_backward({y});
    return x.clone();
  }
  static Tensors backward(torch::autograd::AutogradContext* ctx, const Tensors& grad) {
    seen = ctx->get_saved_variables()[0];
    return {grad[0], at::Tensor()};
  }
};

TEST(CheckpointAndCustomFunctions, AnArgumentWithoutGradientComesBackAsTheSameTensor) {
  const at::Tensor a = leaf({}), b = torch::ones({});
  const auto apply = [](const at::Tensor& x, const at::Tensor& y) {
    return KeepsIdentity::apply(x, y);
  };
  apply(a, b).backward();
  EXPECT_TRUE(KeepsIdentity::seen.is_same(b));
  KeepsIdentity::seen = at::Tensor();
  checkpoint(apply, a, b).backward();
  EXPECT_TRUE(KeepsIdentity::seen.is_same(b));
  KeepsIdentity::seen = at::Tensor();
}

TEST(CheckpointAndHooksScopes, ARegionInsideNoSavedTensorHooksStillWorks) {
  const at::Tensor x = leaf(), w = leaf();
  int packs = 0;
  const Tensors actual = gradients_of(
      [&] {
        const SavedTensorHooksScope scope([&](const at::Tensor& t) { return ++packs, t; },
                                          [](const at::Tensor& t) { return t; });
        const NoSavedTensorHooksScope none;
        return checkpoint(network, x, w);
      },
      {x, w});
  EXPECT_EQ(packs, 0);
  EXPECT_TRUE(same_bits(actual, gradients_of([&] { return network(x, w); }, {x, w})));
}

TEST(CheckpointAndHooksScopes, WhatNoSavedTensorHooksCoversInsideARegionIsKeptAndNotRecomputed) {
  const at::Tensor x = leaf();
  int runs = 0;
  const auto kept = [](const at::Tensor& t) {
    const NoSavedTensorHooksScope none;
    return t.exp().sin();
  };
  const Tensors actual = gradients_of([&] { return checkpoint(counted(runs, kept), x); }, {x});
  EXPECT_EQ(runs, 1);
  EXPECT_TRUE(same_bits(actual, gradients_of([&] { return x.exp().sin(); }, {x})));
}

TEST(CheckpointAndHooksScopes, AHookThatRunsARegionOnAnotherGraphIsNotDisturbed) {
  const at::Tensor x = leaf(), v = leaf();
  Tensors inner_gradients;
  at::Tensor y = checkpoint([](const at::Tensor& t) { return t.sin().exp(); }, x);
  y.register_hook([&](const at::Tensor&) {
    const c10::AutoGradMode grad_mode(true);
    inner_gradients = torch::autograd::grad({checkpoint(network, v, v).sum()}, {v});
  });
  y.sum().backward();
  const Tensors actual = take_gradients({x});
  EXPECT_TRUE(same_bits(actual, gradients_of([&] { return x.sin().exp(); }, {x})));
  EXPECT_TRUE(same_bits(inner_gradients, torch::autograd::grad({network(v, v).sum()}, {v})));
}

}  // namespace
}  // namespace reprise
