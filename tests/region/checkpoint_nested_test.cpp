// Regions inside regions, and backward calls inside regions: values and gradients to third order,
// how often what runs again, and that every graph dies.
#include "tests/region/testing.h"

namespace reprise {
namespace {

using namespace reprise::testing;
using Function = std::function<at::Tensor(const at::Tensor&)>;

Function region(const Function& f) {
  return [f](const at::Tensor& x) { return checkpoint(f, x); };
}
Function summed(const Function& f) {
  return [f](const at::Tensor& x) { return f(x).sum(); };
}
// The derivative of a scalar function, itself differentiable.
Function derivative(const Function& f) {
  return [f](const at::Tensor& x) {
    const c10::AutoGradMode grad_mode(true);
    return torch::autograd::grad({f(x)}, {x}, {}, std::nullopt, /*create_graph=*/true)[0];
  };
}

class NestedCheckpoint : public ::testing::TestWithParam<EarlyStop> {
 protected:
  void SetUp() override { torch::manual_seed(8); }

  // After the result is gone, no node of its graph and no region may be left.
  void expect_graph_dies(const Function& f) {
    const Bytes before = live_bytes();
    {
      GraphWatch graph;
      {
        const at::Tensor x = torch::randn({}).requires_grad_(true);
        graph.add(f(x));
      }
      EXPECT_EQ(graph.alive(), std::vector<std::string>{});
    }
    // Only now: what a node held is freed with the last weak reference to it.
    EXPECT_EQ(live_bytes(), before);
  }

