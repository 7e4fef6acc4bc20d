// An estimate and what is around it see nothing of each other: regions, hooks, budgets, generators
// and other estimates.
#include <gmock/gmock.h>
#include <reprise/budget.h>
#include <reprise/checkpoint.h>
#include <reprise/estimate.h>
#include <reprise/saved_tensor_hooks.h>
#include <reprise/selective.h>
#include <torch/torch.h>

#include <functional>
#include <vector>

#include "libtorch/operators/operator_interceptor.h"
#include "tests/refusal.h"

namespace reprise {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using ::testing::HasSubstr;

class ApartStep : public ::testing::Test {
 protected:
  at::Tensor loss() { return layer_(x_).tanh().square().sum(); }
  Estimate estimate() {
    return estimate_step(*layer_, [this] { return loss(); });
  }
  void expect_as_alone(const Estimate& found) {
    const Estimate alone = estimate();
    EXPECT_EQ(found.peak, alone.peak);
    EXPECT_EQ(found.inputs, alone.inputs);
    EXPECT_EQ(found.activations, alone.activations);
    EXPECT_EQ(found.operators, alone.operators);
    ASSERT_EQ(found.kept.size(), alone.kept.size());
    for (std::size_t i = 0; i < alone.kept.size(); ++i) {
      EXPECT_EQ(found.kept[i].kind, alone.kept[i].kind);
    }
  }

  nn::Linear layer_{64, 64};
  at::Tensor x_ = at::rand({32, 64});
};

// In each run of the region's function, or in its first alone.
TEST_F(ApartStep, InARegionsFunction) {
  for (const bool reentrant : {false, true}) {
    for (const int times : {1, 100}) {
      SCOPED_TRACE(c10::str(reentrant ? "reentrant, " : "", times));
      std::vector<Estimate> found;
      const auto gradient = [&](bool estimates) {
        layer_->zero_grad();
        int runs = 0;
        const auto function = [&](const at::Tensor& x) {
          if (estimates && runs++ < times) found.push_back(estimate());
          return layer_(x).tanh();
        };
        checkpoint({.reentrant = reentrant}, function, layer_(x_)).square().sum().backward();
        return layer_->weight.grad().clone();
      };
      const at::Tensor plain = gradient(false), beside = gradient(true);
      EXPECT_TRUE(at::equal(plain, beside));
      ASSERT_EQ(found.size(), times == 1 ? 1U : 2U);
      layer_->zero_grad();
      for (const Estimate& each : found) expect_as_alone(each);
    }
  }
}

TEST_F(ApartStep, UnderHooksAndNames) {
  int packed = 0;
  const auto pack = [&packed](const at::Tensor& tensor) {
    ++packed;
    return tensor;
  };
  {
    const SavedTensorHooksScope hooks(pack, [](const at::Tensor& tensor) { return tensor; });
    const NamedScope name("around");
    expect_as_alone(estimate());
  }
  EXPECT_EQ(packed, 0);
}

TEST_F(ApartStep, UnderABudget) {
  if (libtorch::operator_interceptor_variant() != "fake") {
    GTEST_SKIP() << "a byte budget refuses to run where operators are intercepted above autograd";
  }
  MemoryBudget budget(MB(100));
  auto step = budget.step();
  auto y = layer_(x_).tanh();
  const Estimate found = estimate();
  y.sum().backward();
  step.finish();
  layer_->zero_grad();
  expect_as_alone(found);
}

TEST_F(ApartStep, RefusesAnEstimateInsideOfAnother) {
  nn::Linear other(8, 8);
  const auto inner = [&] { return other(at::rand({2, 8})).sum(); };
  EXPECT_THAT(refusal_of([&] {
                estimate_step(*layer_, [&] {
                  estimate_step(*other, inner);
                  return loss();
                });
              }),
              AllOf(HasSubstr("estimate_step()"), HasSubstr("inside of an estimate's function"),
                    HasSubstr("call it outside")));
  const MetaTensorsScope meta;
  EXPECT_THAT(refusal_of([&] { estimate(); }), HasSubstr("or of MetaTensorsScope"));
  EXPECT_THAT(refusal_of([] { calibrate(std::chrono::milliseconds(1)); }),
              AllOf(HasSubstr("calibrate()"), HasSubstr("or of MetaTensorsScope")));
}

TEST_F(ApartStep, PutsGeneratorsBack) {
  for (const std::uint64_t seed : {7U, 99U}) {
    torch::manual_seed(7);
    const at::Tensor drawn = at::rand({8});
    torch::manual_seed(7);
    estimate_step(*layer_, [&] {
      torch::manual_seed(seed);
      return at::dropout(layer_(x_), 0.5, true).sum();
    });
    EXPECT_TRUE(at::equal(at::rand({8}), drawn));
  }
}

TEST_F(ApartStep, PutsBackWhatIsTrained) {
  layer_->bias.requires_grad_(false);
  estimate_step(*layer_, [&] {
    layer_->weight.requires_grad_(false);
    layer_->bias.requires_grad_(true);
    return loss();
  });
  EXPECT_TRUE(layer_->weight.requires_grad());
  EXPECT_FALSE(layer_->bias.requires_grad());
  // A buffer that was written has no history afterwards.
  nn::Module module;
  const auto weight = module.register_parameter("weight", at::rand({8}));
  auto mean = module.register_buffer("mean", at::zeros({8}));
  estimate_step(module, [&] {
    mean.mul_(0.5).add_(weight);
    return (mean * weight).sum();
  });
  EXPECT_FALSE(mean.requires_grad());
  EXPECT_TRUE(mean.is_leaf());
}

TEST_F(ApartStep, RefusesToGoOnIntoAGraphFromBefore) {
  const at::Tensor h = layer_(x_).tanh(), number = h.sum();
  const auto refusal = [&](const std::function<at::Tensor()>& step) {
    return refusal_of([&] { estimate_step(*layer_, step); });
  };
  EXPECT_THAT(refusal([&] { return layer_(h).sum(); }),
              AllOf(HasSubstr("a graph from before the estimate"), HasSubstr("[32, 64]"),
                    HasSubstr("detach() it")));
  EXPECT_THAT(refusal([&] { return layer_(x_).sum() * number; }),
              AllOf(HasSubstr("a graph from before the estimate"), HasSubstr("of sizes []")));
  // In a region, of which backward alone sees the graph.
  EXPECT_THAT(
      refusal([&] {
        return checkpoint([&](const at::Tensor& x) { return layer_(x) * h; }, layer_(x_)).sum();
      }),
      HasSubstr("a graph from before the estimate"));
  EXPECT_THAT(refusal([&] {
                number.backward({}, /*retain_graph=*/true);
                return loss();
              }),
              HasSubstr("a graph from before the estimate"));
  EXPECT_EQ(refusal([&] { return layer_(h.detach()).sum() * (h > 0).sum(); }), "");
  // It is still whole.
  number.backward();
  EXPECT_FALSE(layer_->weight.grad().is_meta());
}

}  // namespace
}  // namespace reprise
