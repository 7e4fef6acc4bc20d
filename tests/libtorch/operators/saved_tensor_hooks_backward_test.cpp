// Hook scopes that are open while backward runs: what backward itself saves is packed too, on
// whichever thread autograd runs it. A backward call nested 60 deep leaves its thread for a pool of
// others.
#include <set>
#include <thread>

#include "tests/libtorch/operators/hooks_testing.h"

namespace reprise {
namespace {

using namespace reprise::testing;
using torch::autograd::AutogradContext;
using torch::autograd::Function;

at::Tensor smooth_network(const at::Tensor& x, const at::Tensor& w) {
  return (x * w).exp().sin().matmul(w.t()).softmax(1);
}

class HooksInBackward : public ::testing::Test {
 protected:
  void SetUp() override { torch::manual_seed(16); }
  at::Tensor x_ = leaf();
  at::Tensor w_ = leaf();
  HookCounts counts_;
};

TEST_F(HooksInBackward, RetainedGraphsUnpackAgainAndGiveTheSameGradient) {
  const CountingHooks scope(counts_);
  const at::Tensor y = smooth_network(x_, w_).sum();
  const int packs = counts_.packs;
  y.backward({}, /*retain_graph=*/true);
  const int unpacks = counts_.unpacks;
  const Tensors first = take_gradients({x_, w_});
  y.backward();
  EXPECT_EQ(counts_.packs, packs);
  EXPECT_EQ(counts_.unpacks, 2 * unpacks);
  EXPECT_TRUE(same_bits(take_gradients({x_, w_}), first));
}

// First and second gradients of `network`, the first one taken inside of whatever is open.
struct TwoOrders {
  Tensors first, second;
};
TwoOrders two_orders(const at::Tensor& x, const at::Tensor& w) {
  TwoOrders orders;
  orders.first = torch::autograd::grad({smooth_network(x, w).pow(2).sum()}, {x, w}, {}, true, true);
  orders.second =
      torch::autograd::grad({orders.first[0].pow(2).sum() + orders.first[1].sin().sum()}, {x, w});
  return orders;
}

TEST_F(HooksInBackward, DoubleBackwardInsideAScopePacksWhatTheFirstBackwardSaves) {
  const TwoOrders expected = two_orders(x_, w_);
  const CountingHooks scope(counts_);
  const at::Tensor y = smooth_network(x_, w_).pow(2).sum();
  const int packs_in_forward = counts_.packs;
  const Tensors first = torch::autograd::grad({y}, {x_, w_}, {}, true, true);
  EXPECT_GT(counts_.packs, packs_in_forward);
  const Tensors second =
      torch::autograd::grad({first[0].pow(2).sum() + first[1].sin().sum()}, {x_, w_});
  EXPECT_TRUE(same_bits(first, expected.first));
  EXPECT_TRUE(same_bits(second, expected.second));
}

TEST_F(HooksInBackward, DoubleBackwardOutsideOfTheScopeOfForward) {
  const TwoOrders expected = two_orders(x_, w_);
  at::Tensor y;
  {
    const CountingHooks scope(counts_, Keeps::kCopy);
    y = smooth_network(x_, w_).pow(2).sum();
  }
  const int packs = counts_.packs;
  const Tensors first = torch::autograd::grad({y}, {x_, w_}, {}, true, true);
  const Tensors second =
      torch::autograd::grad({first[0].pow(2).sum() + first[1].sin().sum()}, {x_, w_});
  EXPECT_EQ(counts_.packs, packs);
  EXPECT_TRUE(same_bits(first, expected.first));
  EXPECT_TRUE(same_bits(second, expected.second));
}

// Runs a small forward and backward pass in its backward, so that tensors are saved there.
struct SavesInBackward : Function<SavesInBackward> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    ctx->save_for_backward({x});
    return x.clone();
  }
  static Tensors backward(AutogradContext* ctx, const Tensors& grad) {
    const torch::AutoGradMode grad_mode(true);
    const at::Tensor x = ctx->get_saved_variables()[0].detach().requires_grad_(true);
    return {torch::autograd::grad({x.sin().exp()}, {x}, {grad[0]})[0]};
  }
};

TEST_F(HooksInBackward, ACustomFunctionThatSavesInItsBackwardIsPackedThere) {
  const Tensors expected = gradients_of([&] { return x_.sin().exp(); }, {x_});
  const at::Tensor y = SavesInBackward::apply(x_).sum();
  {
    const CountingHooks scope(counts_);
    y.backward();
  }
  EXPECT_EQ(counts_.packs, 2);
  EXPECT_EQ(counts_.unpacks, 2);
  EXPECT_EQ(counts_.alive, 0);
  EXPECT_TRUE(same_bits(take_gradients({x_}), expected));
}

TEST_F(HooksInBackward, ACustomFunctionsSavedTensorsArePacked) {
  at::Tensor y;
  {
    const CountingHooks scope(counts_, Keeps::kCopy);
    y = SavesInBackward::apply(x_).sum();
  }
  EXPECT_EQ(counts_.packs, 1);
  y.backward();
  EXPECT_EQ(counts_.unpacks, 1);
}

