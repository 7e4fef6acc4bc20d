// Scores of activations: their value, and that nothing else of a step changes.
#include <rapidcheck.h>
#include <reprise/budget.h>
#include <reprise/checkpoint.h>
#include <reprise/experimental/pgac.h>
#include <reprise/offload.h>

#include <limits>
#include <thread>

#include "tests/influence/testing.h"
#include "tests/refusal.h"

namespace reprise {
namespace {

using namespace reprise::testing;

TEST(Influence, IsTheNormOfTheProduct) {
  torch::manual_seed(1);
  for (const auto type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const std::int64_t count : {1, 7, 64, 65, 100'003}) {
      const at::Tensor a = at::randn({count}).to(type), g = at::randn({count}).to(type);
      const double expected = plain_influence(g, a);
      EXPECT_NEAR(influence_of(g, a), expected, 1e-6 * expected) << type << ' ' << count;
    }
  }
  const at::Tensor a = at::randn({5, 6}, at::kComplexFloat),
                   g = at::randn({5, 6}, at::kComplexFloat);
  EXPECT_NEAR(influence_of(g, a), (g * a).abs().norm().item<double>(), 1e-5);
  EXPECT_NEAR(influence_of(g.conj(), a), (g * a).abs().norm().item<double>(), 1e-5);
  EXPECT_EQ(influence_of(at::zeros({0}), at::zeros({0})), 0);
}

TEST(Influence, OfTensorsInAnyOrderInMemory) {
  EXPECT_TRUE(rc::check([] {
    torch::manual_seed(*rc::gen::inRange(0, 1000));
    const auto side = [] { return *rc::gen::inRange<std::int64_t>(1, 9); };
    at::Tensor a = at::randn({side(), side(), side()});
    at::Tensor g = at::randn(a.sizes());
    switch (*rc::gen::inRange(0, 5)) {
      case 0:
        g = g.transpose(0, 2).contiguous().transpose(0, 2);
        break;
      case 1:
        a = a.transpose(0, 1), g = g.transpose(0, 1);
        break;
      case 2:
        g = at::randn({1, 1, 1}).expand(a.sizes());
        break;
      case 3:
        a = a.slice(1, 0, a.size(1), 2), g = g.slice(1, 0, g.size(1), 2);
        break;
      default:
        break;
    }
    const double expected = plain_influence(g, a);
    RC_ASSERT(std::abs(influence_of(g, a) - expected) <= 1e-6 * expected);
  }));
}

TEST(Influence, WhereSinglePrecisionWouldNotDo) {
  const at::Tensor large = at::full({1000}, 1e15F);
  EXPECT_NEAR(influence_of(large, large), 1e30 * std::sqrt(1000.0), 1e25);
  const at::Tensor small = at::full({1000}, 1e-15F);
  EXPECT_NEAR(influence_of(small, small) / (1e-30 * std::sqrt(1000.0)), 1, 1e-5);
  EXPECT_EQ(influence_of(at::zeros({100}), at::ones({100})), 0);
}

TEST(Influence, DoesNotDependOnTheNumberOfThreads) {
  torch::manual_seed(2);
  const at::Tensor a = at::randn({1'000'003}), g = at::randn({1'000'003});
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const double alone = influence_of(g, a);
  at::set_num_threads(4);
  const double together = influence_of(g, a);
  at::set_num_threads(threads);
  EXPECT_EQ(alone, together);
}

TEST(Influence, RefusesWhatDoesNotFitTogether) {
  const at::Tensor a = at::ones({3});
  EXPECT_TRUE(contains(refusal_of([&] { influence_of(at::ones({4}), a); }),
                       "the gradient has the shape [4], the activation [3]"));
  EXPECT_TRUE(contains(refusal_of([&] { influence_of(at::ones({3}, at::kLong), a); }),
                       "both must be dense, with memory, and of one type of float"));
  EXPECT_TRUE(contains(refusal_of([&] { influence_of(at::ones({3}, at::kMeta), a); }),
                       "they must be on one device"));
  EXPECT_TRUE(contains(refusal_of([] { InfluenceMeter meter({.stride = 0}); }),
                       "stride is 0; it must be at least 1"));
  EXPECT_TRUE(contains(refusal_of([&] { InfluenceMeter().watch(-1, a); }),
                       "layer is -1; layers are numbered from 0"));
}

TEST(InfluenceMeter, ScoresWhatBackwardBrings) {
  const at::Tensor x = leaf({6, 5}), w = leaf({5, 4});
  InfluenceMeter meter;
  const at::Tensor a = x.mm(w).tanh();
  meter.watch(3, a);
  const at::Tensor loss = (a.exp() * a).sum();  // two uses
  const at::Tensor d = torch::autograd::grad({loss}, {a}, {}, /*retain_graph=*/true)[0];
  meter.take();
  loss.backward();
  const auto scores = meter.take();
  ASSERT_EQ(scores.size(), 1u);
  EXPECT_EQ(scores[0].layer, 3);
  EXPECT_EQ(scores[0].gradients, 1);
  EXPECT_EQ(scores[0].error, 0);
  EXPECT_NEAR(scores[0].value, plain_influence(d, a), 1e-5);
  EXPECT_TRUE(meter.take().empty()) << "begins anew";
}

TEST(InfluenceMeter, AddsTheSquaresOfMicroBatchesAndPasses) {
  InfluenceMeter meter;
  const at::Tensor w = leaf({5});
  double squares = 0;
  for (int i = 1; i <= 3; ++i) {
    const at::Tensor a = w * i;
    meter.watch(0, a);
    const at::Tensor loss = a.square().sum();
    loss.backward({}, /*retain_graph=*/i == 2);
    if (i == 2) loss.backward();
    const double each = plain_influence(2 * a.detach(), a.detach());
    squares += (i == 2 ? 2 : 1) * each * each;
  }
  const auto scores = meter.take();
  ASSERT_EQ(scores.size(), 1u);
  EXPECT_EQ(scores[0].gradients, 4);
  EXPECT_NEAR(scores[0].value, std::sqrt(squares), 1e-4);
}

TEST(InfluenceMeter, LeavesOutWhatHasNoHistory) {
  InfluenceMeter meter;
  meter.watch(0, leaf());
  meter.watch(0, at::ones({3}));
  meter.watch(0, at::ones({3}, at::kLong));
  {
    const at::NoGradGuard no_grad;
    meter.watch(0, leaf() * 2);
  }
  (leaf() * 2).sum().backward();
  EXPECT_TRUE(meter.take().empty());
  const at::Tensor unused = leaf() * 2;
  meter.watch(0, unused);
  leaf().sum().backward();
  EXPECT_TRUE(meter.take().empty());
}

TEST(InfluenceMeter, CountsScoresThatAreNotFinite) {
  InfluenceMeter meter;
  const at::Tensor w = leaf({4});
  for (const double factor :
       {1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    const at::Tensor a = w * 2;
    meter.watch(0, a);
    (a * factor).sum().backward();
  }
  const auto scores = meter.take();
  ASSERT_EQ(scores.size(), 1u);
  EXPECT_EQ(scores[0].gradients, 1);
  EXPECT_EQ(scores[0].not_finite, 2);
  EXPECT_NEAR(scores[0].value, (w * 2).norm().item<double>(), 1e-5);
}

TEST(InfluenceMeter, CountsWhatWasChangedInPlaceAndIsNoErrorThen) {
  InfluenceMeter meter;
  const at::Tensor x = leaf({6, 5});
  const auto step = [&](bool watches) {
    take_gradients({x});
    at::Tensor a = x + 1;
    if (watches) meter.watch(0, a);
    a.add_(1);
    if (watches) meter.watch(1, a);
    at::Tensor half = a.slice(0, 0, 3);  // a view, changed in place too
    if (watches) meter.watch(2, half);
    half.mul_(2);
    a.sum().backward();
    return take_gradients({x});
  };
  const Tensors expected = step(false);
  EXPECT_TRUE(same_bits(step(true), expected));
  const auto scores = meter.take();
  for (const InfluenceScore& score : scores) {
    EXPECT_EQ(score.changed, 1) << score.layer;
    EXPECT_EQ(score.gradients, 0) << score.layer;
  }
  EXPECT_GE(scores.size(), 2u);
}

TEST(InfluenceMeter, ScoresWhatRegionsRecompute) {
  const at::Tensor x = leaf({6, 5});
  for (const Variant variant : {Variant::kNonReentrant, Variant::kReentrant}) {
    InfluenceMeter plain, again;
    const auto run = [](const InfluenceMeter& meter) {
      return [&meter](const at::Tensor& input) {
        at::Tensor a = input.sin();
        meter.watch(0, a);
        at::Tensor b = torch::dropout(a * a, 0.5, true);
        meter.watch(1, b);
        return b.exp() * b;
      };
    };
    const Tensors expected = gradients_of([&] { return run(plain)(x); }, {x});
    const Tensors found =
        gradients_of([&] { return checkpoint(options_of(variant), run(again), x); }, {x});
    EXPECT_TRUE(same_bits(found, expected));
    const auto a = plain.take(), b = again.take();
    ASSERT_EQ(a.size(), 2u);
    ASSERT_EQ(b.size(), 2u);
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(a[i].value, b[i].value);
      EXPECT_EQ(b[i].gradients, 1);
    }
  }
}

TEST(InfluenceMeter, ScoresWhatStoresKeepAndWhatABudgetDropped) {
  const at::Tensor x = leaf({256, 256});
  InfluenceMeter meter;
  const auto forward = [&] {
    at::Tensor a = x.sin();
    meter.watch(0, a);
    at::Tensor b = a.exp();
    meter.watch(1, b);
    for (int i = 0; i < 6; ++i) b = b.cos() * 2;
    return b;
  };
  const Tensors expected = gradients_of(forward, {x});
  const auto plain = meter.take();
  ASSERT_EQ(plain.size(), 2u);
  const auto expect_same = [&](const char* where) {
    const auto scores = meter.take();
    ASSERT_EQ(scores.size(), 2u) << where;
    for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(scores[i].value, plain[i].value) << where;
  };
  {
    const OffloadScope scope(disk_store({.folder = ::testing::TempDir()}), Bytes(0));
    EXPECT_TRUE(same_bits(gradients_of(forward, {x}), expected));
  }
  expect_same("a disk");
  MemoryBudget budget(live_bytes() + KiB(256) * 6);
  auto step = budget.step();
  EXPECT_TRUE(same_bits(gradients_of(forward, {x}), expected));
  step.finish();
  EXPECT_GT(budget.report().dropped, 0);
  expect_same("a budget");
}

TEST(InfluenceMeter, KeepsNothingBeyondBackward) {
  InfluenceMeter meter;
  const at::Tensor x = leaf({1024});
  const Bytes before = live_bytes();
  at::Tensor loss;
  {
    at::Tensor a = x.sin();
    meter.watch(0, a);
    loss = a.exp().sum();
  }
  const Bytes held = live_bytes();
  EXPECT_GT(held, before + KiB(4));
  loss.backward();
  // The gradient and the loss alone.
  EXPECT_LT(live_bytes(), before + KiB(6));
  x.mutable_grad().reset();
  {
    at::Tensor a = x.sin();
    meter.watch(0, a);
    loss = a.exp().sum();
  }
  loss.reset();
  EXPECT_LE(live_bytes(), before) << "a graph that is dropped";
}

TEST(InfluenceMeter, TakesNoMemoryWhereTheNextLayerSavesTheSame) {
  const at::Tensor x = leaf({512, 512});
  const auto peak_of = [&](const InfluenceMeter* meter) {
    const PeakScope peak;
    at::Tensor a = x;
    for (int i = 0; i < 4; ++i) {
      a = (a.sin() + 1).exp();
      if (meter != nullptr) meter->watch(i, a);
    }
    a.sum().backward();
    take_gradients({x});
    return peak.peak_above_start();
  };
  const Bytes plain = peak_of(nullptr);
  InfluenceMeter meter;
  EXPECT_LE(peak_of(&meter).count, plain.count * 1.001);
  EXPECT_EQ(meter.take().size(), 4u);
}

TEST(InfluenceMeter, LeavesOutTypesThatItCannotScore) {
  InfluenceMeter meter;
  const at::Tensor x = leaf({8, 8});
  const at::Tensor a = (x * 2).to(at::kFloat8_e4m3fn);
  meter.watch(0, a);
  a.to(at::kFloat).sum().backward();
  EXPECT_TRUE(meter.take().empty());
  EXPECT_TRUE(
      contains(refusal_of([&] { influence_of(a.detach(), a.detach()); }), "both must be dense"));
}

TEST(InfluenceMeter, CountsWhatComesWhenTheActivationHasGone) {
  InfluenceMeter meter;
  const at::Tensor x = leaf({4});
  const at::Tensor a = x * 2;
  meter.watch(0, a);
  const at::Tensor first = a.sum(), second = (a + 1).sum();
  torch::autograd::grad({first}, {a});
  torch::autograd::grad({second}, {a});
  const InfluenceScore score = meter.take().at(0);
  EXPECT_EQ(score.gradients, 1);
  EXPECT_EQ(score.missed, 1);
}

TEST(InfluenceMeter, BackwardOnSeveralThreadsCountsEach) {
  InfluenceMeter meter;
  const at::Tensor w = leaf({64, 64});
  constexpr int kThreads = 4, kSteps = 25;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kSteps; ++i) {
        const at::Tensor a = w.detach().requires_grad_() * 2;
        meter.watch(0, a);
        a.square().sum().backward();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const InfluenceScore score = meter.take().at(0);
  EXPECT_EQ(score.gradients, kThreads * kSteps);
  const double each = plain_influence(4 * w.detach(), 2 * w.detach());
  EXPECT_NEAR(score.value / (each * std::sqrt(kThreads * kSteps)), 1, 1e-5);
}

TEST(InfluenceMeter, GradientsOfHigherOrderAreThoseOfThePlainStep) {
  const at::Tensor x = leaf({6, 5});
  const auto step = [&](const InfluenceMeter* meter) {
    const at::Tensor a = x.sin();
    if (meter != nullptr) meter->watch(0, a);
    const at::Tensor y = (a * a).sum();
    const at::Tensor first = torch::autograd::grad({y}, {x}, {}, true, /*create_graph=*/true)[0];
    first.square().sum().backward();
    return take_gradients({x});
  };
  const Tensors expected = step(nullptr);
  InfluenceMeter meter;
  EXPECT_TRUE(same_bits(step(&meter), expected));
  EXPECT_EQ(meter.take().at(0).gradients, 2) << "each pass brings one";
}

}  // namespace
}  // namespace reprise
