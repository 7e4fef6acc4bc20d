// Tests of checkpointed(): options and a function are given ahead, and the calls come later.
#include "tests/region/testing.h"

#include <reprise/selective.h>
#include <reprise/sequential.h>
#include <torch/script.h>

#include <functional>
#include <type_traits>

namespace reprise {
namespace {

using namespace reprise::testing;
using at::Tensor;

class CheckpointedP : public ::testing::TestWithParam<Variant> {
 protected:
  void SetUp() override { torch::manual_seed(4); }

  // Two calls of one callable: their gradients equal those of the plain calls.
  template <class F, class... Args>
  ::testing::AssertionResult same_as_plain(F&& f, const Tensors& leaves, const Args&... args) {
    const Tensors expected = gradients_of(
        [&] { return detail::call_plain(f, args...) * detail::call_plain(f, args...); }, leaves);
    const auto region = checkpointed(options_, f);
    return same_bits(gradients_of([&] { return region(args...) * region(args...); }, leaves),
                     expected);
  }

  const CheckpointOptions options_ = options_of(GetParam());
  const Tensor x_ = leaf({4, 4}), y_ = leaf({4, 4});
};
INSTANTIATE_TEST_SUITE_P(Variants, CheckpointedP,
                         ::testing::Values(Variant::kNonReentrant, Variant::kReentrant),
                         variant_name);

Tensor product_of(const Tensor& a, const Tensor& b) { return (a.exp() * b).sin(); }

TEST_P(CheckpointedP, EachCallIsARegionOfItsOwn) {
  int runs = 0;
  const auto region =
      checkpointed(options_, counted(runs, [](const Tensor& t) { return t.exp().sin(); }));
  const Tensor first = region(x_), second = region(y_);
  EXPECT_EQ(runs, 2);
  first.sum().backward();
  EXPECT_EQ(runs, 3);
  EXPECT_FALSE(y_.grad().defined());
  second.sum().backward();
  EXPECT_EQ(runs, 4);
  const Tensors actual = take_gradients({x_});
  EXPECT_TRUE(same_bits(actual, gradients_of([&] { return x_.exp().sin(); }, {x_})));
}

TEST_P(CheckpointedP, FunctionsOfEveryKindGivePlainGradients) {
  EXPECT_TRUE(same_as_plain(product_of, {x_, y_}, x_, y_));
  EXPECT_TRUE(same_as_plain(&product_of, {x_, y_}, x_, y_));
  EXPECT_TRUE(same_as_plain([](const Tensor& t) { return dropout(t.exp()); }, {x_}, x_));
  EXPECT_TRUE(same_as_plain(std::function<Tensor(const Tensor&, const Tensor&)>(product_of),
                            {x_, y_}, x_, y_));
  struct Layer {
    Tensor weight;
    Tensor apply(const Tensor& t) const { return t.mm(weight).tanh(); }
  };
  const Layer layer{y_};
  const auto region = checkpointed(options_, &Layer::apply);
  EXPECT_TRUE(same_bits(gradients_of([&] { return region(std::cref(layer), x_); }, {x_, y_}),
                        gradients_of([&] { return layer.apply(x_); }, {x_, y_})));
}

TEST_P(CheckpointedP, ModulesOfEveryKindGivePlainGradients) {
  torch::nn::Linear linear(4, 4);
  const Tensors leaves{x_, linear->weight, linear->bias};
  EXPECT_TRUE(same_as_plain(linear, leaves, x_));
  EXPECT_TRUE(same_as_plain(*linear, leaves, x_));
  EXPECT_TRUE(same_as_plain(linear.ptr(), leaves, x_));
  EXPECT_TRUE(same_as_plain(torch::nn::AnyModule(linear), leaves, x_));
  EXPECT_TRUE(
      same_as_plain(torch::nn::Sequential(linear, torch::nn::Functional(torch::tanh)), leaves, x_));
  // An object is referred to: what becomes of its parameters is seen.
  const auto region = checkpointed(options_, *linear);
  {
    const torch::NoGradGuard no_grad;
    linear->weight.mul_(2);
  }
  EXPECT_TRUE(same_bits(gradients_of([&] { return region(x_); }, leaves),
                        gradients_of([&] { return linear->forward(x_); }, leaves)));
}

TEST_P(CheckpointedP, AScriptedModuleGivesPlainGradients) {
  torch::jit::Module module("layer");
  module.define("def forward(self, x):\n    return torch.sin(torch.exp(x))\n");
  const auto region = checkpointed(options_, module);
  EXPECT_TRUE(same_bits(gradients_of([&] { return region(x_).toTensor(); }, {x_}),
                        gradients_of([&] { return x_.exp().sin(); }, {x_})));
}

TEST_P(CheckpointedP, CopiesAndRegionsShareTheFunctionAndKeepItAlive) {
  struct Once {
    std::unique_ptr<int> calls = std::make_unique<int>(0);
    std::shared_ptr<int> alive;
    Tensor operator()(const Tensor& t) {
      ++*calls;
      return t.exp().sin() * *calls;
    }
  };
  const auto alive = std::make_shared<int>();
  const std::weak_ptr<int> watch = alive;
  Tensor y;
  {
    std::optional region = checkpointed(options_, Once{.alive = alive});
    static_assert(std::is_copy_constructible_v<decltype(region)::value_type>);
    auto copy = *region;
    const auto moved = std::move(*region);
    EXPECT_TRUE(same_bits(moved(x_).detach(), x_.exp().sin().detach()));
    EXPECT_TRUE(same_bits(copy(x_).detach(), (x_.exp().sin() * 2).detach()));
    region.reset();
    y = copy(x_).sum();
  }
  EXPECT_EQ(alive.use_count(), 2);
  y.backward();
  EXPECT_TRUE(x_.grad().defined());
  y.reset();
  EXPECT_EQ(alive.use_count(), 1);
}

TEST_P(CheckpointedP, ArgumentsAreForwardedAsByCheckpoint) {
  int seen = 0;
  const auto f = [](const std::unique_ptr<int>& scale, int& count, std::string_view name,
                    const std::vector<Tensor>& tensors) {
    ++count;
    return std::pair(tensors[0].exp() * tensors[1] * *scale, std::string(name));
  };
  const auto region = checkpointed(options_, f);
  const auto [y, name] =
      region(std::make_unique<int>(3), std::ref(seen), std::string_view("seven"), Tensors{x_, y_});
  EXPECT_EQ(name, "seven");
  y.sum().backward();
  EXPECT_EQ(seen, 2);
  const Tensors actual = take_gradients({x_, y_});
  EXPECT_TRUE(same_bits(actual, gradients_of([&] { return x_.exp() * y_ * 3; }, {x_, y_})));
}

TEST_P(CheckpointedP, ServesWhereAFunctionObjectIsWanted) {
  const auto f = [](const Tensor& t) { return t.exp().sin(); };
  const std::function<Tensor(Tensor)> layer = checkpointed(options_, f);
  EXPECT_TRUE(same_bits(gradients_of([&] { return layer(layer(x_)); }, {x_}),
                        gradients_of([&] { return f(f(x_)); }, {x_})));
  const std::vector<TensorFunction> layers(4, layer);
  EXPECT_TRUE(same_bits(gradients_of([&] { return checkpoint_sequential(layers, 2, x_); }, {x_}),
                        gradients_of([&] { return f(f(f(f(x_)))); }, {x_})));
  const auto nested = checkpointed(options_, checkpointed(options_, f));
  EXPECT_TRUE(same_bits(gradients_of([&] { return nested(x_); }, {x_}),
                        gradients_of([&] { return f(x_); }, {x_})));
}

TEST_P(CheckpointedP, WithoutGradModeTheFunctionIsJustCalled) {
  int runs = 0;
  const auto region =
      checkpointed(options_, counted(runs, [](const Tensor& t) { return t.exp(); }));
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(region(x_).requires_grad());
  EXPECT_EQ(runs, 1);
}

TEST_P(CheckpointedP, ThreadsMayCallAtOnce) {
  const auto region = checkpointed(options_, [](const Tensor& t) { return t.exp().sin(); });
  const Tensor expected = gradients_of([&] { return x_.exp().sin(); }, {x_})[0];
  on_threads(4, [&](int) {
    const Tensor x = x_.detach().clone().requires_grad_(true);
    for (int run = 0; run < 10; ++run) {
      EXPECT_TRUE(same_bits(gradients_of([&] { return region(x); }, {x})[0], expected));
    }
  });
}

TEST(Checkpointed, HoldsWithEveryOption) {
  const Tensor x = leaf({4, 4}), w = leaf({4, 4});
  const auto f = [&](const Tensor& t) { return dropout(t.mm(w).tanh()).exp(); };
  const Tensors plain = gradients_of([&] { return f(f(x)); }, {x, w});
  std::vector<CheckpointOptions> all(10);
  all[0].early_stop = EarlyStop::kNever;
  all[1].early_stop = EarlyStop::kAlways;
  all[2].context = selective(save_matmuls());
  all[3].name = "a block";
  all[4].generators = {at::globalContext().defaultGenerator(at::kCPU)};
  all[5].preserve_state = false;
  all[6].preserve_ambient_state = false;
  all[7].determinism_check = DeterminismCheck::kValues;
  all[8].debug = true;
  all[9].skip_zero_gradients = all[9].allow_changed_arguments = true;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto region = checkpointed(all[i], f);
    EXPECT_TRUE(same_bits(gradients_of([&] { return region(region(x)); }, {x, w}), plain)) << i;
  }
}

TEST(Checkpointed, DefaultOptionsNeedNotBeGiven) {
  int runs = 0;
  const Tensor x = leaf();
  const auto region = checkpointed(counted(runs, [](const Tensor& t) { return t.exp().sin(); }));
  region(x).sum().backward();
  EXPECT_EQ(runs, 2);
}

TEST(Checkpointed, MakesNewContextsForEachCall) {
  int made = 0;
  CheckpointOptions options;
  options.context = [&] {
    ++made;
    return RegionContexts{};
  };
  const auto region = checkpointed(options, [](const Tensor& t) { return t.exp(); });
  EXPECT_EQ(made, 0);
  const Tensor x = leaf();
  region(region(x)).sum().backward();
  EXPECT_EQ(made, 2);
}

TEST(Checkpointed, ScopesAroundTheCallOverrideTheOptions) {
  int runs_to_the_end = 0;
  const auto region = checkpointed({.early_stop = EarlyStop::kAlways}, [&](const Tensor& t) {
    const Tensor y = t.exp();
    const Tensor last = y + 1;
    ++runs_to_the_end;
    return last;
  });
  const Tensor x = leaf();
  region(x).sum().backward();
  EXPECT_EQ(runs_to_the_end, 1);
  const EarlyStopScope scope(EarlyStop::kNever);
  region(x).sum().backward();
  EXPECT_EQ(runs_to_the_end, 3);
}

TEST(Checkpointed, OptionsThatExcludeEachOtherAreRefusedAtOnce) {
  CheckpointOptions options = reentrant();
  options.debug = true;
  EXPECT_TRUE(contains(
      error_of<UsageError>([&] { checkpointed(options, [](const Tensor& t) { return t; }); }),
      "debug=true is only supported with reentrant=false"));
}

TEST(Checkpointed, AnErrorOfTheFunctionPassesThroughAndTheNextCallWorks) {
  bool fails = true;
  const auto region = checkpointed([&](const Tensor& t) {
    const Tensor y = t.exp();
    if (fails) throw std::runtime_error("no");
    return y.sin();
  });
  const Tensor x = leaf();
  const Bytes before = live_bytes();
  EXPECT_THROW(region(x), std::runtime_error);
  EXPECT_EQ(live_bytes(), before);
  fails = false;
  EXPECT_TRUE(same_bits(gradients_of([&] { return region(x); }, {x}),
                        gradients_of([&] { return x.exp().sin(); }, {x})));
}

}  // namespace
}  // namespace reprise