TEST_F(HooksInBackward, AScopeOpenedInBackwardIsClosedWithItsFunction) {
  struct OpensAScope : Function<OpensAScope> {
    static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, HookCounts* counts) {
      ctx->saved_data["counts"] = reinterpret_cast<std::int64_t>(counts);
      return x.clone();
    }
    static Tensors backward(AutogradContext* ctx, const Tensors& grad) {
      auto* counts = reinterpret_cast<HookCounts*>(ctx->saved_data["counts"].toInt());
      const torch::AutoGradMode grad_mode(true);
      const CountingHooks scope(*counts);
      grad[0].detach().requires_grad_(true).sin();
      return {grad[0], at::Tensor()};
    }
  };
  HookCounts outer;
  const CountingHooks scope(outer);
  const at::Tensor y = OpensAScope::apply(SavesInBackward::apply(x_), &counts_);
  y.sum().backward();
  EXPECT_EQ(counts_.packs, 1);
  EXPECT_EQ(outer.packs,
            3);  // one in forward, two in SavesInBackward's backward, after OpensAScope's
}

// A backward that calls backward, `depth` deep, and saves one tensor on every level.
struct Nest : Function<Nest> {
  static inline std::set<std::thread::id> threads;

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, std::int64_t depth) {
    ctx->saved_data["depth"] = depth;
    return x.clone();
  }
  static Tensors backward(AutogradContext* ctx, const Tensors& grad) {
    threads.insert(std::this_thread::get_id());
    const std::int64_t depth = ctx->saved_data["depth"].toInt();
    if (depth == 0) return {grad[0], at::Tensor()};
    const torch::AutoGradMode grad_mode(true);
    const at::Tensor x = grad[0].detach().requires_grad_(true);
    const at::Tensor y = apply(x.sin(), depth - 1);
    return {torch::autograd::grad({y.sum()}, {x})[0], at::Tensor()};
  }
};
constexpr int kDepth = 130;  // two threads of the pool

TEST_F(HooksInBackward, AScopeGoesAlongToTheThreadsOfNestedBackwardCalls) {
  const at::Tensor y = Nest::apply(x_, kDepth).sum();
  Nest::threads.clear();
  {
    const CountingHooks scope(counts_);
    y.backward();
  }
  EXPECT_GE(Nest::threads.size(), 3u);
  EXPECT_EQ(counts_.packs, kDepth);
  EXPECT_EQ(counts_.unpacks, kDepth);
  EXPECT_EQ(counts_.alive, 0);
}

TEST_F(HooksInBackward, AThreadOfThePoolDoesNotKeepTheScopeOfAnEarlierCall) {
  {
    const CountingHooks scope(counts_);
    Nest::apply(x_, kDepth).sum().backward();
  }
  const int packs = counts_.packs;
  Nest::threads.clear();
  Nest::apply(x_, kDepth).sum().backward();
  EXPECT_GE(Nest::threads.size(), 3u);
  EXPECT_EQ(counts_.packs, packs);
}

TEST_F(HooksInBackward, NoSavedTensorHooksGoesAlongToo) {
  const CountingHooks scope(counts_);
  const NoSavedTensorHooksScope none;
  Nest::apply(x_, kDepth).sum().backward();
  EXPECT_EQ(counts_.packs, 0);
}

TEST_F(HooksInBackward, AnErrorOnAThreadOfThePoolReachesTheCallerAndTheNextCallWorks) {
  const auto throws_in_the_end = [&](const at::Tensor& t) {
    if (++counts_.packs == kDepth) throw std::out_of_range("the deepest one");
    return t;
  };
  {
    const SavedTensorHooksScope scope(throws_in_the_end, [](const at::Tensor& t) { return t; });
    const at::Tensor y = Nest::apply(x_, kDepth).sum();
    EXPECT_EQ(error_of<std::out_of_range>([&] { y.backward(); }), "the deepest one");
  }
  take_gradients({x_});
  HookCounts counts;
  const CountingHooks scope(counts);
  Nest::apply(x_, kDepth).sum().backward();
  EXPECT_EQ(counts.packs, kDepth);
}

TEST_F(HooksInBackward, ThreadsWithScopesOfTheirOwnDoNotMeet) {
  constexpr int kThreads = 4, kSteps = 25;
  const Tensors expected = gradients_of([&] { return smooth_network(x_, w_); }, {x_, w_});
  std::vector<HookCounts> counts(kThreads);
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (int step = 0; step < kSteps; ++step) {
        const CountingHooks scope(counts[i], i % 2 == 0 ? Keeps::kTensor : Keeps::kCopy);
        const Tensors actual = torch::autograd::grad({smooth_network(x_, w_).sum()}, {x_, w_});
        if (!same_bits(actual, expected)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  for (const HookCounts& each : counts) {
    EXPECT_EQ(each.packs, counts[0].packs);
    EXPECT_EQ(each.unpacks, counts[0].unpacks);
    EXPECT_EQ(each.alive, 0);
  }
}

TEST_F(HooksInBackward, SeveralThreadsMayReadOneRetainedGraph) {
  const Tensors expected = gradients_of([&] { return smooth_network(x_, w_); }, {x_, w_});
  at::Tensor y;
  {
    const CountingHooks scope(counts_, Keeps::kCopy);
    y = smooth_network(x_, w_).sum();
  }
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int step = 0; step < 25; ++step) {
        if (!same_bits(torch::autograd::grad({y}, {x_, w_}, {}, /*retain_graph=*/true), expected))
          ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace reprise
