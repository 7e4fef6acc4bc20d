// checkpoint() against the plain call: the same results and the same gradients, bit by bit, however
// backward is run, and one more run of the function for each backward.
#include "tests/region/testing.h"

#include <torch/csrc/autograd/generated/Functions.h>

namespace reprise {
namespace {

using namespace reprise::testing;

// A small network whose every operator saves something.
at::Tensor network(const at::Tensor& x, const at::Tensor& w) {
  return torch::softmax(x.matmul(w).tanh() * x, 1).exp().sigmoid();
}

class Checkpoint : public ::testing::TestWithParam<Variant> {
 protected:
  void SetUp() override { torch::manual_seed(1); }
  CheckpointOptions options_ = options_of(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Variants, Checkpoint,
                         ::testing::Values(Variant::kNonReentrant, Variant::kReentrant),
                         variant_name);

TEST_P(Checkpoint, ResultAndGradientsAreThoseOfThePlainCall) {
  const at::Tensor x = leaf({6, 6}), w = leaf({6, 6});
  EXPECT_TRUE(same_bits(checkpoint(options_, network, x, w), network(x, w)));
  EXPECT_TRUE(same_bits(gradients_of([&] { return checkpoint(options_, network, x, w); }, {x, w}),
                        gradients_of([&] { return network(x, w); }, {x, w})));
}

TEST_P(Checkpoint, FunctionRunsOnceInForwardAndOnceInBackward) {
  const at::Tensor x = leaf({6, 6}), w = leaf({6, 6});
  int runs = 0;
  const at::Tensor y = checkpoint(options_, counted(runs, network), x, w);
  EXPECT_EQ(runs, 1);
  y.sum().backward();
  EXPECT_EQ(runs, 2);
}

TEST_P(Checkpoint, RetainGraphAllowsSeveralBackwardCallsEachWithItsOwnRecomputation) {
  const at::Tensor x = leaf({6, 6}), w = leaf({6, 6});
  const Tensors expected = gradients_of([&] { return network(x, w); }, {x, w});
  int runs = 0;
  const at::Tensor loss = checkpoint(options_, counted(runs, network), x, w).sum();
  for (int i = 1; i <= 3; ++i) {
    loss.backward({}, /*retain_graph=*/true);
    EXPECT_EQ(runs, 1 + i);
    EXPECT_TRUE(same_bits(take_gradients({x, w}), expected)) << "backward " << i;
  }
}

TEST_P(Checkpoint, ASecondBackwardWithoutRetainGraphIsAutogradsOwnError) {
  const at::Tensor x = leaf();
  const at::Tensor y = checkpoint(
      options_, [](const at::Tensor& t) { return t.sin().exp(); }, x);
  y.sum().backward();
  EXPECT_TRUE(contains(error_of<c10::Error>([&] { y.sum().backward(); }),
                       "Trying to backward through the graph a second time"));
}

TEST_P(Checkpoint, GradientsOfSeveralRegionsAddUp) {
  const at::Tensor x = leaf({6, 6}), w = leaf({6, 6});
  const auto two = [&](auto&& f) { return f(f(x, w), w) + f(x, w); };
  const Tensors expected = gradients_of([&] { return two(network); }, {x, w});
  const Tensors actual = gradients_of(
      [&] {
        return two([&](const at::Tensor& a, const at::Tensor& b) {
          return checkpoint(options_, network, a, b);
        });
      },
      {x, w});
  for (std::size_t i = 0; i < actual.size(); ++i) {
    // A reentrant region adds up inside before it adds to the outside: another order, other
    // rounding.
    if (options_.reentrant) {
      EXPECT_TRUE(torch::allclose(actual[i], expected[i]));
    } else {
      EXPECT_TRUE(same_bits(actual[i], expected[i]));
    }
  }
}

TEST_P(Checkpoint, TwoThousandRegionsInARowDoNotOverflowTheStack) {
  const at::Tensor x = leaf({2, 3});
  const auto chain = [&](auto&& step) {
    at::Tensor y = x;
    for (int i = 0; i < 2000; ++i) y = step(y);
    return y;
  };
  const auto step = [](const at::Tensor& t) { return t.sin() * 1.0009765625; };
  EXPECT_TRUE(same_bits(
      gradients_of(
          [&] { return chain([&](const at::Tensor& t) { return checkpoint(options_, step, t); }); },
          {x}),
      gradients_of([&] { return chain(step); }, {x})));
}

TEST_P(Checkpoint, TwoThousandRegionsJoinedInOneLossDoNotOverflowTheStack) {
  torch::nn::Sequential module(torch::nn::Linear(10, 32), torch::nn::ReLU(),
                               torch::nn::Linear(32, 10));
  Tensors inputs;
  for (int i = 0; i < 2000; ++i) inputs.push_back(torch::rand({1, 10}).requires_grad_(true));
  const auto joined = [&](auto&& f) {
    Tensors features;
    for (const at::Tensor& input : inputs) features.push_back(f(input));
    return torch::stack(features).mean();
  };
  const auto plain = [&] {
    return joined([&](const at::Tensor& t) { return module->forward(t); });
  };
  const auto regions = [&] {
    return joined([&](const at::Tensor& t) { return checkpoint(options_, module, t); });
  };
  EXPECT_TRUE(same_bits(gradients_of(regions, inputs), gradients_of(plain, inputs)));
}

TEST_P(Checkpoint, AParameterUsedInsideAndOutsideHasItsHookCalledOncePerAccumulation) {
  const at::Tensor w = leaf({5, 5}), x = leaf({5, 5});
  int calls = 0;
  const auto hook = w.register_hook([&](const at::Tensor&) { ++calls; });
  const at::Tensor h = w * x;
  checkpoint(
      options_, [&](const at::Tensor& t) { return w * t; }, h)
      .sum()
      .backward();
  // A reentrant region runs a backward of its own inside, which accumulates a first time.
  EXPECT_EQ(calls, options_.reentrant ? 2 : 1);
  w.remove_hook(hook);
}

TEST_P(Checkpoint, FlagsTellTheFunctionWhereItIs) {
  const at::Tensor x = leaf();
  std::vector<std::pair<bool, bool>> seen;
  const auto look = [&] { seen.emplace_back(is_checkpointing(), is_recomputing()); };
  look();
  const at::Tensor y = checkpoint(
      options_,
      [&](const at::Tensor& t) {
        look();
        return t.exp();
      },
      x);
  look();
  y.sum().backward();
  look();
  using Flags = std::vector<std::pair<bool, bool>>;
  EXPECT_EQ(seen,
            (Flags{{false, false}, {true, false}, {false, false}, {false, true}, {false, false}}));
}

TEST_P(Checkpoint, WithoutGradModeTheFunctionIsSimplyCalledAndLetGo) {
  const at::Tensor x = leaf();
  auto token = std::make_shared<int>();
  const std::weak_ptr<int> function_alive = token;
  bool inside = true;
  at::Tensor y;
  {
    const torch::NoGradGuard no_grad;
    y = checkpoint(
        options_,
        [&inside, token = std::move(token)](const at::Tensor& t) {
          inside = is_checkpointing();
          return t.exp();
        },
        x);
  }
  EXPECT_FALSE(y.requires_grad());
  EXPECT_FALSE(inside);
  EXPECT_TRUE(function_alive.expired());
  EXPECT_TRUE(same_bits(y, x.exp()));
}

TEST_P(Checkpoint, FlagsAreDownInAPlainCallWithoutRegions) {
  EXPECT_FALSE(is_checkpointing());
  EXPECT_FALSE(is_recomputing());
  const at::Tensor x = leaf();
  bool checkpointing = true, recomputing = true;
  const auto hook = [&](const at::Tensor&) {
    checkpointing = is_checkpointing();
    recomputing = is_recomputing();
  };
  x.register_hook(hook);
  x.exp().sum().backward();
  EXPECT_FALSE(checkpointing);
  EXPECT_FALSE(recomputing);
}

TEST_P(Checkpoint, BackwardMayRunWithGradModeOff) {
  const at::Tensor x = leaf({6, 6}), w = leaf({6, 6});
  const Tensors expected = gradients_of([&] { return network(x, w); }, {x, w});
  const at::Tensor loss = checkpoint(options_, network, x, w).sum();
  {
    const torch::NoGradGuard no_grad;
    loss.backward();
    EXPECT_FALSE(c10::GradMode::is_enabled());
  }
  EXPECT_TRUE(same_bits(take_gradients({x, w}), expected));
}

class NonReentrantCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override { torch::manual_seed(1); }
};

TEST_F(NonReentrantCheckpoint, AutogradGradGivesThePlainGradients) {
  const at::Tensor x = leaf({6, 6}), w = leaf({6, 6});
  EXPECT_TRUE(same_bits(torch::autograd::grad({checkpoint(network, x, w).sum()}, {x, w}),
                        torch::autograd::grad({network(x, w).sum()}, {x, w})));
  EXPECT_TRUE(same_bits(torch::autograd::grad({checkpoint(network, x, w).sum()}, {w}),
                        torch::autograd::grad({network(x, w).sum()}, {w})));
}

TEST_F(NonReentrantCheckpoint, DoubleBackwardGivesThePlainSecondDerivatives) {
  const at::Tensor x = leaf({6, 6}), w = leaf({6, 6});
  const auto second = [&](const at::Tensor& y) {
    const auto first =
        torch::autograd::grad({y.sum()}, {x, w}, {}, std::nullopt, /*create_graph=*/true);
    return torch::autograd::grad({(first[0] * first[1].t()).sum()}, {x, w});
  };
  EXPECT_TRUE(same_bits(second(checkpoint(network, x, w)), second(network(x, w))));
}

TEST_F(NonReentrantCheckpoint, BackwardMayCoverAPartOfTheGraphAndTheRestLater) {
  const at::Tensor x = leaf();
  int runs = 0;
  const auto pair = [](const at::Tensor& t) { return std::pair(t.sin().cos(), t.exp().tanh()); };
  const auto [a, b] = checkpoint(counted(runs, pair), x);
  const auto [plain_a, plain_b] = pair(x);
  EXPECT_TRUE(same_bits(torch::autograd::grad({a.sum()}, {x}),
                        torch::autograd::grad({plain_a.sum()}, {x})));
  EXPECT_TRUE(same_bits(torch::autograd::grad({b.sum()}, {x}),
                        torch::autograd::grad({plain_b.sum()}, {x})));
  EXPECT_EQ(runs, 3);
}

TEST_F(NonReentrantCheckpoint, GradMayStopAtATensorInsideTheRegion) {
  const at::Tensor x = leaf();
  const auto both = [](const at::Tensor& t) {
    at::Tensor inner = t.sin().exp();
    return std::pair(inner, inner.cos().tanh());
  };
  const auto [inner, outer] = checkpoint(both, x);
  const auto [plain_inner, plain_outer] = both(x);
  EXPECT_TRUE(same_bits(torch::autograd::grad({outer.sum()}, {inner}),
                        torch::autograd::grad({plain_outer.sum()}, {plain_inner})));
}

TEST_F(NonReentrantCheckpoint, AnInputWithoutGradientIsNoObstacle) {
  torch::nn::Sequential module(torch::nn::Linear(10, 32), torch::nn::ReLU(),
                               torch::nn::Linear(32, 10));
  Tensors inputs;
  for (int i = 0; i < 2000; ++i) inputs.push_back(torch::rand({1, 10}));
  const auto joined = [&](auto&& f) {
    Tensors features;
    for (const at::Tensor& input : inputs) features.push_back(f(input));
    return torch::stack(features).mean();
  };
  EXPECT_TRUE(same_bits(
      gradients_of(
          [&] { return joined([&](const at::Tensor& t) { return checkpoint(module, t); }); },
          module->parameters()),
      gradients_of([&] { return joined([&](const at::Tensor& t) { return module->forward(t); }); },
                   module->parameters())));
}

TEST_F(NonReentrantCheckpoint, AResultDetachedInsideIsFineStepAfterStep) {
  torch::nn::Linear linear(2, 2);
  const at::Tensor x = leaf({2, 2});
  for (int i = 0; i < 3; ++i) {
    at::Tensor y = checkpoint(
        [&](const at::Tensor& t) {
          const torch::NoGradGuard no_grad;
          return linear->forward(t);
        },
        x);
    EXPECT_FALSE(y.requires_grad());
    (y + x).sum().backward();
    EXPECT_TRUE(same_bits(take_gradients({x}), {torch::ones({2, 2})}));
  }
}

TEST_F(NonReentrantCheckpoint, TheResultIsTheFunctionsOwnTensor) {
  const at::Tensor x = leaf();
  const at::Tensor y = checkpoint([](const at::Tensor& t) { return t; }, x);
  EXPECT_TRUE(y.is_same(x));
  at::Tensor inner;
  const at::Tensor z = checkpoint(
      [&](const at::Tensor& t) {
        if (!is_recomputing()) inner = t.exp();
        return is_recomputing() ? t.exp() : inner;
      },
      x);
  EXPECT_TRUE(z.is_same(inner));
}

// Reading a saved tensor by hand, as autograd's graph inspection does.
at::Tensor saved_result_of_exp(const at::Tensor& y) {
  auto* node = dynamic_cast<torch::autograd::generated::ExpBackward0*>(y.grad_fn().get());
  TORCH_CHECK(node != nullptr, "not a result of exp");
  return node->result_.unpack(y.grad_fn());
}

TEST_F(NonReentrantCheckpoint, ASavedTensorReadOutsideBackwardIsRecomputedEachTimeAndNotKept) {
  const at::Tensor x = leaf({5});
  int runs = 0;
  const at::Tensor y = checkpoint(counted(runs,
                                          [](const at::Tensor& t) {
                                            const at::Tensor unused = t * (t * t);
                                            return t.exp();
                                          }),
                                  x);
  EXPECT_EQ(runs, 1);
  for (int reads = 1; reads <= 2; ++reads) {
    at::Tensor saved = saved_result_of_exp(y);
    EXPECT_TRUE(same_bits(saved, x.exp()));
    EXPECT_EQ(runs, 1 + reads);
    const StorageWatch watch(saved);
    saved = at::Tensor();
    EXPECT_FALSE(watch.alive());
  }
  y.sum().backward();
  EXPECT_EQ(runs, 4);
  EXPECT_TRUE(contains(error_of<c10::Error>([&] { saved_result_of_exp(y); }),
                       "directly access saved tensors after they have already been freed"));
}

}  // namespace
}  // namespace reprise
