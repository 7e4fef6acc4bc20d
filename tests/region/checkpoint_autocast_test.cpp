// Ambient state: a recomputation runs under the autocast, deterministic-algorithms and
// default-dtype state of its forward, whatever is in force in backward, and puts everything back.
#include "tests/region/testing.h"

#include <ATen/autocast_mode.h>

namespace reprise {
namespace {

using namespace reprise::testing;

// Autocast on the CPU for the duration of a scope, as torch.autocast does it.
class Autocast {
 public:
  explicit Autocast(bool enabled, at::ScalarType dtype = at::kBFloat16)
      : enabled_(at::autocast::is_autocast_enabled(at::kCPU)),
        dtype_(at::autocast::get_autocast_dtype(at::kCPU)) {
    at::autocast::set_autocast_enabled(at::kCPU, enabled);
    at::autocast::set_autocast_dtype(at::kCPU, dtype);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, enabled_);
    at::autocast::set_autocast_dtype(at::kCPU, dtype_);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  bool enabled_;
  at::ScalarType dtype_;
};

class CheckpointAutocast : public ::testing::TestWithParam<Variant> {
 protected:
  void SetUp() override { torch::manual_seed(13); }
  CheckpointOptions options_ = options_of(GetParam());
  at::Tensor x_ = leaf({3, 3}), y_ = leaf({3, 3}), z_ = leaf({3, 3});
};
INSTANTIATE_TEST_SUITE_P(Variants, CheckpointAutocast,
                         ::testing::Values(Variant::kNonReentrant, Variant::kReentrant),
                         variant_name);

TEST_P(CheckpointAutocast, IsAsInForwardDuringTheRecomputation) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    std::vector<at::ScalarType> seen;
    const auto body = [&](const at::Tensor& x, const at::Tensor& y, const at::Tensor& z) {
      const at::Tensor a = x.mm(y);
      const at::Tensor b = a.mm(z);
      const at::Tensor c = z.mm(b);
      seen.push_back(c.scalar_type());
      return c.mm(c);
    };
    const auto step = [&](auto&& call) {
      return gradients_of(
          [&] {
            const Autocast autocast(dtype != at::kFloat,
                                    dtype == at::kFloat ? at::kBFloat16 : dtype);
            return call();
          },
          {x_, y_, z_});
    };
    const Tensors expected = step([&] { return body(x_, y_, z_); });
    seen.clear();
    if (!options_.reentrant) options_.early_stop = EarlyStop::kNever;
    EXPECT_TRUE(same_bits(step([&] { return checkpoint(options_, body, x_, y_, z_); }), expected));
    EXPECT_EQ(seen, std::vector<at::ScalarType>(2, dtype));
  }
}

TEST_P(CheckpointAutocast, IsOffInTheRecomputationIfItWasOffInForward) {
  const auto body = [](const at::Tensor& x, const at::Tensor& y) {
    EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
    return x.mm(y).mm(y);
  };
  const Tensors expected = gradients_of([&] { return body(x_, y_); }, {x_, y_});
  const at::Tensor loss = checkpoint(options_, body, x_, y_).sum();
  const Autocast in_backward(true);
  loss.backward();
  EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCPU));
  const Tensors actual = take_gradients({x_, y_});
  // A plain backward under autocast multiplies in half precision, too.
  EXPECT_TRUE(torch::allclose(actual[0], expected[0], 0.05, 0.05));
  EXPECT_TRUE(torch::allclose(actual[1], expected[1], 0.05, 0.05));
}

TEST_P(CheckpointAutocast, IsPutBackAfterTheRecomputation) {
  at::Tensor loss;
  {
    const Autocast autocast(true, at::kHalf);
    at::autocast::set_autocast_cache_enabled(false);
    loss = checkpoint(
               options_,
               [](const at::Tensor& x, const at::Tensor& y) {
                 EXPECT_FALSE(at::autocast::is_autocast_cache_enabled());
                 return x.mm(y).mm(y).to(at::kFloat).exp();
               },
               x_, y_)
               .sum();
    at::autocast::set_autocast_cache_enabled(true);
  }
  loss.backward();
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), at::kBFloat16);
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
}

TEST_P(CheckpointAutocast, WithoutPreserveAmbientStateTheDifferenceIsSeen) {
  options_.preserve_ambient_state = false;
  std::vector<at::ScalarType> seen;
  const auto body = [&](const at::Tensor& x, const at::Tensor& y) {
    const at::Tensor product = x.mm(y);
    seen.push_back(product.scalar_type());
    return product.mm(y);
  };
  at::Tensor loss;
  {
    const Autocast autocast(true);
    loss = checkpoint(options_, body, x_, y_).to(at::kFloat).sum();
  }
  EXPECT_TRUE(contains(error_of<DeterminismError>([&] { loss.backward(); }), "different metadata"));
  EXPECT_EQ(seen, (std::vector<at::ScalarType>{at::kBFloat16, at::kFloat}));
}

TEST_P(CheckpointAutocast, TheDefaultDtypeIsAsInForward) {
  const auto body = [](const at::Tensor& t) {
    return (t.to(at::kDouble) * torch::full({3, 3}, 1.0 / 3)).exp();
  };
  const auto before = c10::get_default_dtype();
  const auto step = [&](auto&& call) {
    c10::set_default_dtype(caffe2::TypeMeta::fromScalarType(at::kDouble));
    const at::Tensor loss = call().sum();
    c10::set_default_dtype(before);
    loss.backward();
    return take_gradients({x_});
  };
  const Tensors expected = step([&] { return body(x_); });
  EXPECT_TRUE(same_bits(step([&] { return checkpoint(options_, body, x_); }), expected));
  EXPECT_EQ(c10::get_default_dtype(), before);
}

TEST_P(CheckpointAutocast, DeterministicAlgorithmsAreAsInForward) {
  std::vector<bool> seen;
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  const at::Tensor loss = checkpoint(
                              options_,
                              [&](const at::Tensor& t) {
                                seen.push_back(at::globalContext().deterministicAlgorithms());
                                return t.exp();
                              },
                              x_)
                              .sum();
  at::globalContext().setDeterministicAlgorithms(false, false);
  loss.backward();
  EXPECT_EQ(seen, (std::vector<bool>{true, true}));
  EXPECT_FALSE(at::globalContext().deterministicAlgorithms());
  EXPECT_FALSE(at::globalContext().deterministicAlgorithmsWarnOnly());
}

TEST_P(CheckpointAutocast, InInferenceModeTheFunctionIsSimplyCalled) {
  const c10::InferenceMode inference;
  int runs = 0;
  const at::Tensor y =
      checkpoint(options_, counted(runs, [](const at::Tensor& t) { return t.exp(); }), x_);
  EXPECT_EQ(runs, 1);
  EXPECT_TRUE(y.is_inference());
  EXPECT_FALSE(y.requires_grad());
}

TEST_P(CheckpointAutocast, ARegionMaySwitchAutocastInside) {
  const auto body = [](const at::Tensor& x, const at::Tensor& y) {
    at::Tensor half;
    {
      const Autocast autocast(true);
      half = x.mm(y).mm(y);
    }
    return half.to(at::kFloat).mm(y).exp();
  };
  EXPECT_TRUE(same_bits(gradients_of([&] { return checkpoint(options_, body, x_, y_); }, {x_, y_}),
                        gradients_of([&] { return body(x_, y_); }, {x_, y_})));
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
}

}  // namespace
}  // namespace reprise