  const EarlyStopScope scope_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(EarlyStops, NestedCheckpoint,
                         ::testing::Values(EarlyStop::kNever, EarlyStop::kWhenCheaper,
                                           EarlyStop::kAlways),
                         early_stop_name);

TEST_P(NestedCheckpoint, DerivativesToThirdOrderInAnyNestingAreThePlainOnesAndEveryGraphDies) {
  const Function f = [](const at::Tensor& x) { return x.sin().exp().sin(); };
  const Function g = [](const at::Tensor& x) {
    const at::Tensor a = x.sin().exp().sin(), b = x.sin().exp().sin();
    torch::autograd::grad({a}, {x});
    torch::autograd::grad({b}, {x});
    return x.sin();
  };
  const auto c = region;
  const auto d = derivative;
  for (const Function& h : {f, g}) {
    const std::vector<std::pair<Function, std::vector<Function>>> cases = {
        {h, {c(h), c(c(h)), c(c(c(h)))}},
        {d(h), {d(c(h)), d(c(c(h))), c(d(c(h)))}},
        {d(d(h)), {d(c(d(h))), c(d(d(c(h)))), d(c(d(c(h))))}},
        {d(d(d(h))), {d(c(d(d(c(h))))), d(c(d(c(d(c(h))))))}},
    };
    for (std::size_t order = 0; order < cases.size(); ++order) {
      const at::Tensor x = leaf({});
      const at::Tensor expected = cases[order].first(x);
      const at::Tensor expected_next = torch::autograd::grad({expected}, {x})[0];
      for (std::size_t i = 0; i < cases[order].second.size(); ++i) {
        SCOPED_TRACE("order " + std::to_string(order) + ", case " + std::to_string(i));
        const at::Tensor actual = cases[order].second[i](x);
        EXPECT_TRUE(torch::allclose(actual, expected));
        EXPECT_TRUE(torch::allclose(torch::autograd::grad({actual}, {x})[0], expected_next));
        expect_graph_dies(cases[order].second[i]);
      }
    }
  }
}

TEST_P(NestedCheckpoint, OneRegionWithTwoChildren) {
  const Function f = [](const at::Tensor& x) { return x.sin().exp().sin(); };
  const Function g = [](const at::Tensor& x) { return x.cos().sin().exp(); };
  const Function h = [=](const at::Tensor& x) { return g(f(x)); };
  const Function hc = [=](const at::Tensor& x) { return region(g)(region(f)(x)); };
  const auto second = [](const Function& k) { return derivative(summed(derivative(summed(k)))); };
  const at::Tensor x = leaf({3, 3});
  const at::Tensor expected = second(h)(x);
  EXPECT_TRUE(torch::allclose(second(region(hc))(x), expected));
  const Function wrapped = derivative(summed(region(derivative(summed(region(hc))))));
  EXPECT_TRUE(torch::allclose(wrapped(x), expected));
  expect_graph_dies(derivative(region(hc)));
  expect_graph_dies(second(region(hc)));
  expect_graph_dies(wrapped);
}

TEST_P(NestedCheckpoint, FirstGradientsOfNestedRegionsAreThePlainOnesBitByBit) {
  const Function f = [](const at::Tensor& x) { return (x.sin() * x).exp().tanh(); };
  const at::Tensor x = leaf({5});
  const Tensors expected = gradients_of([&] { return f(f(x) * x); }, {x});
  Function nested = [&](const at::Tensor& t) { return region(f)(region(f)(t) * t); };
  for (int depth = 1; depth < 8; ++depth) {
    nested = region(nested);
    EXPECT_TRUE(same_bits(gradients_of([&] { return nested(x); }, {x}), expected))
        << "depth " << depth;
  }
}

TEST_P(NestedCheckpoint, RecomputationIsLinearInTheDepth) {
  for (int depth = 1; depth <= 6; ++depth) {
    int runs = 0;
    const at::Tensor x = leaf({3});
    Function f = counted(runs, [](const at::Tensor& t) { return t.sin().exp().sin(); });
    for (int i = 0; i < depth; ++i) f = region(f);
    f(x).sum().backward();
    // An outer region that stops early has saved the inner one's argument by then, and no more is
    // needed.
    const int least = GetParam() == EarlyStop::kNever ? 1 + depth : 2;
    const int most = GetParam() == EarlyStop::kAlways ? 2 : 1 + depth;
    EXPECT_GE(runs, least) << "depth " << depth;
    EXPECT_LE(runs, most) << "depth " << depth;
  }
}

TEST_P(NestedCheckpoint, BackwardRunsOnTheOriginalGraphAndNotOnTheRecomputedOne) {
  struct Count final : torch::autograd::FunctionPostHook {
    explicit Count(int& n) : calls(n) {}
    Tensors operator()(const Tensors& grad_inputs, const Tensors&) override {
      ++calls;
      return grad_inputs;
    }
    int& calls;
  };
  int calls = 0;
  const at::Tensor x = leaf({});
  const at::Tensor y = checkpoint([](const at::Tensor& t) { return t.sin().cos().sin(); }, x);
  y.grad_fn()->next_edge(0).function->add_post_hook(std::make_unique<Count>(calls));
  y.backward();
  EXPECT_EQ(calls, 1);
}

TEST_P(NestedCheckpoint, AHookMayRunBackwardOverAPartOfTheSameGraph) {
  const auto both = [](const at::Tensor& t) {
    at::Tensor x = t.sin().cos();
    return std::pair(x, x.sin());
  };
  const auto run = [&](auto&& make) {
    const at::Tensor a = torch::full({}, 0.5).requires_grad_(true);
    const auto [x, out] = make(a);
    const at::Tensor inner = x;
    out.register_hook([&](const at::Tensor&) { inner.backward({}, /*retain_graph=*/true); });
    out.backward({}, /*retain_graph=*/true);
    return a.grad().clone();
  };
  EXPECT_TRUE(
      torch::allclose(run([&](const at::Tensor& a) { return checkpoint(both, a); }), run(both)));
}

TEST_P(NestedCheckpoint, AnInnerRegionsArgumentIsNotKeptAliveByItsClosure) {
  std::optional<StorageWatch> inner_argument;
  const at::Tensor x = leaf({1000});
  const at::Tensor y = checkpoint(
      [&](const at::Tensor& t) {
        at::Tensor h = t.exp();
        if (!is_recomputing()) inner_argument.emplace(h);
        return checkpoint([](at::Tensor in) { return in.sin().exp(); }, std::move(h));
      },
      x);
  EXPECT_FALSE(inner_argument->alive());
  y.sum().backward();
  const Tensors actual = take_gradients({x});
  EXPECT_TRUE(same_bits(actual, gradients_of([&] { return x.exp().sin().exp(); }, {x})));
}

TEST_P(NestedCheckpoint, ABackwardInsideTheFunctionMayKeepItsGraph) {
  const Function f = [](const at::Tensor& x) {
    const at::Tensor y = x.sin(), z = y.cos();
    const at::Tensor first = torch::autograd::grad({z}, {x}, {}, /*retain_graph=*/true)[0];
    const at::Tensor second = torch::autograd::grad({z}, {x})[0];
    return x.cos() * (first + second) + x.exp();
  };
  const at::Tensor x = leaf({});
  EXPECT_TRUE(same_bits(gradients_of([&] { return checkpoint(f, x); }, {x}),
                        gradients_of([&] { return f(x); }, {x})));
  expect_graph_dies(region(f));
  expect_graph_dies(region(region(f)));
}

TEST_P(NestedCheckpoint, FlagsInsideAreThoseOfTheInnermostRegion) {
  std::vector<std::pair<bool, bool>> inner, after;
  const at::Tensor x = leaf({});
  const at::Tensor y = checkpoint(
      [&](const at::Tensor& t) {
        const at::Tensor h = checkpoint(
            [&](const at::Tensor& in) {
              inner.emplace_back(is_checkpointing(), is_recomputing());
              return in.exp();
            },
            t.sin());
        after.emplace_back(is_checkpointing(), is_recomputing());
        return h.exp();
      },
      x);
  using Flags = std::vector<std::pair<bool, bool>>;
  EXPECT_EQ(inner, (Flags{{true, false}}));
  EXPECT_EQ(after, (Flags{{true, false}}));
  y.backward();
  // In the outer recomputation the inner region is there for the first time; then it is itself run
  // again.
  ASSERT_EQ(inner.size(), 3u);
  EXPECT_EQ(inner[1], std::pair(true, true));
  EXPECT_EQ(inner[2], std::pair(false, true));
}

TEST_P(NestedCheckpoint, AGraphThatIsDroppedWithoutBackwardDiesToo) {
  const Function f = [](const at::Tensor& x) { return x.sin().exp().softmax(-1).tanh(); };
  std::weak_ptr<int> alive;
  {
    auto token = std::make_shared<int>();
    alive = token;
    const at::Tensor x = leaf({4});
    const at::Tensor y = checkpoint([token, f](const at::Tensor& t) { return region(f)(f(t)); }, x);
    token.reset();
    EXPECT_FALSE(alive.expired());
  }
  EXPECT_TRUE(alive.expired());
}

}  // namespace
}  // namespace reprise
