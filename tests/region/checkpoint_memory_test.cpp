// The purpose of it all: what forward keeps, how memory falls while backward runs, and that nothing
// stays.
#include "tests/region/testing.h"

#include <cmath>

namespace reprise {
namespace {

using namespace reprise::testing;

constexpr std::int64_t kSize = 100'000;

// How many tensors' bytes are alive at each of three points of a backward over a chain of
// operators that save their inputs.
std::vector<double> series(
    const std::function<at::Tensor(const std::function<at::Tensor(const at::Tensor&)>&,
                                   const at::Tensor&)>& call,
    bool retain_graph) {
  const at::Tensor x = torch::zeros({kSize}).requires_grad_(true);
  x.mutable_grad() = torch::zeros({kSize});
  std::vector<Bytes> bytes;
  const auto track = [&](const at::Tensor& t) {
    if (t.requires_grad() && !is_recomputing()) {
      t.register_hook([&](const at::Tensor&) { bytes.push_back(live_bytes()); });
    }
  };
  const Bytes before = live_bytes();
  {
    const at::Tensor y = call(
        [&](const at::Tensor& t) {
          at::Tensor y = t.pow(2);
          track(y);
          y = y.pow(2);
          track(y);
          y = y.pow(2);
          track(y);
          return y.pow(2).sum();
        },
        x);
    y.backward({}, retain_graph);
  }
  // Malloc's usable sizes differ a little from call to call: whole tensors are counted.
  const Bytes one(kSize * 4);
  std::vector<double> tensors;
  for (const Bytes b : bytes)
    tensors.push_back(std::round((b - before).count * 10.0 / one.count) / 10);
  return tensors;
}

at::Tensor plain_call(const std::function<at::Tensor(const at::Tensor&)>& f, const at::Tensor& x) {
  return f(x);
}

class CheckpointEarlyFree : public ::testing::TestWithParam<EarlyStop> {};
INSTANTIATE_TEST_SUITE_P(EarlyStops, CheckpointEarlyFree,
                         ::testing::Values(EarlyStop::kNever, EarlyStop::kWhenCheaper,
                                           EarlyStop::kAlways),
                         early_stop_name);

TEST_P(CheckpointEarlyFree, MemoryFallsAtEachStepOfBackwardAsInAPlainOneAlsoWithRetainGraph) {
  const auto region = [&](const auto& f, const at::Tensor& x) {
    return checkpoint(with_early_stop(GetParam()), f, x);
  };
  const std::vector<double> plain = series(plain_call, false), retained = series(plain_call, true);
  ASSERT_EQ(plain.size(), 3u);
  ASSERT_EQ(retained.size(), 3u);
  EXPECT_EQ(retained[0], retained[2]) << "a plain graph that is retained keeps its tensors";
  for (const bool retain_graph : {false, true}) {
    const std::vector<double> bytes = series(region, retain_graph);
    ASSERT_EQ(bytes.size(), 3u);
    EXPECT_GT(bytes[0], bytes[1]);
    EXPECT_GT(bytes[1], bytes[2]);
    EXPECT_EQ(bytes, plain) << "retain_graph " << retain_graph;
  }
}

class CheckpointMemory : public ::testing::TestWithParam<Variant> {
 protected:
  CheckpointOptions options_ = options_of(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Variants, CheckpointMemory,
                         ::testing::Values(Variant::kNonReentrant, Variant::kReentrant),
                         variant_name);

at::Tensor five_operators(const at::Tensor& x) { return x.sin().exp().tanh().sigmoid().cos(); }

TEST_P(CheckpointMemory, ForwardKeepsTheArgumentAndTheResultAndNothingElse) {
  const at::Tensor x = leaf({kSize});
  const auto kept = [&](auto&& call) {
    const Bytes before = live_bytes();
    const at::Tensor y = call();
    return live_bytes() - before;
  };
  const Bytes one = kept([] { return torch::empty({kSize}); });
  EXPECT_GE(kept([&] { return five_operators(x); }), one * 4 - KiB(64));
  const Bytes region = kept([&] { return checkpoint(options_, five_operators, x); });
  EXPECT_GE(region, one - KiB(64));
  EXPECT_LT(region, one + KiB(64));
}

TEST_P(CheckpointMemory, PeakOfAStepIsBelowThePlainOne) {
  std::vector<torch::nn::Sequential> layers;
  for (int i = 0; i < 8; ++i) {
    layers.emplace_back(torch::nn::Linear(256, 256), torch::nn::Linear(256, 256),
                        torch::nn::Linear(256, 256));
    for (const at::Tensor& p : layers.back()->parameters()) p.mutable_grad() = torch::ones_like(p);
  }
  const at::Tensor x = leaf({100, 256});
  const auto peak_of_step = [&](auto&& call) {
    const PeakScope scope;
    at::Tensor y = x.clone();
    for (auto& layer : layers) y = call(layer, y);
    y.sum().backward();
    return scope.peak_above_start();
  };
  const auto plain = [](auto& layer, const at::Tensor& t) { return layer->forward(t); };
  const auto region = [&](auto& layer, const at::Tensor& t) {
    return checkpoint(options_, layer, t);
  };
  peak_of_step(plain);
  EXPECT_LT(peak_of_step(region).count * 3, peak_of_step(plain).count * 2);
}

TEST_P(CheckpointMemory, AStepLeavesNothingBehind) {
  const at::Tensor x = leaf({1000});
  const auto step = [&] {
    at::Tensor y = x;
    for (int i = 0; i < 3; ++i) y = checkpoint(options_, five_operators, y);
    y = checkpoint(
        options_, [](const at::Tensor& t) { return torch::dropout(t, 0.5, true).exp(); }, y);
    y.sum().backward({}, /*retain_graph=*/true);
    y.sum().backward();
    take_gradients({x});
  };
  step();
  const Bytes before = live_bytes();
  for (int i = 0; i < 50; ++i) step();
  EXPECT_EQ(live_bytes(), before);
}

TEST_P(CheckpointMemory, AGraphThatNoBackwardVisitsLeavesNothingBehind) {
  const at::Tensor x = leaf({1000});
  const Bytes before = live_bytes();
  for (int i = 0; i < 20; ++i) {
    checkpoint(options_, five_operators, checkpoint(options_, five_operators, x));
  }
  EXPECT_EQ(live_bytes(), before);
}

TEST_P(CheckpointMemory, TheFunctionDiesWithTheGraphAndNotBefore) {
  const at::Tensor x = leaf({10});
  auto token = std::make_shared<int>();
  const std::weak_ptr<int> alive = token;
  at::Tensor y = checkpoint(
      options_, [token = std::move(token)](const at::Tensor& t) { return five_operators(t); }, x);
  EXPECT_FALSE(alive.expired());
  y.sum().backward({}, /*retain_graph=*/true);
  EXPECT_FALSE(alive.expired());
  y = at::Tensor();
  EXPECT_TRUE(alive.expired());
}

TEST_P(CheckpointMemory, BackwardFreesTheRegionsArgumentsAsItPasses) {
  at::Tensor x = leaf({1000});
  at::Tensor h = x * 2;
  const StorageWatch watch(h);
  const at::Tensor loss = checkpoint(options_, five_operators, std::move(h)).sum();
  EXPECT_TRUE(watch.alive());
  loss.backward();
  EXPECT_FALSE(watch.alive()) << "only the loss is alive, and its graph has been released";
}

TEST(CheckpointPartialBackward, TensorsThatABackwardDidNotReadAreFreedWhenItEnds) {
  const at::Tensor x = leaf({kSize});
  const auto [y, z] = checkpoint(
      [](const at::Tensor& t) {
        at::Tensor first = t.sin().exp().sin();
        return std::pair(first, first.exp().sin());
      },
      x);
  const Bytes before = live_bytes();
  torch::autograd::grad({z.sum()}, {y}, {}, /*retain_graph=*/true);
  EXPECT_EQ(live_bytes(), before);
}

TEST(CheckpointPartialBackward, AFailedBackwardFreesWhatItRecomputed) {
  const at::Tensor x = leaf({kSize});
  bool fail = true;
  at::Tensor y = checkpoint(
      [&](const at::Tensor& t) {
        at::Tensor inner = t.sin().exp();
        if (!is_recomputing()) {
          inner.register_hook([&](const at::Tensor& g) {
            if (fail) throw std::runtime_error("in the middle of backward");
            return g;
          });
        }
        return inner.exp().sin();
      },
      x);
  const at::Tensor loss = y.sum();
  const Bytes before = live_bytes();
  error_of<std::runtime_error>([&] { loss.backward({}, /*retain_graph=*/true); });
  const Bytes after_failure = live_bytes();
  fail = false;
  loss.backward({}, /*retain_graph=*/true);
  take_gradients({x});
  EXPECT_EQ(live_bytes(), before) << (after_failure - before).count
                                  << " bytes were alive after the failure";
}

TEST(CheckpointChainMemory, ActivationsOfAChainGrowWithTheNumberOfSegmentsOnly) {
  // 64 operators in 8 regions, the square root. There are the arguments of 7 regions (the first one's
  // is x), what one region saves beside its argument (7), the result, and a gradient. malloc may
  // round each block up to a page, which is a thousandth of these blocks.
  constexpr std::int64_t size = 1'000'000;
  const at::Tensor x = leaf({size});
  const Bytes one(size * 4);
  const auto chain = [](const at::Tensor& t, int operators) {
    at::Tensor y = t;
    for (int i = 0; i < operators; ++i) y = y.sin();
    return y;
  };
  const auto peak = [&](int segments) {
    const PeakScope scope;
    at::Tensor y = x;
    for (int s = 0; s < segments; ++s) {
      y = checkpoint([&, n = 64 / segments](const at::Tensor& t) { return chain(t, n); }, y);
    }
    y.sum().backward();
    take_gradients({x});
    return scope.peak_above_start();
  };
  const auto units = [&](int segments) {
    return static_cast<double>(peak(segments).count) / static_cast<double>(one.count);
  };
  // One region saves 63 beside x; the result and two gradients come on top.
  EXPECT_NEAR(units(1), 66, 0.1);
  EXPECT_NEAR(units(8), 16, 1.1);
}

}  // namespace
}  // namespace reprise
