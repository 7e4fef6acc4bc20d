// Tensors that a step holds in other ways than as parameters of its own: tied, sparse, without
// dimensions, of other threads.
#include <ATen/ThreadLocalState.h>
#include <gmock/gmock.h>
#include <reprise/estimate.h>
#include <torch/torch.h>

#include <thread>

#include "estimate/account.h"

namespace reprise {
namespace {

namespace nn = torch::nn;

struct Tied : nn::Module {
  nn::Linear first{32, 32};
  at::Tensor again = register_parameter("again", first->weight);
  Tied() { register_module("first", first); }
};

TEST(EstimateStep, CountsATiedParameterOnce) {
  Tied module;
  const auto x = at::rand({4, 32});
  const Estimate found =
      estimate_step(module, [&] { return at::linear(module.first(x), module.again).sum(); },
                    {.optimizer = {OptimizerKind::kAdamW}});
  EXPECT_EQ(found.parameter_count, 32 * 32 + 32);
  EXPECT_EQ(found.optimizer_state, found.parameters + found.parameters);
}

TEST(EstimateStep, CountsSparseGradients) {
  nn::Embedding table(nn::EmbeddingOptions(1000, 64).sparse(true));
  const auto tokens = at::randint(1000, {4, 8});
  const Estimate found = estimate_step(*table, [&] { return table(tokens).square().sum(); });
  // Rows that were looked up, not the table; and which they are.
  EXPECT_GE(found.gradients.count, 32 * 64 * 4);
  EXPECT_LT(found.gradients.count, 32 * 64 * 4 + 2000);
}

TEST(EstimateStep, LeavesNumbersOutsideOfTheModuleAsTheyAre) {
  nn::Linear layer(8, 8);
  const auto seen = at::zeros({}), list = at::ones({});
  estimate_step(*layer, [&] {
    seen.add_(1);
    seen.copy_(at::rand({}));
    at::sum_out(const_cast<at::Tensor&>(seen), at::rand({4}));
    at::_foreach_add_({list}, 1);
    return layer(at::rand({2, 8})).sum() * (list + seen);
  });
  EXPECT_EQ(seen.item<double>(), 0);
  EXPECT_EQ(list.item<double>(), 1);
}

// A step may run operators on threads of its own, to which it takes LibTorch's state.
TEST(EstimateStep, SeesEachCallOfSeveralThreads) {
  constexpr std::int64_t kThreads = 4, kEach = 100;
  nn::Linear layer(8, 8);
  std::vector<at::Tensor> inputs(kThreads * kEach);
  for (at::Tensor& each : inputs) each = at::rand({8, 8});
  const auto run = [&](std::int64_t thread) {
    for (std::int64_t i = 0; i < kEach; ++i) {
      inputs[static_cast<std::size_t>(thread * kEach + i)].sin().cos();
    }
  };
  const auto estimate = [&](bool runs_on_threads) {
    return estimate_step(*layer, [&] {
      const at::ThreadLocalState state;
      std::vector<std::thread> threads;
      for (std::int64_t i = 0; runs_on_threads && i < kThreads; ++i) {
        threads.emplace_back([&, i] {
          const at::ThreadLocalStateGuard as_here(state);
          run(i);
        });
      }
      for (std::thread& each : threads) each.join();
      return layer(at::ones({2, 8})).sum();
    });
  };
  const Estimate without = estimate(false), with = estimate(true);
  EXPECT_EQ(with.operators - without.operators, 2 * kThreads * kEach);
  EXPECT_EQ(with.inputs.count, kThreads * kEach * estimate::handed_out(8 * 8 * 4, c10::kCPU));
}

}  // namespace
}  // namespace reprise
