// The check that a recomputation did what forward did: what each mode compares, what the errors
// say, and the operator traces of `debug`.
#include "tests/region/testing.h"

#include <limits>

namespace reprise {
namespace {

using namespace reprise::testing;

at::Tensor saves_three(const at::Tensor& x) { return x.sin().exp().sin(); }
at::Tensor saves_two(const at::Tensor& x) { return x.sin().exp(); }
at::Tensor saves_two_of_other_shape(const at::Tensor& x) {
  return x.sin() * torch::tensor({1.0F, 2.0F});
}

// Runs `first` in forward and `again` in every recomputation.
template <class F, class G>
auto differing(F first, G again) {
  return [=](const at::Tensor& x) { return is_recomputing() ? again(x) : first(x); };
}

template <class F>
std::string determinism_error(const CheckpointOptions& options, F&& f, const at::Tensor& x) {
  return error_of<DeterminismError>([&] { checkpoint(options, f, x).sum().backward(); });
}

const EarlyStop kAllStops[] = {EarlyStop::kNever, EarlyStop::kWhenCheaper, EarlyStop::kAlways};

TEST(CheckpointDeterminism, FewerSavedTensorsAreAnErrorWithBothNumbers) {
  const at::Tensor x = leaf({1});
  for (const EarlyStop stop : kAllStops) {
    const std::string text =
        determinism_error(with_early_stop(stop), differing(saves_three, saves_two), x);
    EXPECT_TRUE(contains(text, "a different number of tensors was saved"));
    EXPECT_TRUE(contains(text, "3 in forward"));
    EXPECT_TRUE(contains(text, "2 during recomputation"));
  }
}

TEST(CheckpointDeterminism, MoreSavedTensorsAreAnErrorOnlyWhereTheFunctionRunsToItsEnd) {
  const at::Tensor x = leaf({1});
  const auto f = differing(saves_two, saves_three);
  const std::string text = determinism_error(with_early_stop(EarlyStop::kNever), f, x);
  EXPECT_TRUE(contains(text, "tried to save more tensors"));
  EXPECT_TRUE(contains(text, "2 in forward"));
  EXPECT_TRUE(contains(text, "3 during recomputation"));
  take_gradients({x});
  for (const EarlyStop stop : {EarlyStop::kWhenCheaper, EarlyStop::kAlways}) {
    EXPECT_TRUE(
        same_bits(gradients_of([&] { return checkpoint(with_early_stop(stop), f, x); }, {x}),
                  gradients_of([&] { return saves_two(x); }, {x})));
  }
}

TEST(CheckpointDeterminism, OtherShapesAreAnErrorWithBothLists) {
  const at::Tensor x = leaf({1});
  CheckpointOptions options;
  options.name = "encoder";
  const std::string text =
      determinism_error(options, differing(saves_two, saves_two_of_other_shape), x);
  EXPECT_TRUE(contains(text, "different metadata"));
  EXPECT_TRUE(contains(text, "saved tensor 1"));
  EXPECT_TRUE(contains(text, "[1]"));
  EXPECT_TRUE(contains(text, "[2]"));
  EXPECT_TRUE(contains(text, "encoder"));
  EXPECT_TRUE(contains(text, "CheckpointDebugScope"));
  EXPECT_FALSE(contains(text, "saved tensor 0"));
}

TEST(CheckpointDeterminism, OtherDtypesAreAnError) {
  const at::Tensor x = leaf({3});
  const std::string text =
      determinism_error({},
                        differing([](const at::Tensor& t) { return t.exp(); },
                                  [](const at::Tensor& t) { return t.to(at::kDouble).exp(); }),
                        x);
  EXPECT_TRUE(contains(text, "different metadata"));
  EXPECT_TRUE(contains(text, "Float"));
  EXPECT_TRUE(contains(text, "Double"));
}

TEST(CheckpointDeterminism, NoneAcceptsOtherMetadata) {
  const at::Tensor x = leaf({1});
  // The factor's extra dimension is summed away by autograd: harmless, but not the same metadata.
  const auto f = differing([](const at::Tensor& t) { return t * torch::ones({1}); },
                           [](const at::Tensor& t) {
                             return t * torch::ones({1, 1});
                           });
  EXPECT_TRUE(contains(determinism_error(with_check(DeterminismCheck::kDefault), f, x),
                       "different metadata"));
  take_gradients({x});
  checkpoint(with_check(DeterminismCheck::kNone), f, x).sum().backward();
  EXPECT_TRUE(same_bits(take_gradients({x}), {torch::ones({1})}));
}

TEST(CheckpointDeterminism, ValuesFindsWhatTheDefaultCannotSee) {
  const at::Tensor x = leaf({2, 3});
  const auto drifting = [](double factor) {
    return [factor](const at::Tensor& t) { return (t.sin() * factor).exp(); };
  };
  const auto f = differing(drifting(1.0), drifting(1.5));
  const Tensors right = gradients_of([&] { return drifting(1.0)(x); }, {x});
  // The default accepts it, and the gradient is wrong: what torch.utils.checkpoint does.
  EXPECT_FALSE(same_bits(gradients_of([&] { return checkpoint(f, x); }, {x}), right));
  CheckpointOptions options = with_check(DeterminismCheck::kValues);
  options.name = "decoder";
  const std::string text = determinism_error(options, f, x);
  EXPECT_TRUE(contains(text, "decoder"));
  EXPECT_TRUE(contains(text, "exp"));
  EXPECT_TRUE(contains(text, "[2, 3]"));
  EXPECT_TRUE(contains(text, "values differ"));
  EXPECT_TRUE(contains(text, "saved tensor "));
  EXPECT_FALSE(contains(text, "saved tensor 0"))
      << "sin saves the input, which is the same in both runs";
}

TEST(CheckpointDeterminism, ValuesNamesTheFirstTensorThatDiffers) {
  const at::Tensor x = leaf({7});
  const auto chain = [](double factor) {
    return [factor](const at::Tensor& t) { return (t.exp().sigmoid().add(factor)).tanh().exp(); };
  };
  const std::string text = determinism_error(with_check(DeterminismCheck::kValues),
                                             differing(chain(0.0), chain(0.25)), x);
  EXPECT_TRUE(contains(text, "saved tensor 2"));  // after the results of exp and sigmoid
  EXPECT_TRUE(contains(text, "tanh"));
}

TEST(CheckpointDeterminism, ValuesAcceptsEverythingThatIsBitwiseTheSame) {
  const auto accepts = [](auto&& f, const at::Tensor& x) {
    EXPECT_TRUE(same_bits(
        gradients_of([&] { return checkpoint(with_check(DeterminismCheck::kValues), f, x); }, {x}),
        gradients_of([&] { return f(x); }, {x})));
  };
  const at::Tensor x = leaf({4, 6});
  accepts([](const at::Tensor& t) { return torch::dropout(t, 0.5, true).exp(); }, x);
  accepts([](const at::Tensor& t) { return t.t().exp().select(0, 1).sin(); }, x);
  accepts([](const at::Tensor& t) { return t.to(at::kBFloat16).exp().to(at::kFloat); }, x);
  accepts([](const at::Tensor& t) { return t.narrow(0, 0, 0).exp(); }, x);
  // Saves a workspace that oneDNN fills in part.
  const torch::nn::LSTM lstm(torch::nn::LSTMOptions(6, 6).num_layers(2));
  accepts([&](const at::Tensor& t) { return std::get<0>(torch::nn::LSTM(lstm)(t.unsqueeze(1))); },
          x);
  accepts(
      [](const at::Tensor& t) {
        return (t / 0.0).exp() * t.unsqueeze(0).expand({3, 4, 6}).sin();
      },
      x);
  accepts([](const at::Tensor& t) { return std::get<0>(t.max(1)).exp(); }, x);
}

TEST(CheckpointDeterminism, ValuesTellsZeroFromMinusZero) {
  const at::Tensor x = leaf({3});
  const auto times = [](double zero) {
    return [zero](const at::Tensor& t) { return t * torch::full({3}, zero); };
  };
  EXPECT_TRUE(contains(determinism_error(with_check(DeterminismCheck::kValues),
                                         differing(times(0.0), times(-0.0)), x),
                       "mul"));
}

TEST(CheckpointDeterminism, AReentrantRegionComparesItsResults) {
  const at::Tensor x = leaf({2});
  CheckpointOptions options = reentrant();
  const auto longer = [](const at::Tensor& t) { return torch::cat({t, t}); };
  std::string text = determinism_error(options, differing(saves_two, longer), x);
  EXPECT_TRUE(contains(text, "[2]"));
  EXPECT_TRUE(contains(text, "[4]"));

  const auto drift = differing([](const at::Tensor& t) { return t.exp(); },
                               [](const at::Tensor& t) { return (t * 2).exp(); });
  take_gradients({x});
  checkpoint(options, drift, x).sum().backward();  // not seen by the default
  options.determinism_check = DeterminismCheck::kValues;
  text = determinism_error(options, drift, x);
  EXPECT_TRUE(contains(text, "[2]"));
  take_gradients({x});
  EXPECT_TRUE(same_bits(gradients_of([&] { return checkpoint(options, saves_three, x); }, {x}),
                        gradients_of([&] { return saves_three(x); }, {x})));
}

TEST(CheckpointDeterminism, AnotherNumberOfReentrantResultsIsAnError) {
  const at::Tensor x = leaf({2});
  const auto f = [](const at::Tensor& t) {
    return is_recomputing() ? Tensors{t.exp()} : Tensors{t.exp(), t.sin()};
  };
  const std::string text =
      error_of<DeterminismError>([&] { checkpoint(reentrant(), f, x)[0].sum().backward(); });
  EXPECT_TRUE(contains(text, "2"));
  EXPECT_TRUE(contains(text, "1"));
}

TEST(CheckpointDeterminism, DebugShowsTheOperatorsOfBothRuns) {
  const at::Tensor x = leaf({1});
  CheckpointOptions options;
  options.debug = true;
  const std::string text =
      determinism_error(options, differing(saves_two, saves_two_of_other_shape), x);
  EXPECT_TRUE(contains(text, "different metadata"));
  const auto forward = text.find("Operators that ran in forward:");
  const auto recompute = text.find("Operators that ran during recomputation:");
  ASSERT_NE(forward, std::string::npos);
  ASSERT_NE(recompute, std::string::npos);
  ASSERT_LT(forward, recompute);
  const std::string first = text.substr(forward, recompute - forward),
                    second = text.substr(recompute);
  EXPECT_TRUE(contains(first, "sin"));
  EXPECT_TRUE(contains(first, "exp"));
  EXPECT_FALSE(contains(first, "mul"));
  EXPECT_TRUE(contains(second, "sin"));
  EXPECT_TRUE(contains(second, "mul"));
  EXPECT_FALSE(contains(second, "exp"));
}

TEST(CheckpointDeterminism, TheDebugScopeOverridesTheOptionWhereForwardRuns) {
  const at::Tensor x = leaf({1});
  const char* const trace = "Operators that ran in forward:";
  const auto text_under = [&](std::optional<bool> scope, bool option) {
    CheckpointOptions options;
    options.debug = option;
    at::Tensor y;
    {
      const CheckpointDebugScope outer(!scope.value_or(false));
      const CheckpointDebugScope inner(scope);
      y = checkpoint(options, differing(saves_two, saves_two_of_other_shape), x);
    }
    const CheckpointDebugScope in_backward(true);  // of no effect
    return error_of<DeterminismError>([&] { y.sum().backward(); });
  };
  EXPECT_TRUE(contains(text_under(true, false), trace));
  EXPECT_TRUE(contains(text_under(true, true), trace));
  EXPECT_TRUE(contains(text_under(std::nullopt, true), trace));
  EXPECT_FALSE(contains(text_under(false, true), trace));
  EXPECT_FALSE(contains(text_under(std::nullopt, false), trace));
}

TEST(CheckpointDeterminism, AfterAnErrorTheSameGraphCanBeTriedAgain) {
  const at::Tensor x = leaf({1});
  bool differ = true;
  const at::Tensor loss = checkpoint(
                              [&](const at::Tensor& t) {
                                return is_recomputing() && differ ? saves_two(t) : saves_three(t);
                              },
                              x)
                              .sum();
  error_of<DeterminismError>([&] { loss.backward({}, /*retain_graph=*/true); });
  EXPECT_FALSE(is_recomputing());
  differ = false;
  loss.backward();
  const Tensors actual = take_gradients({x});
  EXPECT_TRUE(same_bits(actual, gradients_of([&] { return saves_three(x); }, {x})));
}

TEST(CheckpointDeterminism, ARegionWithADifferingRecomputationLeaksNothing) {
  const at::Tensor x = leaf({1});
  std::weak_ptr<int> alive;
  GraphWatch graph;
  {
    auto token = std::make_shared<int>();
    alive = token;
    const auto f = differing(saves_three, saves_two);
    const at::Tensor y =
        checkpoint([f, token = std::move(token)](const at::Tensor& t) { return f(t); }, x);
    graph.add(y);
    error_of<DeterminismError>([&] { y.sum().backward(); });
  }
  EXPECT_TRUE(alive.expired());
  EXPECT_EQ(graph.seen(), 3u);
  EXPECT_EQ(graph.alive(), std::vector<std::string>{});
}

}  // namespace
}  // namespace reprise
