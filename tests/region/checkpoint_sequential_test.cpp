// checkpoint_sequential(): where it cuts, what runs again, and what it refuses.
#include <reprise/sequential.h>

#include "tests/region/testing.h"

namespace reprise {
namespace {

using namespace reprise::testing;
using torch::nn::AnyModule;
using torch::nn::Linear;
using torch::nn::ReLU;
using torch::nn::Sequential;

struct CountingImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    ++runs;
    return x * factor;  // saves the factor, so that backward has a reason to recompute
  }
  int runs = 0;
  at::Tensor factor = torch::tensor(2.0F);
};
TORCH_MODULE(Counting);

std::vector<int> runs_of(const std::vector<Counting>& modules) {
  std::vector<int> runs;
  for (const Counting& module : modules) runs.push_back(module->runs);
  return runs;
}

class CheckpointSequential : public ::testing::TestWithParam<Variant> {
 protected:
  void SetUp() override { torch::manual_seed(12); }
  CheckpointOptions options_ = options_of(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Variants, CheckpointSequential,
                         ::testing::Values(Variant::kNonReentrant, Variant::kReentrant),
                         variant_name);

TEST_P(CheckpointSequential, AllSegmentsButTheLastRunAgainInBackward) {
  const at::Tensor x = leaf({3, 4});
  const auto runs_with = [&](std::int64_t segments, EarlyStop stop) {
    std::vector<Counting> modules(10);
    for (Counting& module : modules) module = Counting();
    if (!options_.reentrant) options_.early_stop = stop;
    const at::Tensor y = checkpoint_sequential(modules, segments, x, options_);
    EXPECT_EQ(runs_of(modules), std::vector<int>(10, 1));
    y.sum().backward();
    return runs_of(modules);
  };
  const auto first = [](int again) {
    std::vector<int> runs(10, 1);
    std::fill_n(runs.begin(), again, 2);
    return runs;
  };
  for (const EarlyStop stop : {EarlyStop::kNever, EarlyStop::kWhenCheaper, EarlyStop::kAlways}) {
    EXPECT_EQ(runs_with(2, stop), first(5));
    EXPECT_EQ(runs_with(3, stop), first(6));  // 3, 3 and the last 4
    EXPECT_EQ(runs_with(10, stop), first(9));
    EXPECT_EQ(runs_with(1, stop), first(0));
  }
}

TEST_P(CheckpointSequential, ResultsAndGradientsAreThoseOfTheModel) {
  Sequential model(Linear(100, 50), ReLU(), Linear(50, 20), ReLU(), Linear(20, 5), ReLU());
  std::vector<AnyModule> list(model->begin(), model->end());
  std::vector<TensorFunction> functions;
  for (AnyModule& module : list) {
    functions.push_back([module](const at::Tensor& t) mutable { return module.forward(t); });
  }
  const at::Tensor x = leaf({1, 100});
  Tensors leaves = model->parameters();
  leaves.push_back(x);
  const Tensors expected = gradients_of([&] { return model->forward(x); }, leaves);
  const at::Tensor y = model->forward(x);
  for (std::int64_t segments = 1; segments <= 6; ++segments) {
    EXPECT_TRUE(same_bits(checkpoint_sequential(model, segments, x, options_), y));
    EXPECT_TRUE(same_bits(
        gradients_of([&] { return checkpoint_sequential(model, segments, x, options_); }, leaves),
        expected));
    EXPECT_TRUE(same_bits(
        gradients_of([&] { return checkpoint_sequential(list, segments, x, options_); }, leaves),
        expected));
    EXPECT_TRUE(same_bits(
        gradients_of([&] { return checkpoint_sequential(functions, segments, x, options_); },
                     leaves),
        expected));
  }
}

TEST_P(CheckpointSequential, AModuleListsModulesCanBeGiven) {
  torch::nn::ModuleList modules(Linear(10, 8), Linear(8, 6), Linear(6, 4), Linear(4, 2));
  std::vector<Linear> list;
  for (const auto& module : *modules)
    list.emplace_back(std::dynamic_pointer_cast<torch::nn::LinearImpl>(module));
  const at::Tensor x = leaf({3, 10});
  Tensors leaves = modules->parameters();
  leaves.push_back(x);
  const auto plain = [&] {
    at::Tensor t = x;
    for (Linear& linear : list) t = linear->forward(t);
    return t;
  };
  EXPECT_TRUE(
      same_bits(gradients_of([&] { return checkpoint_sequential(list, 2, x, options_); }, leaves),
                gradients_of(plain, leaves)));
}

TEST_P(CheckpointSequential, TheGraphMayOutliveTheListOfFunctions) {
  const at::Tensor x = leaf({5});
  at::Tensor y;
  {
    std::vector<TensorFunction> functions(4, [](const at::Tensor& t) { return t.sin().exp(); });
    y = checkpoint_sequential(functions, 4, x, options_);
    functions.assign(4,
                     [](const at::Tensor&) -> at::Tensor { throw std::logic_error("replaced"); });
  }
  y.sum().backward();
  const Tensors actual = take_gradients({x});
  EXPECT_TRUE(same_bits(
      actual,
      gradients_of([&] { return x.sin().exp().sin().exp().sin().exp().sin().exp(); }, {x})));
}

TEST_P(CheckpointSequential, ImpossibleNumbersOfSegmentsAreRefusedWithBothNumbers) {
  std::vector<Counting> modules(3);
  for (Counting& module : modules) module = Counting();
  const at::Tensor x = leaf({2});
  const auto refused = [&](std::int64_t segments) {
    return error_of<UsageError>([&] { checkpoint_sequential(modules, segments, x, options_); });
  };
  for (const std::int64_t segments :
       {std::int64_t{4}, std::int64_t{0}, std::int64_t{-2}, INT64_MAX, INT64_MIN}) {
    const std::string text = refused(segments);
    EXPECT_TRUE(contains(text, "segments is " + std::to_string(segments)));
    EXPECT_TRUE(contains(text, "between 1 and"));
    EXPECT_TRUE(contains(text, "3"));
  }
  EXPECT_EQ(runs_of(modules), std::vector<int>(3, 0));
}

TEST_P(CheckpointSequential, AnEmptyListIsRefused) {
  const at::Tensor x = leaf({2});
  EXPECT_TRUE(contains(
      error_of<UsageError>([&] { checkpoint_sequential(Sequential(), 1, x, options_); }), "empty"));
  EXPECT_TRUE(contains(error_of<UsageError>([&] {
                         checkpoint_sequential(std::vector<TensorFunction>(), 0, x, options_);
                       }),
                       "empty"));
}

TEST_P(CheckpointSequential, WithoutGradModeTheModulesAreSimplyCalled) {
  Sequential model(Linear(4, 4), ReLU(), Linear(4, 4));
  const at::Tensor x = leaf({2, 4});
  const torch::NoGradGuard no_grad;
  const at::Tensor y = checkpoint_sequential(model, 2, x, options_);
  EXPECT_FALSE(y.requires_grad());
  EXPECT_TRUE(same_bits(y, model->forward(x)));
}

TEST(CheckpointSequentialVariants, GradWorksWithOneVariantAndIsRefusedByTheOther) {
  Sequential model(Linear(100, 50), ReLU(), Linear(50, 20), ReLU(), Linear(20, 5), ReLU());
  const at::Tensor x = leaf({1, 100});
  const auto grad = [&](const at::Tensor& y) {
    return torch::autograd::grad({y}, {x}, {torch::ones({1, 5})}, std::nullopt,
                                 /*create_graph=*/true);
  };
  EXPECT_TRUE(contains(
      error_of<DeterminismError>([&] { grad(checkpoint_sequential(model, 2, x, reentrant())); }),
      "incompatible"));
  EXPECT_TRUE(same_bits(grad(checkpoint_sequential(model, 2, x)), grad(model->forward(x))));
}

// One tensor goes in; nothing else compiles.
template <class... Args>
concept Accepted = requires(Args&&... args) { checkpoint_sequential(args...); };
static_assert(Accepted<Sequential, int, at::Tensor>);
static_assert(!Accepted<Sequential, int>);
static_assert(!Accepted<Sequential, int, at::Tensor, at::Tensor>);

TEST(CheckpointSequential, LayersMayTakeAndReturnSeveralTensors) {
  using Pair = std::tuple<at::Tensor, at::Tensor>;
  using List = std::vector<at::Tensor>;
  const at::Tensor x = leaf({4, 4}), z = leaf({4, 4});
  int runs = 0;
  std::vector<std::function<Pair(const Pair&)>> pairs;
  std::vector<std::function<List(const List&)>> lists;
  for (int i = 0; i < 6; ++i) {
    pairs.emplace_back([&runs](const Pair& t) {
      ++runs;
      return Pair(std::get<0>(t).sin() * std::get<1>(t), std::get<1>(t).cos());
    });
    lists.emplace_back([&runs](const List& t) {
      ++runs;
      // One more each time.
      List result{t.front().sin() * t.back()};
      result.insert(result.end(), t.begin(), t.end());
      return result;
    });
  }
  const auto sum_of = [](auto values) {
    at::Tensor sum = at::zeros({});
    visit_tensors(values, [&](const at::Tensor& tensor) { sum = sum + tensor.sum(); });
    return sum;
  };
  const auto compare = [&](const auto& functions, const auto& input) {
    const auto plain = gradients_of(
        [&] {
          auto values = input;
          for (const auto& function : functions) values = function(values);
          return sum_of(values);
        },
        {x, z});
    for (const bool reentrant : {false, true}) {
      runs = 0;
      const auto found = gradients_of(
          [&] {
            return sum_of(checkpoint_sequential(functions, 3, input, {.reentrant = reentrant}));
          },
          {x, z});
      EXPECT_EQ(runs, 6 + 4) << "all segments but the last run again";
      if (!reentrant) {
        EXPECT_TRUE(same_bits(found, plain));
      }
    }
    EXPECT_THROW(checkpoint_sequential(functions, 7, input), UsageError);
    {
      const at::NoGradGuard evaluation;
      runs = 0;
      checkpoint_sequential(functions, 3, input);
      EXPECT_EQ(runs, 6);
    }
  };
  compare(pairs, Pair(x, z));
  compare(lists, List{x, z});
}

struct SwapImpl : torch::nn::Module {
  using Pair = std::tuple<at::Tensor, at::Tensor>;
  Pair forward(Pair t) {
    checkpointing.push_back(is_checkpointing());
    return {std::get<1>(t).sin(), std::get<0>(t) * std::get<1>(t)};
  }
  std::vector<bool> checkpointing;
};
TORCH_MODULE(Swap);

TEST(CheckpointSequential, ModulesMayTakeAndReturnSeveralTensorsAndMakeNoRegionsInEvaluation) {
  const at::Tensor x = leaf({4, 4}), z = leaf({4, 4});
  Swap a, b, c;
  const auto plain = gradients_of(
      [&] {
        return std::get<1>(c.ptr()->forward(b.ptr()->forward(a.ptr()->forward({x, z}))));
      },
      {x, z});
  const auto in_regions = [&](const auto& model) {
    return gradients_of(
        [&] { return std::get<1>(checkpoint_sequential(model, 3, SwapImpl::Pair(x, z))); }, {x, z});
  };
  EXPECT_TRUE(same_bits(in_regions(torch::nn::Sequential(a, b, c)), plain));
  EXPECT_TRUE(same_bits(in_regions(std::vector<Swap>{a, b, c}), plain));
  a->checkpointing.clear();
  const at::NoGradGuard evaluation;
  checkpoint_sequential(std::vector<Swap>{a, b, c}, 3, SwapImpl::Pair(x, z));
  EXPECT_EQ(a->checkpointing, std::vector<bool>{false});
}

}  // namespace
}  // namespace reprise
