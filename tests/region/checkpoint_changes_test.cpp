// In-place changes around and inside regions: of an argument between forward and the recomputation,
// by the function itself, and of what the function saved. An error or the right gradient; never a
// wrong one. (PyTorch's checkpoint recomputes from a changed argument without a word.)
#include "tests/region/testing.h"

#include <map>

namespace reprise {
namespace {

using namespace reprise::testing;

at::Tensor body_of_changes(const at::Tensor& x, const at::Tensor& h) { return (x * h).exp(); }

class CheckpointChanges : public ::testing::TestWithParam<Variant> {
 protected:
  void SetUp() override { torch::manual_seed(5); }
  CheckpointOptions options_ = options_of(GetParam());
  at::Tensor x_ = leaf({3, 2});
};
INSTANTIATE_TEST_SUITE_P(Variants, CheckpointChanges,
                         ::testing::Values(Variant::kNonReentrant, Variant::kReentrant),
                         variant_name);

TEST_P(CheckpointChanges, AnArgumentChangedAfterForwardIsAnErrorThatNamesIt) {
  at::Tensor h = torch::rand({3, 2});
  options_.name = "block 3";
  const at::Tensor y = checkpoint(options_, body_of_changes, x_, h);
  h.add_(1);
  h.mul_(2);
  const std::string text = error_of<DeterminismError>([&] { y.sum().backward(); });
  EXPECT_TRUE(contains(text, "block 3"));
  EXPECT_TRUE(contains(text, "argument 1"));
  EXPECT_TRUE(contains(text, "[3, 2]"));
  EXPECT_TRUE(contains(text, "changed in place"));
  EXPECT_TRUE(contains(text, "clone"));
  if (!options_.reentrant) {
    EXPECT_TRUE(contains(text, "2 times"));
    EXPECT_TRUE(contains(text, "allow_changed_arguments"));
  }
}

TEST_P(CheckpointChanges, AChangeThroughAViewOrOfAnActivationCountsToo) {
  at::Tensor h = torch::rand({3, 2});
  at::Tensor y = checkpoint(options_, body_of_changes, x_, h);
  h.select(0, 1).zero_();
  EXPECT_TRUE(contains(error_of<DeterminismError>([&] { y.sum().backward(); }), "argument 1"));

  at::Tensor activation = x_ * 2;
  y = checkpoint(options_, body_of_changes, activation, torch::rand({3, 2}));
  activation.relu_();
  EXPECT_TRUE(contains(error_of<DeterminismError>([&] { y.sum().backward(); }), "argument 0"));
}

TEST_P(CheckpointChanges, AParameterGivenAsArgumentAndSteppedTooEarlyIsAnError) {
  const at::Tensor w = leaf({3, 2});
  const at::Tensor loss = checkpoint(options_, body_of_changes, x_, w).sum();
  loss.backward({}, /*retain_graph=*/true);
  {
    const torch::NoGradGuard no_grad;
    w.sub_(w.grad(), 0.1);  // torch::optim writes through data(), which no version counter sees
  }
  EXPECT_TRUE(contains(error_of<DeterminismError>([&] { loss.backward(); }), "argument 1"));
}

TEST_P(CheckpointChanges, ATensorDeepInsideAnArgumentIsFound) {
  std::map<std::string, Tensors> arguments{{"a", {x_, torch::rand({2})}},
                                           {"b", {torch::rand({5})}}};
  const at::Tensor changed = arguments["b"][0];
  const at::Tensor y = checkpoint(
      options_,
      [](const std::map<std::string, Tensors>& m) {
        return (m.at("a")[0] * m.at("a")[1]).exp() * m.at("b")[0].sum();
      },
      arguments);
  changed.add_(1);
  const std::string text = error_of<DeterminismError>([&] { y.sum().backward(); });
  EXPECT_TRUE(contains(text, "argument 2"));
  EXPECT_TRUE(contains(text, "[5]"));
}

TEST_P(CheckpointChanges, AllowedChangesMakeTheRecomputationStartFromTheChangedValue) {
  options_.allow_changed_arguments = true;
  if (options_.reentrant) {
    EXPECT_TRUE(
        contains(error_of<UsageError>([&] { checkpoint(options_, body_of_changes, x_, x_); }),
                 "allow_changed_arguments"));
    return;
  }
  at::Tensor h = torch::rand({3, 2});
  const at::Tensor y = checkpoint(options_, body_of_changes, x_, h);
  h.add_(1);
  y.sum().backward();
  const Tensors actual = take_gradients({x_});
  EXPECT_TRUE(same_bits(actual, gradients_of([&] { return body_of_changes(x_, h); }, {x_})));
}

TEST_P(CheckpointChanges, AFunctionThatWritesToItsArgumentIsRefusedUnlessAllowed) {
  const auto counts = [](const at::Tensor& x, const at::Tensor& statistics) {
    statistics.add_(x.detach().mean());
    return x.exp();
  };
  at::Tensor statistics = torch::zeros({1});
  at::Tensor y = checkpoint(options_, counts, x_, statistics);
  EXPECT_TRUE(contains(error_of<DeterminismError>([&] { y.sum().backward(); }), "argument 1"));
  take_gradients({x_});
  if (options_.reentrant) return;
  options_.allow_changed_arguments = true;
  y = checkpoint(options_, counts, x_, statistics);
  y.sum().backward();
  EXPECT_TRUE(same_bits(take_gradients({x_}), {x_.exp().detach()}));
}

TEST_P(CheckpointChanges, AfterSuchAnErrorTheNextStepWorksAndNothingLeaks) {
  std::weak_ptr<int> alive;
  {
    auto token = std::make_shared<int>();
    alive = token;
    at::Tensor h = torch::rand({3, 2});
    const at::Tensor y = checkpoint(
        options_,
        [token = std::move(token)](const at::Tensor& x, const at::Tensor& t) {
          return body_of_changes(x, t);
        },
        x_, h);
    h.add_(1);
    error_of<DeterminismError>([&] { y.sum().backward(); });
  }
  EXPECT_TRUE(alive.expired());
  const at::Tensor h = torch::rand({3, 2});
  EXPECT_TRUE(
      same_bits(gradients_of([&] { return checkpoint(options_, body_of_changes, x_, h); }, {x_}),
                gradients_of([&] { return body_of_changes(x_, h); }, {x_})));
}

// Runs `f` as a region that ends its recomputation in one of the three ways, and accepts autograd's
// own in-place error or the right gradient.
class CheckpointChangesInside : public ::testing::TestWithParam<EarlyStop> {
 protected:
  void SetUp() override { torch::manual_seed(6); }
  template <class F>
  void expect_error_or(const at::Tensor& right, F&& f) {
    at::Tensor y = checkpoint(with_early_stop(GetParam()), f, x_);
    try {
      y.sum().backward();
    } catch (const c10::Error& error) {
      EXPECT_TRUE(contains(error.what(), "modified by an inplace operation"));
      return;
    } catch (const DeterminismError& error) {
      EXPECT_TRUE(contains(error.what(), "was changed in place"));
      return;
    }
    EXPECT_TRUE(torch::allclose(take_gradients({x_})[0], right));
  }
  at::Tensor x_ = leaf({6});
};
INSTANTIATE_TEST_SUITE_P(EarlyStops, CheckpointChangesInside,
                         ::testing::Values(EarlyStop::kNever, EarlyStop::kWhenCheaper,
                                           EarlyStop::kAlways),
                         early_stop_name);

TEST_P(CheckpointChangesInside, ASavedResultChangedInTheTailNeverGivesAWrongGradient) {
  expect_error_or(x_.exp().detach(), [](const at::Tensor& x) {
    at::Tensor y = x.exp();
    y.add_(1);
    return y;
  });
}

TEST_P(CheckpointChangesInside, ASavedResultChangedBetweenSavesNeverGivesAWrongGradient) {
  const at::Tensor e = x_.exp().detach();
  expect_error_or(e * (e * 3).cos() * 3, [](const at::Tensor& x) {
    at::Tensor y = x.exp();
    const at::Tensor z = y.mul_(3);
    return z.sin();
  });
}

TEST_P(CheckpointChangesInside, ASavedInputChangedInTheTailNeverGivesAWrongGradient) {
  expect_error_or((x_ * 2).cos().detach() * 2, [](const at::Tensor& x) {
    const at::Tensor h = x * 2;
    const at::Tensor y = h.sin();
    h.zero_();
    return y;
  });
}

TEST_P(CheckpointChangesInside,
       AnInnerRegionsArgumentChangedByTheOuterOneNeverGivesAWrongGradient) {
  expect_error_or((x_ * 2).cos().detach() * 2, [](const at::Tensor& x) {
    const at::Tensor h = x * 2;
    const at::Tensor y = checkpoint([](const at::Tensor& t) { return t.sin(); }, h);
    h.zero_();
    return y;
  });
}

// As in layer streaming: the weights are there only while the layer computes. Exchanging a tensor's
// data leaves its version as it was.
TEST_P(CheckpointChangesInside, AParametersDataMayBeExchangedAroundItsUse) {
  const at::Tensor weights = torch::randn({6});
  const at::Tensor idle = torch::zeros({6});
  at::Tensor w = idle.clone().requires_grad_(true);
  const auto f = [&](const at::Tensor& x, at::Tensor parameter) {
    parameter.set_data(weights);
    const at::Tensor y = x * parameter;
    parameter.set_data(idle);
    return y;
  };
  const auto captured = [&](const at::Tensor& x) { return f(x, w); };
  const CheckpointOptions options = with_early_stop(GetParam());
  EXPECT_TRUE(
      same_bits(gradients_of([&] { return checkpoint(options, captured, x_); }, {x_}), {weights}));
  EXPECT_TRUE(
      same_bits(gradients_of([&] { return checkpoint(options, f, x_, w); }, {x_}), {weights}));
}

// The plain step would leak here: what it saved of `state` leads back to itself.
TEST_P(CheckpointChangesInside, ATensorFromOutsideThatIsSavedAndThenChangedIsFreed) {
  std::unique_ptr<StorageWatch> watch;
  {
    const at::Tensor state = leaf({6}) * 1;
    watch = std::make_unique<StorageWatch>(state);
    const auto f = [&](const at::Tensor& x) {
      const at::Tensor y = x * 2;
      state.add_(state.sin());
      return y.exp();
    };
    checkpoint(with_early_stop(GetParam()), f, x_).sum().backward();
  }
  EXPECT_FALSE(watch->alive());
}

TEST_P(CheckpointChangesInside, AChangeOfATensorThatNobodySavedIsFine) {
  const auto f = [](const at::Tensor& x) { return x.sin().mul_(3).add_(1).exp(); };
  EXPECT_TRUE(
      same_bits(gradients_of([&] { return checkpoint(with_early_stop(GetParam()), f, x_); }, {x_}),
                gradients_of([&] { return f(x_); }, {x_})));
}

TEST_P(CheckpointChangesInside, AResultMayBeChangedByTheCallerWhereThePlainCallAllowsIt) {
  const auto f = [](const at::Tensor& x) { return x.sin() * 2; };
  const auto step = [&](auto&& call) { return call().add_(x_).sin(); };
  EXPECT_TRUE(same_bits(
      gradients_of(
          [&] { return step([&] { return checkpoint(with_early_stop(GetParam()), f, x_); }); },
          {x_}),
      gradients_of([&] { return step([&] { return f(x_); }); }, {x_})));
}

}  // namespace
}  // namespace reprise
