// What is particular to the reentrant variant: its limits and their errors, the warning, and
// backward calls inside backward calls.
#include "tests/region/testing.h"

namespace reprise {
namespace {

using namespace reprise::testing;

at::Tensor body_of_reentrant(const at::Tensor& x) { return x.sin().exp().tanh(); }

class ReentrantCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override { torch::manual_seed(7); }
  at::Tensor x_ = leaf({3, 3});
  void expect_next_step_works() {
    take_gradients({x_});
    EXPECT_TRUE(same_bits(
        gradients_of([&] { return checkpoint(reentrant(), body_of_reentrant, x_); }, {x_}),
        gradients_of([&] { return body_of_reentrant(x_); }, {x_})));
  }
};

TEST_F(ReentrantCheckpoint, AutogradGradIsRefusedAndTheNextBackwardWorks) {
  const at::Tensor loss = checkpoint(reentrant(), body_of_reentrant, x_).sum();
  const std::string text = error_of<DeterminismError>([&] { torch::autograd::grad({loss}, {x_}); });
  EXPECT_TRUE(contains(text, "grad()"));
  EXPECT_TRUE(contains(text, "inputs"));
  EXPECT_TRUE(contains(text, "reentrant"));
  expect_next_step_works();
}

TEST_F(ReentrantCheckpoint, BackwardWithInputsIsRefusedAndTheNextBackwardWorks) {
  const at::Tensor loss = checkpoint(reentrant(), body_of_reentrant, x_).sum();
  const std::string text = error_of<DeterminismError>([&] {
    loss.backward({}, /*retain_graph=*/false, /*create_graph=*/false, std::vector<at::Tensor>{x_});
  });
  EXPECT_TRUE(contains(text, "inputs"));
  expect_next_step_works();
}

TEST_F(ReentrantCheckpoint, ASecondResultThatNeedsNoGradientIsNoObstacle) {
  const at::Tensor other = torch::rand({4});
  const auto both = [](const at::Tensor& a, const at::Tensor& b) { return std::pair(a, b); };
  const auto [first, second] = checkpoint(reentrant(), both, x_, other);
  first.sum().backward();
  EXPECT_TRUE(same_bits(take_gradients({x_}), {torch::ones({3, 3})}));
}

TEST_F(ReentrantCheckpoint, NoResultThatRequiresGradIsAnError) {
  const at::Tensor constant = torch::rand({3, 3});
  const auto first_only = [](const at::Tensor& a, const at::Tensor&) { return a; };
  const std::string text = error_of<DeterminismError>(
      [&] { checkpoint(reentrant(), first_only, constant, x_).sum().backward(); });
  EXPECT_TRUE(contains(text, "requires grad"));
  expect_next_step_works();
}

TEST_F(ReentrantCheckpoint, AResultDetachedInsideIsAnErrorStepAfterStep) {
  torch::nn::Linear linear(3, 3);
  for (int i = 0; i < 3; ++i) {
    const std::string text = error_of<DeterminismError>([&] {
      at::Tensor y = checkpoint(
          reentrant(),
          [&](const at::Tensor& t) {
            const torch::NoGradGuard no_grad;
            return linear->forward(t);
          },
          x_);
      (y + x_).sum().backward();
    });
    EXPECT_TRUE(contains(text, "requires grad"));
    take_gradients({x_});
  }
  expect_next_step_works();
}

TEST_F(ReentrantCheckpoint, WarnsWhenNoInputRequiresGradAndOnlyThen) {
  WarningLog log;
  checkpoint(reentrant(), body_of_reentrant, x_);
  checkpoint(body_of_reentrant, torch::rand({2}));
  EXPECT_TRUE(log.texts.empty());
  const at::Tensor y = checkpoint(reentrant(), body_of_reentrant, torch::rand({2}));
  EXPECT_FALSE(y.requires_grad());
  ASSERT_EQ(log.texts.size(), 1u);
  EXPECT_TRUE(contains(log.texts[0], "require"));
  EXPECT_TRUE(contains(log.texts[0], "grad"));
}

TEST_F(ReentrantCheckpoint, OptionsThatOnlyTheOtherVariantHasAreRefusedByName) {
  int runs = 0;
  const auto refused = [&](const CheckpointOptions& options) {
    const std::string text =
        error_of<UsageError>([&] { checkpoint(options, counted(runs, body_of_reentrant), x_); });
    EXPECT_TRUE(contains(text, "reentrant=false"));
    return text;
  };
  CheckpointOptions options = reentrant();
  options.context = [] { return RegionContexts(); };
  EXPECT_TRUE(contains(refused(options), "context"));
  options = reentrant();
  options.debug = true;
  EXPECT_TRUE(contains(refused(options), "debug"));
  options = reentrant();
  options.early_stop = EarlyStop::kAlways;
  EXPECT_TRUE(contains(refused(options), "early_stop"));
  EXPECT_EQ(runs, 0);
  expect_next_step_works();
}

TEST_F(ReentrantCheckpoint, ForwardBuildsNoGraphAndTheFunctionAlwaysRunsToItsEnd) {
  std::vector<bool> grad_mode;
  int ends = 0;
  const at::Tensor y = checkpoint(
      reentrant(),
      [&](const at::Tensor& t) {
        const at::Tensor inner = t.sin();
        grad_mode.push_back(c10::GradMode::is_enabled());
        const at::Tensor result = inner.clone();
        ++ends;
        return result;
      },
      x_);
  GraphWatch graph;
  graph.add(y);
  EXPECT_EQ(graph.seen(), 1u);
  y.sum().backward();
  EXPECT_EQ(grad_mode, (std::vector<bool>{false, true}));
  EXPECT_EQ(ends, 2);
}

TEST_F(ReentrantCheckpoint, VariantsNestInEachOther) {
  for (const bool outer_reentrant : {false, true}) {
    CheckpointOptions outer, inner;
    outer.reentrant = outer_reentrant;
    inner.reentrant = !outer_reentrant;
    const auto nested = [&](const at::Tensor& t) {
      return checkpoint(inner, body_of_reentrant, checkpoint(inner, body_of_reentrant, t.cos()) * t)
          .sin();
    };
    const auto plain = [&](const at::Tensor& t) {
      return body_of_reentrant(body_of_reentrant(t.cos()) * t).sin();
    };
    EXPECT_TRUE(same_bits(gradients_of([&] { return checkpoint(outer, nested, x_); }, {x_}),
                          gradients_of([&] { return plain(x_); }, {x_})));
  }
}

TEST_F(ReentrantCheckpoint, NestingRecomputesOncePerLevel) {
  for (int depth = 1; depth <= 5; ++depth) {
    int runs = 0;
    std::function<at::Tensor(const at::Tensor&)> f = counted(runs, body_of_reentrant);
    for (int i = 0; i < depth; ++i) {
      f = [f](const at::Tensor& t) { return checkpoint(reentrant(), f, t); };
    }
    f(x_).sum().backward();
    EXPECT_EQ(runs, 1 + depth);
  }
  take_gradients({x_});
}

TEST_F(ReentrantCheckpoint, AHundredNestedRegionsSurviveAutogradsChangeOfThreads) {
  // The engine moves nested backward calls to other threads beyond a depth of 60.
  std::function<at::Tensor(const at::Tensor&)> f = [](const at::Tensor& t) {
    return torch::dropout(t, 0.5, true).sin();
  };
  for (int i = 0; i < 100; ++i) {
    f = [f](const at::Tensor& t) { return checkpoint(reentrant(), f, t * 1.015625); };
  }
  EXPECT_TRUE(same_bits(gradients_of([&] { return f(x_); }, {x_}, 1),
                        gradients_of(
                            [&] {
                              at::Tensor t = x_;
                              for (int i = 0; i < 100; ++i) t = t * 1.015625;
                              return torch::dropout(t, 0.5, true).sin();
                            },
                            {x_}, 1)));
  EXPECT_FALSE(is_recomputing());
}

TEST_F(ReentrantCheckpoint, ParametersThatTheFunctionCapturesGetTheirGradients) {
  torch::nn::Linear linear(3, 3);
  const auto f = [&](const at::Tensor& t) { return linear->forward(t).tanh(); };
  const Tensors leaves = {x_, linear->weight, linear->bias};
  EXPECT_TRUE(same_bits(gradients_of([&] { return checkpoint(reentrant(), f, x_); }, leaves),
                        gradients_of([&] { return f(x_); }, leaves)));
}

TEST_F(ReentrantCheckpoint, IntegerResultsPassThroughWithoutGradient) {
  const auto f = [](const at::Tensor& t) { return t.sort(); };
  const auto [values, indices] = checkpoint(reentrant(), f, x_);
  EXPECT_FALSE(indices.requires_grad());
  EXPECT_TRUE(same_bits(indices, std::get<1>(x_.sort())));
  values.exp().sum().backward();
  const Tensors actual = take_gradients({x_});
  EXPECT_TRUE(same_bits(actual, gradients_of([&] { return std::get<0>(x_.sort()).exp(); }, {x_})));
}

// In a larger loss the rest has a second derivative, so that nothing would look wrong.
TEST_F(ReentrantCheckpoint, ASecondDerivativeIsRefusedRatherThanMissing) {
  const at::Tensor loss = checkpoint(reentrant(), body_of_reentrant, x_).sum() + x_.pow(3).sum();
  const std::string text =
      error_of<DeterminismError>([&] { loss.backward({}, true, /*create_graph=*/true); });
  EXPECT_NE(text.find("cannot be differentiated twice"), std::string::npos) << text;
  x_.mutable_grad() = at::Tensor();
}

TEST_F(ReentrantCheckpoint, ResultsInPlaceChangedByTheCallerKeepRightGradients) {
  const auto step = [&](auto&& call) { return call().mul_(3).add_(x_).sin(); };
  const auto f = [](const at::Tensor& t) { return t.sin() * 2; };
  EXPECT_TRUE(same_bits(
      gradients_of([&] { return step([&] { return checkpoint(reentrant(), f, x_); }); }, {x_}),
      gradients_of([&] { return step([&] { return f(x_); }); }, {x_})));
}

TEST_F(ReentrantCheckpoint, TheGraphDiesWithItsResultAndAfterBackward) {
  for (const bool with_backward : {false, true}) {
    GraphWatch graph;
    std::weak_ptr<int> alive;
    {
      auto token = std::make_shared<int>();
      alive = token;
      const at::Tensor y = checkpoint(
          reentrant(),
          [token = std::move(token)](const at::Tensor& t) { return body_of_reentrant(t); }, x_ * 2);
      graph.add(y);
      if (with_backward) y.sum().backward({}, /*retain_graph=*/true);
    }
    EXPECT_GE(graph.seen(), 2u);
    EXPECT_EQ(graph.alive(), std::vector<std::string>{});
    EXPECT_TRUE(alive.expired());
  }
}

TEST(CheckpointReentrant, AnArgumentThatIsUsedOutsideTooHasItsGradientsSummedInAnotherOrder) {
  torch::manual_seed(1);
  const at::Tensor x = at::randn({64, 64}), w = at::randn({64, 64}).requires_grad_();
  const auto f = [](const at::Tensor& h) { return at::sin(h * 1.3) + at::tanh(h); };
  const auto gradient = [&](const CheckpointOptions* options) {
    const at::Tensor h = at::matmul(x, w);
    const at::Tensor y = options != nullptr ? checkpoint(*options, f, h) : f(h);
    (y * at::cos(h)).sum().backward();
    return take_gradients({w}).front();
  };
  const CheckpointOptions region, reentrant{.reentrant = true};
  const at::Tensor plain = gradient(nullptr);
  EXPECT_TRUE(same_bits(gradient(&region), plain));
  // Documented: not the same bits, but as near as sums in another order are.
  const at::Tensor found = gradient(&reentrant);
  EXPECT_FALSE(same_bits(found, plain));
  EXPECT_LT((found - plain).abs().max().item<float>(), 1e-4F);
}

}  // namespace
}  // namespace reprise
