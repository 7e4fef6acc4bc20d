// Regions on several threads: backward calls of two threads over one graph, regions that run at the
// same time, and state that belongs to the thread. (In PyTorch such programs get wrong or no
// gradients: pytorch#96764.)
#include "tests/region/testing.h"

#include <ATen/CPUGeneratorImpl.h>
#include <reprise/saved_tensor_hooks.h>

#include <atomic>
#include <thread>

namespace reprise {
namespace {

using namespace reprise::testing;

constexpr int kIterations = 200;

at::Tensor dropout_block(const at::Tensor& x, const at::Tensor& w) {
  return torch::dropout(torch::dropout(x * w, 0.5, true).exp().sin(), 0.25, true);
}

class CheckpointThreads : public ::testing::Test {
 protected:
  void SetUp() override { torch::manual_seed(9); }
  at::Tensor x_ = leaf({40}), w_ = leaf({40});
};

TEST_F(CheckpointThreads, TwoThreadsMayRunBackwardOverOneGraphOfDropoutRegions) {
  const auto model = [&](auto&& block) { return block(block(block(x_, w_), w_), w_).sum(); };
  torch::manual_seed(1);
  const at::Tensor plain = model(dropout_block);
  const Tensors expected = torch::autograd::grad({plain}, {x_, w_});
  torch::manual_seed(1);
  const at::Tensor loss = model(
      [](const at::Tensor& x, const at::Tensor& w) { return checkpoint(dropout_block, x, w); });
  const at::Tensor state = at::detail::getDefaultCPUGenerator().get_state();
  std::atomic<int> wrong{0};
  on_threads(2, [&](int) {
    for (int i = 0; i < kIterations; ++i) {
      if (!same_bits(torch::autograd::grad({loss}, {x_, w_}, {}, /*retain_graph=*/true), expected))
        ++wrong;
    }
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(same_bits(at::detail::getDefaultCPUGenerator().get_state(), state));
}

TEST_F(CheckpointThreads, TwoThreadsMayRunBackwardOverNestedRegions) {
  const auto nested = [&](const at::Tensor& x, const at::Tensor& w) {
    return checkpoint(dropout_block, checkpoint(dropout_block, x, w).sin(), w);
  };
  torch::manual_seed(1);
  const at::Tensor plain = dropout_block(dropout_block(x_, w_).sin(), w_).sum();
  const Tensors expected = torch::autograd::grad({plain}, {x_, w_});
  torch::manual_seed(1);
  const at::Tensor loss = checkpoint(nested, x_, w_).sum();
  std::atomic<int> wrong{0};
  on_threads(3, [&](int) {
    for (int i = 0; i < kIterations / 2; ++i) {
      if (!same_bits(torch::autograd::grad({loss}, {x_, w_}, {}, /*retain_graph=*/true), expected))
        ++wrong;
    }
  });
  EXPECT_EQ(wrong, 0);
}

TEST_F(CheckpointThreads, ARegionWithoutDrawsDoesNotDisturbAnothersReplay) {
  torch::manual_seed(1);
  const Tensors expected = torch::autograd::grad({dropout_block(x_, w_).sum()}, {x_, w_});
  torch::manual_seed(1);
  const at::Tensor random = checkpoint(dropout_block, x_, w_).sum();
  const at::Tensor state = at::detail::getDefaultCPUGenerator().get_state();
  const auto calm_block = [](const at::Tensor& x, const at::Tensor& w) {
    return (x * w).exp().sin();
  };
  const Tensors calm_expected = torch::autograd::grad({calm_block(x_, w_).sum()}, {x_, w_});
  const at::Tensor calm = checkpoint(calm_block, x_, w_).sum();
  std::atomic<int> wrong{0};
  on_threads(3, [&](int i) {
    for (int j = 0; j < kIterations * 2; ++j) {
      const auto gradients = torch::autograd::grad({i == 0 ? random : calm}, {x_, w_}, {}, true);
      if (!same_bits(gradients, i == 0 ? expected : calm_expected)) ++wrong;
    }
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(same_bits(at::detail::getDefaultCPUGenerator().get_state(), state));
}

TEST_F(CheckpointThreads, RegionsOnSeveralThreadsAtOnceDoNotMeet) {
  for (const Variant variant : {Variant::kNonReentrant, Variant::kReentrant}) {
    std::atomic<int> wrong{0};
    on_threads(4, [&](int index) {
      at::Generator generator = at::detail::createCPUGenerator(index);
      CheckpointOptions options = options_of(variant);
      options.generators = {generator};
      const at::Tensor x = x_.detach().clone().requires_grad_(true);
      const auto block = [&](const at::Tensor& t) {
        return (t * torch::bernoulli(torch::full({40}, 0.5), generator)).exp().sin() * (index + 1);
      };
      for (int i = 0; i < kIterations / 4; ++i) {
        generator.set_current_seed(100 + i);
        const Tensors expected = [&] {
          block(block(x)).sum().backward();
          return take_gradients({x});
        }();
        generator.set_current_seed(100 + i);
        checkpoint(options, block, checkpoint(options, block, x)).sum().backward();
        if (!same_bits(take_gradients({x}), expected)) ++wrong;
      }
    });
    EXPECT_EQ(wrong, 0);
  }
}

TEST_F(CheckpointThreads, AnotherThreadMayRunTheBackwardOfAReentrantRegion) {
  CheckpointOptions options = reentrant();
  torch::manual_seed(1);
  const Tensors expected = gradients_of([&] { return dropout_block(x_, w_); }, {x_, w_}, 1);
  torch::manual_seed(1);
  const at::Tensor loss = checkpoint(options, dropout_block, x_, w_).sum();
  std::thread([&] { loss.backward(); }).join();
  EXPECT_TRUE(same_bits(take_gradients({x_, w_}), expected));
}

TEST_F(CheckpointThreads, TwoThreadsMayRunTheBackwardOfReentrantRegionsOverOneGraph) {
  torch::manual_seed(1);
  const at::Tensor loss =
      checkpoint(reentrant(), dropout_block, checkpoint(reentrant(), dropout_block, x_, w_), w_)
          .sum();
  torch::manual_seed(1);
  const at::Tensor plain = dropout_block(dropout_block(x_, w_), w_).sum();
  const at::Tensor expected = torch::autograd::grad({plain}, {x_})[0];
  on_threads(2, [&](int) {
    for (int i = 0; i < 20; ++i) loss.backward({}, /*retain_graph=*/true);
  });
  // All calls accumulate into the same gradients.
  EXPECT_TRUE(torch::allclose(take_gradients({x_})[0], expected * 40, 1e-4));
}

TEST_F(CheckpointThreads, FlagsAndScopesBelongToTheThread) {
  const EarlyStopScope never(EarlyStop::kNever);
  bool checkpointing = true, recomputing = true;
  int packs = 0;
  const SavedTensorHooksScope hooks([&](const at::Tensor& t) { return ++packs, t; },
                                    [](const at::Tensor& t) { return t; });
  const at::Tensor y = checkpoint(
      [&](const at::Tensor& t) {
        if (is_recomputing()) return t.exp();
        std::thread([&] {
          checkpointing = is_checkpointing();
          recomputing = is_recomputing();
          const at::Tensor a = torch::ones({2}).requires_grad_(true);
          int tails = 0;
          checkpoint(
              with_early_stop(EarlyStop::kAlways),
              [&](const at::Tensor& u) {
                const at::Tensor v = u.exp();
                const at::Tensor w = v.sin();
                ++tails;
                return w * 1;
              },
              a)
              .sum()
              .backward();
          EXPECT_EQ(tails, 1);
        }).join();
        return t.exp();
      },
      x_);
  EXPECT_FALSE(checkpointing);
  EXPECT_FALSE(recomputing);
  EXPECT_EQ(packs, 1);  // the region's argument
  y.sum().backward();
}

TEST_F(CheckpointThreads, AFailingBackwardOnOneThreadLeavesTheOthersRight) {
  const Tensors expected = torch::autograd::grad({(x_ * w_).exp().sin().sum()}, {x_, w_});
  thread_local bool fail = false;
  const at::Tensor loss = checkpoint(
                              [](const at::Tensor& x, const at::Tensor& w) {
                                if (fail && is_recomputing())
                                  throw std::runtime_error("this thread fails");
                                return (x * w).exp().sin();
                              },
                              x_, w_)
                              .sum();
  std::atomic<int> wrong{0}, failures{0};
  on_threads(3, [&](int index) {
    fail = index == 0;
    for (int i = 0; i < kIterations / 4; ++i) {
      try {
        if (!same_bits(torch::autograd::grad({loss}, {x_, w_}, {}, true), expected)) ++wrong;
      } catch (const std::runtime_error&) {
        ++failures;
      }
    }
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(failures, kIterations / 4);
}

}  // namespace
}  // namespace reprise
