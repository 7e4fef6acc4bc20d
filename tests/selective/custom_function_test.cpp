// Custom autograd functions as units of a policy: reprise::apply.

#include <gmock/gmock.h>
#include <reprise/error.h>
#include <reprise/selective.h>

#include "tests/selective/testing.h"

namespace reprise {
namespace {

using testing::contains;
using testing::error_of;
using testing::gradients_of;
using testing::leaf;
using testing::OperatorCounts;
using testing::same_bits;
using testing::with_policy;
using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

// sin(x) and x², from one function with saved tensors of its own.
struct SineAndSquare : torch::autograd::Function<SineAndSquare> {
  static inline int runs = 0;
  static tensor_list forward(AutogradContext* context, const at::Tensor& x) {
    ++runs;
    context->save_for_backward({x});
    return {x.sin(), x * x};
  }
  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    const at::Tensor x = context->get_saved_variables()[0];
    return {gradients[0] * x.cos() + gradients[1] * 2 * x};
  }
};

struct Scale : torch::autograd::Function<Scale> {
  static inline int runs = 0;
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, double factor) {
    ++runs;
    context->saved_data["factor"] = factor;
    return x * factor;
  }
  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    return {gradients[0] * context->saved_data["factor"].toDouble(), at::Tensor()};
  }
};

at::Tensor with_functions(const at::Tensor& x) {
  const tensor_list parts = reprise::apply<SineAndSquare>(x.exp());
  return reprise::apply<Scale>(parts[0] * parts[1], 3.0).tanh() * parts[1];
}

class CustomFunction : public ::testing::Test {
 protected:
  void SetUp() override {
    plain_ = gradients_of([&] { return with_functions(x_); }, {x_});
    SineAndSquare::runs = 0;
    Scale::runs = 0;
  }
  // Runs of the two functions in a step under the policy, whose gradients must be right.
  std::pair<int, int> runs_under(const OperatorPolicy& policy) {
    EXPECT_TRUE(same_bits(
        gradients_of([&] { return checkpoint(with_policy(policy), with_functions, x_); }, {x_}),
        plain_));
    return {std::exchange(SineAndSquare::runs, 0), std::exchange(Scale::runs, 0)};
  }

  at::Tensor x_ = leaf({3, 4});
  testing::Tensors plain_;
};

TEST_F(CustomFunction, IsKnownByItsWholeNameAndByTheEndOfIt) {
  EXPECT_TRUE(contains(function_name<SineAndSquare>(), "::SineAndSquare"));
  EXPECT_EQ(runs_under({function_name<SineAndSquare>()}), std::pair(1, 2));
  EXPECT_EQ(runs_under({"autograd::SineAndSquare"}), std::pair(1, 2));
  EXPECT_EQ(runs_under({"autograd::Square"}), std::pair(2, 2));
}

TEST_F(CustomFunction, OutsideOfSelectiveRegionsItIsJustCalled) {
  EXPECT_TRUE(
      same_bits(gradients_of([&] { return checkpoint(with_functions, x_); }, {x_}), plain_));
  EXPECT_EQ(SineAndSquare::runs, 2);
}

TEST_F(CustomFunction, IsKeptOrRecomputedAsAWholeAsThePolicySays) {
  EXPECT_EQ(runs_under({"mm"}), std::pair(2, 2));
  EXPECT_EQ(runs_under({"autograd::SineAndSquare"}), std::pair(1, 2));
  EXPECT_EQ(runs_under({"autograd::Scale"}), std::pair(2, 1));
  EXPECT_EQ(runs_under({"autograd::Scale", "autograd::SineAndSquare", "tanh"}), std::pair(1, 1));
  EXPECT_EQ(runs_under([](const SelectiveCheckpointContext& call) {
              return call.is(function_name<Scale>()) ? CheckpointPolicy::kMustSave
                                                     : CheckpointPolicy::kPreferRecompute;
            }),
            std::pair(2, 1));
}

TEST_F(CustomFunction, ThePolicyIsNotAskedAboutItsOperators) {
  std::vector<std::string> asked;
  runs_under([&](const SelectiveCheckpointContext& call) {
    asked.push_back(call.op());
    return CheckpointPolicy::kPreferRecompute;
  });
  EXPECT_THAT(asked,
              ::testing::ElementsAre("aten::exp", function_name<SineAndSquare>(), "aten::mul",
                                     function_name<Scale>(), "aten::tanh", "aten::mul"));
}

TEST_F(CustomFunction, AKeptOneDoesNotRunItsOperatorsAgain) {
  OperatorCounts counts;
  runs_under({"autograd::SineAndSquare"});
  EXPECT_EQ(counts["sin"], 1);
}

TEST_F(CustomFunction, NestedRegionsWithAndWithoutPoliciesGivePlainGradients) {
  const auto inner = with_policy({"autograd::SineAndSquare"});
  const auto f = [&](const at::Tensor& x) {
    return reprise::apply<Scale>(checkpoint(inner, with_functions, x), 0.5);
  };
  const auto plain =
      gradients_of([&] { return reprise::apply<Scale>(with_functions(x_), 0.5); }, {x_});
  for (const auto& outer : {CheckpointOptions(), inner, with_policy({"autograd::Scale", "exp"})}) {
    EXPECT_TRUE(same_bits(gradients_of([&] { return checkpoint(outer, f, x_); }, {x_}), plain));
  }
}

TEST_F(CustomFunction, OffloadingItIsRefusedOrBecomesKeeping) {
  const auto answer = [](CheckpointPolicy policy) {
    return OperatorPolicy([policy](const SelectiveCheckpointContext& call) {
      return call.is("autograd::Scale") ? policy : CheckpointPolicy::kPreferRecompute;
    });
  };
  EXPECT_EQ(runs_under(answer(CheckpointPolicy::kPreferCpuOffload)), std::pair(2, 1));
  EXPECT_TRUE(contains(error_of<UsageError>([&] {
                         checkpoint(with_policy(answer(CheckpointPolicy::kMustCpuOffload)),
                                    with_functions, x_);
                       }),
                       "::Scale, a custom autograd function"));
}

TEST_F(CustomFunction, ABackwardThroughAKeptOneInsideTheRegionIsAnError) {
  const auto f = [](const at::Tensor& x) {
    const at::Tensor scaled = reprise::apply<Scale>(x.exp(), 2.0);
    scaled.sum().backward({}, /*retain_graph=*/true);
    return scaled.sin();
  };
  const at::Tensor y = checkpoint(with_policy({"autograd::Scale"}, {.reuse = true}), f, x_).sum();
  EXPECT_TRUE(contains(error_of<DeterminismError>([&] { y.backward(); }),
                       "runs backward through a custom autograd function that its policy keeps"));
}

TEST_F(CustomFunction, ItsErrorPassesThroughAndTheNextStepWorks) {
  struct Failing : torch::autograd::Function<Failing> {
    static at::Tensor forward(AutogradContext*, const at::Tensor&) {
      throw std::runtime_error("no");
    }
    static tensor_list backward(AutogradContext*, tensor_list) { return {}; }
  };
  const auto f = [](const at::Tensor& x) { return reprise::apply<Failing>(x.exp()); };
  const Bytes before = live_bytes();
  EXPECT_THROW(checkpoint(with_policy({function_name<Failing>()}), f, x_), std::runtime_error);
  EXPECT_THROW(checkpoint(with_policy({"exp"}), f, x_), std::runtime_error);
  EXPECT_EQ(live_bytes(), before);
  EXPECT_EQ(runs_under({"autograd::Scale"}), std::pair(2, 1));
}

}  // namespace
}  // namespace reprise
