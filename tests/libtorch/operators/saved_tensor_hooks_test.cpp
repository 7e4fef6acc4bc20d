// Hook scopes as a user meets them: which scope is called, with what, how often, and that gradients
// and memory are those of the plain program. (Backward's side:
// saved_tensor_hooks_backward_test.cpp; errors: saved_tensor_hooks_errors_test.cpp.)
#include "tests/libtorch/operators/hooks_testing.h"

#include <ATen/SavedTensorHooks.h>
#include <reprise/error.h>

#include <thread>

namespace reprise {
namespace {

using namespace reprise::testing;

at::Tensor network(const at::Tensor& x, const at::Tensor& w) {
  return (x * w).exp().matmul(w.t()).softmax(1).sqrt() * 3;
}

class SavedTensorHooksTest : public ::testing::Test {
 protected:
  void SetUp() override { torch::manual_seed(4); }
  Tensors plain() {
    return gradients_of([&] { return network(x_, w_); }, {x_, w_});
  }
  at::Tensor x_ = leaf();
  at::Tensor w_ = leaf();
  HookCounts counts_;
};

TEST_F(SavedTensorHooksTest, PackOncePerSavedTensorAndUnpackOncePerRead) {
  at::Tensor y;
  {
    const CountingHooks scope(counts_);
    y = x_ * w_;
  }
  EXPECT_EQ(counts_.packs, 2);
  EXPECT_EQ(counts_.unpacks, 0);
  y.sum().backward();
  EXPECT_EQ(counts_.packs, 2);
  EXPECT_EQ(counts_.unpacks, 2);
}

TEST_F(SavedTensorHooksTest, WorkAfterTheScopeIsClosed) {
  const Tensors expected = plain();
  at::Tensor y;
  {
    const CountingHooks scope(counts_, Keeps::kCopy);
    y = network(x_, w_);
  }
  y.sum().backward();
  EXPECT_GT(counts_.unpacks, 0);
  EXPECT_TRUE(same_bits(take_gradients({x_, w_}), expected));
}

TEST_F(SavedTensorHooksTest, AreNotAskedOutsideOfAScope) {
  { const CountingHooks scope(counts_); }
  network(x_, w_).sum().backward();
  EXPECT_EQ(counts_.packs, 0);
}

TEST_F(SavedTensorHooksTest, AreNotAskedForWhatNeedsNoGradient) {
  const CountingHooks scope(counts_);
  network(x_.detach(), w_.detach());
  const torch::NoGradGuard no_grad;
  network(x_, w_);
  EXPECT_EQ(counts_.packs, 0);
}

TEST_F(SavedTensorHooksTest, AreNotShownScalarsThatLibTorchWraps) {
  std::vector<c10::DimVector> shapes;
  const SavedTensorHooksScope scope(
      [&](const at::Tensor& t) { return shapes.emplace_back(t.sizes()), t; },
      [](const at::Tensor& t) { return t; });
  const at::Tensor y = x_ * 2;
  EXPECT_EQ(shapes, std::vector<c10::DimVector>{});
  y.sum().backward();
  EXPECT_TRUE(same_bits(x_.grad(), torch::full({4, 5}, 2.f)));
}

TEST_F(SavedTensorHooksTest, TheInnermostScopeAloneIsCalled) {
  HookCounts inner;
  const CountingHooks outer_scope(counts_);
  at::Tensor y = x_.sin();
  {
    const CountingHooks inner_scope(inner);
    y = y.sin();
    EXPECT_EQ(counts_.packs, 1);
    EXPECT_EQ(inner.packs, 1);
  }
  y = y.sin();
  EXPECT_EQ(counts_.packs, 2);
  EXPECT_EQ(inner.packs, 1);
  y.sum().backward();
  EXPECT_EQ(counts_.unpacks, 2);
  EXPECT_EQ(inner.unpacks, 1);
  const Tensors actual = take_gradients({x_});
  EXPECT_TRUE(same_bits(actual, gradients_of([&] { return x_.sin().sin().sin(); }, {x_})));
}

TEST_F(SavedTensorHooksTest, NoSavedTensorHooksHidesOuterScopesAndAnInnerOneIsSeenAgain) {
  HookCounts inner;
  const CountingHooks outer_scope(counts_);
  {
    const NoSavedTensorHooksScope none;
    const at::Tensor hidden = x_.sin();
    EXPECT_EQ(counts_.packs, 0);
    const CountingHooks inner_scope(inner);
    const at::Tensor seen = x_.sin();
    EXPECT_EQ(counts_.packs, 0);
    EXPECT_EQ(inner.packs, 1);
  }
  const at::Tensor y = x_.sin();
  EXPECT_EQ(counts_.packs, 1);
}

TEST_F(SavedTensorHooksTest, BelongToTheThreadThatOpenedThem) {
  const CountingHooks scope(counts_);
  HookCounts other;
  std::thread([&] {
    const at::Tensor y = x_.sin();
    EXPECT_EQ(counts_.packs, 0);
    const CountingHooks own(other);
    const at::Tensor z = x_.sin();
  }).join();
  EXPECT_EQ(counts_.packs, 0);
  EXPECT_EQ(other.packs, 1);
  const at::Tensor y = x_.sin();
  EXPECT_EQ(counts_.packs, 1);
  EXPECT_EQ(other.packs, 1);
}

TEST_F(SavedTensorHooksTest, PackSeesATensorWithoutHistoryUnderNoGrad) {
  bool grad_mode_in_pack = true, grad_mode_in_unpack = true, requires_grad = false;
  at::Tensor y;
  {
    const SavedTensorHooksScope scope(
        [&](const at::Tensor& t) {
          grad_mode_in_pack = torch::GradMode::is_enabled();
          requires_grad |= t.requires_grad();
          return t;
        },
        [&](const at::Tensor& t) {
          grad_mode_in_unpack = torch::GradMode::is_enabled();
          return t;
        });
    y = (x_ * w_).exp();
  }
  torch::autograd::grad({y.sum()}, {x_}, {}, /*retain_graph=*/true, /*create_graph=*/true);
  EXPECT_FALSE(requires_grad);
  EXPECT_FALSE(grad_mode_in_pack);
  EXPECT_FALSE(grad_mode_in_unpack);
}

TEST_F(SavedTensorHooksTest, AnyMovableTypeCanBeKeptAndTheHooksNeedNotBeCopyableTogether) {
  struct HalfPrecision {
    std::unique_ptr<at::Tensor> tensor;
    at::ScalarType dtype;
  };
  at::Tensor y;
  {
    const SavedTensorHooksScope scope(
        [](const at::Tensor& t) {
          return HalfPrecision{std::make_unique<at::Tensor>(t.to(at::kBFloat16)), t.scalar_type()};
        },
        [](const HalfPrecision& kept) { return kept.tensor->to(kept.dtype); });
    y = x_.sin();
  }
  y.sum().backward();
  EXPECT_TRUE(same_bits(x_.grad(), x_.detach().to(at::kBFloat16).to(at::kFloat).cos()));
}

TEST_F(SavedTensorHooksTest, TheSameObjectsComeBackFromALeafWithItsGradientAccumulator) {
  at::Tensor y;
  {
    const CountingHooks scope(counts_);
    y = x_ * x_;
  }
  EXPECT_EQ(counts_.packs, 2);
  // Second order reaches the leaf through its saved copies.
  const at::Tensor first = torch::autograd::grad({y.sum()}, {x_}, {}, true, true)[0];
  first.sum().backward();
  EXPECT_TRUE(same_bits(x_.grad(), torch::full({4, 5}, 2.f)));
}

TEST_F(SavedTensorHooksTest, SavedViewsAndTransposedTensorsKeepTheirMeaning) {
  const auto views = [&] {
    const at::Tensor t = w_.t();
    return x_.matmul(t).narrow(1, 0, 2).sin() * t.select(1, 0).narrow(0, 0, 2);
  };
  const Tensors expected = gradients_of(views, {x_, w_});
  const auto hooked = [&](Keeps keeps) {
    const CountingHooks scope(counts_, keeps);
    return views();
  };
  EXPECT_TRUE(same_bits(gradients_of([&] { return hooked(Keeps::kTensor); }, {x_, w_}), expected));
  EXPECT_TRUE(same_bits(gradients_of([&] { return hooked(Keeps::kCopy); }, {x_, w_}), expected));
  EXPECT_GT(counts_.packs, 0);
}

TEST_F(SavedTensorHooksTest, SparseTensorsPassThrough) {
  const at::Tensor sparse = torch::eye(4).to_sparse();
  const auto product = [&] { return torch::mm(sparse, x_.exp()).sin(); };
  const Tensors expected = gradients_of(product, {x_});
  const CountingHooks scope(counts_);
  EXPECT_TRUE(same_bits(gradients_of(product, {x_}), expected));
  EXPECT_GT(counts_.unpacks, 0);
}

TEST_F(SavedTensorHooksTest, NestedTensorsPassThrough) {
  const auto ragged = [&] {
    const at::Tensor rows = torch::_nested_tensor_from_tensor_list({x_, w_.narrow(0, 0, 2)});
    return rows.relu().to_padded_tensor(0);
  };
  const Tensors expected = gradients_of(ragged, {x_, w_});
  const CountingHooks scope(counts_);
  EXPECT_TRUE(same_bits(gradients_of(ragged, {x_, w_}), expected));
  EXPECT_GT(counts_.unpacks, 0);
}

// exp, softmax, sqrt and the like save their own output: kept with its history it would own itself.
using Operator = at::Tensor (*)(const at::Tensor&);
class SavedTensorHooksLeaks : public ::testing::TestWithParam<std::pair<const char*, Operator>> {};
INSTANTIATE_TEST_SUITE_P(
    Operators, SavedTensorHooksLeaks,
    ::testing::Values(
        std::pair("Exp", Operator([](const at::Tensor& x) { return x.exp(); })),
        std::pair("Softmax", Operator([](const at::Tensor& x) { return x.softmax(1); })),
        std::pair("Sqrt", Operator([](const at::Tensor& x) { return x.abs().sqrt(); })),
        std::pair("Sigmoid", Operator([](const at::Tensor& x) { return x.sigmoid(); })),
        std::pair("Square", Operator([](const at::Tensor& x) { return x * x; })),
        std::pair("Chain", Operator([](const at::Tensor& x) {
                    return x.exp().tanh().matmul(x.t()).exp();
                  }))),
    [](const auto& info) { return info.param.first; });

TEST_P(SavedTensorHooksLeaks, AGraphThatIsDroppedTakesItsPackedTensorsAlong) {
  HookCounts counts;
  GraphWatch graph;
  {
    const at::Tensor x = leaf();
    at::Tensor y;
    {
      const CountingHooks scope(counts);
      y = GetParam().second(x);
    }
    graph.add(y);
    EXPECT_GT(counts.alive, 0);
  }
  EXPECT_EQ(counts.alive, 0);
  EXPECT_EQ(graph.alive(), std::vector<std::string>{});
}

TEST_P(SavedTensorHooksLeaks, BackwardFreesThePackedTensorsUnlessTheGraphIsRetained) {
  HookCounts counts;
  const at::Tensor x = leaf();
  const CountingHooks scope(counts);
  const at::Tensor y = GetParam().second(x);
  const int packed = counts.alive;
  y.sum().backward({}, /*retain_graph=*/true);
  EXPECT_EQ(counts.alive, packed);
  y.sum().backward();
  EXPECT_EQ(counts.alive, 0);
}

TEST_F(SavedTensorHooksTest, SaveOnCpuChangesNoGradient) {
  const Tensors expected = plain();
  const SaveOnCpuScope offload;
  EXPECT_TRUE(same_bits(gradients_of([&] { return network(x_, w_); }, {x_, w_}), expected));
}

TEST_F(SavedTensorHooksTest, SaveOnCpuLeavesTensorsWhereTheyAreOnTheHost) {
  const auto allocations_in_forward = [&] {
    const std::int64_t before = allocation_count();
    network(x_, w_);
    return allocation_count() - before;
  };
  const std::int64_t expected = allocations_in_forward();
  const SaveOnCpuScope offload;
  EXPECT_EQ(allocations_in_forward(), expected);
}

TEST_F(SavedTensorHooksTest, SaveOnCpuIsAScopeLikeAnyOther) {
  const CountingHooks scope(counts_);
  {
    const SaveOnCpuScope offload;
    network(x_, w_);
    EXPECT_EQ(counts_.packs, 0);
  }
  network(x_, w_);
  EXPECT_GT(counts_.packs, 0);
}

TEST_F(SavedTensorHooksTest, FunctorchsBanOnHooksIsRespected) {
  const CountingHooks scope(counts_);
  at::SavedTensorDefaultHooks::disable("not here");
  const at::Tensor y = x_.sin();
  at::SavedTensorDefaultHooks::enable();
  EXPECT_EQ(counts_.packs, 0);
  y.sum().backward();
  EXPECT_TRUE(same_bits(x_.grad(), x_.detach().cos()));
}

}  // namespace
}  // namespace reprise
