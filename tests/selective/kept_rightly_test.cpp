// Kept results that could be given for another call's, or that change after they were kept: each
// of these once gave wrong gradients without a word, or an error for a program that is right.

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <reprise/error.h>
#include <reprise/store.h>

#include <thread>

#include "tests/selective/kept_rightly.h"

namespace reprise {
namespace {

using at::Tensor;
using testing::contains;
using testing::error_of;
using testing::gradients_of;
using testing::KeptRightly;
using testing::leaf;
using testing::same_bits;
using testing::Tensors;
using testing::with_policy;

// What LibTorch's linear does with three dimensions and a bias.
TEST_F(KeptRightly, OffloadedResultsThatAreChangedThroughOtherTensorsAreRecomputed) {
  const auto f = [this] {
    return [this](const Tensor& x) {
      return at::linear(x.view({2, 4, 8}), w_, at::ones({8})).mul(2).exp();
    };
  };
  for (const auto& store : {memory_store(), disk_store({.folder = ::testing::TempDir()})}) {
    EXPECT_TRUE(is_right(f, offloading(save_matmuls()), {.store = store}));
    EXPECT_EQ(store->statistics().count, 0);
  }
}

// As torch::nn::Linear does.
TEST_F(KeptRightly, WhatIsAddedToAnOffloadedResultRightAwayIsOffloadedWithIt) {
  const auto store = disk_store({.folder = ::testing::TempDir()});
  testing::OperatorCounts counts;
  EXPECT_TRUE(is_right(
      [this] {
        return [this](const Tensor& x) { return x.mm(w_).view({64}).add_(1).mul_(3).exp(); };
      },
      offloading(save_matmuls()), {.store = store}));
  // Plain and under the policy: two in forward, four for gradients.
  EXPECT_EQ(counts["mm"], 2 + 4);
  EXPECT_EQ(store->statistics().count, 0);
}

TEST_F(KeptRightly, OffloadedResultsThatAreChangedAreRecomputedOrRefusedByName) {
  const auto f = [this] {
    return [this](const Tensor& x) {
      const Tensor product = x.mm(w_);
      const Tensor read = product.sum();
      return product.add_(1).exp() * read;
    };
  };
  EXPECT_TRUE(is_right(f, offloading(save_matmuls()), {.store = memory_store()}));
  const auto strictly = with_policy(
      [](const SelectiveCheckpointContext& call) {
        return call.is("mm") ? CheckpointPolicy::kMustCpuOffload
                             : CheckpointPolicy::kPreferRecompute;
      },
      {.store = memory_store()});
  const Tensor y = checkpoint(strictly, f(), x_).sum();
  EXPECT_TRUE(contains(error_of<DeterminismError>([&] { y.backward(); }),
                       "aten::mm has been mutated: it was changed in place after the operator "
                       "returned it. Answer kPreferCpuOffload"));
}

TEST_F(KeptRightly, NewTensorsAreMadeAgain) {
  EXPECT_TRUE(is_right(
      [this] {
        return [this](const Tensor& x) { return torch::zeros({8, 8}).add_(x.mm(w_)).sin(); };
      },
      save_all_but_cheap()));
  EXPECT_TRUE(is_right(
      [this] {
        return [this](const Tensor& x) {
          const Tensor h = x.mm(w_);
          return torch::softmax(torch::zeros_like(h).index_add_(0, torch::arange(8), h), 1).mm(x);
        };
      },
      recompute_attention()));
  EXPECT_TRUE(is_right(
      [this] {
        return [this](const Tensor& x) {
          const Tensor ramp = at::zeros({8});
          for (int i = 0; i < 8; ++i) ramp.data_ptr<float>()[i] += static_cast<float>(i);
          return (x.mm(w_) * ramp).exp();
        };
      },
      recompute_attention()));
}

TEST_F(KeptRightly, ANewTensorThatMustBeKeptIsGivenAsItWasMade) {
  const auto mask = [](const SelectiveCheckpointContext& call) {
    return call.is("rand_like") ? CheckpointPolicy::kMustSave : CheckpointPolicy::kPreferRecompute;
  };
  const auto f = [](const Tensor& x) { return (at::rand_like(x).mul_(2) * x).sin(); };
  CheckpointOptions unreplayed = with_policy(mask);
  unreplayed.preserve_rng_state = false;
  const Tensors plain = gradients_of([&] { return f(x_); }, {x_});
  EXPECT_TRUE(same_bits(gradients_of([&] { return checkpoint(unreplayed, f, x_); }, {x_}), plain));
}

TEST_F(KeptRightly, KeptDrawsLeaveTheGeneratorAloneThatIsNotReplayed) {
  CheckpointOptions unreplayed = with_policy({"bernoulli"});
  unreplayed.preserve_rng_state = false;
  const auto f = [](const Tensor& x) { return (at::bernoulli(x.detach().sigmoid()) * x).sin(); };
  const Tensor y = checkpoint(unreplayed, f, x_).sum();
  const Tensor before = at::randn({5});
  y.backward();
  EXPECT_FALSE(at::randn({5}).equal(before));
}

// nn::Linear, in three dimensions: mm, _unsafe_view, add_ of the bias.
TEST_F(KeptRightly, WhatIsAddedToAKeptResultRightAwayIsKeptWithIt) {
  const torch::nn::Linear linear(8, 8);
  const at::Tensor x = leaf({2, 4, 8});
  const auto f = [&](const at::Tensor& t) {
    at::Tensor h = torch::nn::Linear(linear)(t).sin();
    return torch::nn::functional::relu(torch::nn::Linear(linear)(h),
                                       torch::nn::functional::ReLUFuncOptions(true));
  };
  const auto leaves = [&] { return Tensors{x, linear->weight, linear->bias}; };
  const auto plain = gradients_of([&] { return f(x).exp(); }, leaves());
  testing::OperatorCounts counts;
  const auto region =
      gradients_of([&] { return checkpoint(with_policy(save_matmuls()), f, x).exp(); }, leaves());
  EXPECT_TRUE(same_bits(region, plain));
  // Two in forward; in backward two for the input and two for the weight.
  EXPECT_EQ(counts["mm"], 2 + 4);
  EXPECT_EQ(counts["relu_"], 1);
}

TEST_F(KeptRightly, AChangeAfterAReadIsNotKept) {
  EXPECT_TRUE(is_right(
      [this] {
        return [this](const Tensor& x) {
          const Tensor h = x.mm(w_);
          const Tensor before = h * 2;
          h.add_(1);
          return (before * h.sin()).exp();
        };
      },
      save_matmuls()));
}

TEST_F(KeptRightly, ListsOfUndeclaredViewsAreWatched) {
  EXPECT_TRUE(is_right(
      [this] {
        return [this](const Tensor& x) {
          const auto parts = at::unsafe_chunk(x.mm(w_), 2, 1);
          return parts[0].mul_(2).mul(1.5).exp() * parts[1];
        };
      },
      save_matmuls()));
  const torch::nn::GRU gru(8, 8);
  EXPECT_TRUE(is_right(
      [&, this] {
        return [&, this](const Tensor& x) {
          return std::get<0>(torch::nn::GRU(gru)->forward(x.mm(w_).view({2, 4, 8})));
        };
      },
      save_matmuls()));
}

TEST_F(KeptRightly, ChangesPastTheCountersAreSeen) {
  EXPECT_TRUE(is_right(
      [this] {
        return [this](const Tensor& x) {
          const Tensor h = x.mm(w_);
          h.data().mul_(2);
          return h.exp();
        };
      },
      save_matmuls()));
}

TEST_F(KeptRightly, CastsThatAutocastKeepsForLongerDoNotShiftTheCalls) {
  const Tensor other = leaf({8, 8});
  const auto run = [&](bool keeps) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::increment_nesting();
    const Tensor before = at::linear(x_, w_).to(at::kFloat);
    const auto f = [&](const Tensor& x) {
      return at::linear(at::linear(x, w_).exp(), other).sin();
    };
    const auto all = save_all_but({"gelu"});
    const Tensor y = checkpoint(keeps ? with_policy(all) : CheckpointOptions(), f, before);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    return y.to(at::kFloat);
  };
  const Tensors plain = gradients_of([&] { return run(false); }, {x_, w_, other});
  EXPECT_TRUE(same_bits(gradients_of([&] { return run(true); }, {x_, w_, other}), plain));
}

// A cache that is assigned once: its product is not made again, and the next one's place is known.
TEST_F(KeptRightly, ACallThatIsLeftOutDoesNotShiftTheOthers) {
  const auto make = [this] {
    return [this, cache = std::make_shared<Tensor>()](const Tensor& x) {
      if (!cache->defined()) *cache = at::ones({8, 8}).mm(at::eye(8));
      return (x.mm(w_) + *cache).mul(2).exp();
    };
  };
  EXPECT_TRUE(is_right(make, save_matmuls()));
  EXPECT_TRUE(is_right(make, save_all_but_cheap()));
}

TEST_F(KeptRightly, WhereItCannotBeToldWhichCallIsMeantTheOperatorIsNamed) {
  int run = 0;
  const auto f = [&](const Tensor& x) {
    const Tensor h = x.detach();
    // Two products and no saved tensor between: forward makes one more than the recomputation.
    Tensor sum = h.mm(at::ones({8, 8}));
    if (run++ == 0) sum = sum + h.mm(at::eye(8));
    return (x * sum).exp();
  };
  const Tensor y = checkpoint(with_policy(save_matmuls()), f, x_).sum();
  const std::string text = error_of<DeterminismError>([&] { y.backward(); });
  EXPECT_TRUE(contains(text, "The kept result of aten::mm"));
  EXPECT_TRUE(contains(text, "is left out in the recomputation and was aten::"));
}

TEST_F(KeptRightly, ACacheThatIsFilledOnceByAFlagIsReadAsItWasFilled) {
  EXPECT_TRUE(is_right(
      [this] {
        return
            [this, cache = at::zeros({8}), done = std::make_shared<bool>(false)](const Tensor& x) {
              if (!*done) cache.fill_(2);
              *done = true;
              return (x.mm(w_).sin() * cache).exp();
            };
      },
      save_matmuls()));
}

TEST_F(KeptRightly, OperatorsWithHiddenWritesRunAgain) {
  EXPECT_TRUE(is_right(
      [this] {
        return [this, mean = at::zeros({8}), variance = at::ones({8})](const Tensor& x) {
          const Tensor h = at::batch_norm(x.mm(w_), {}, {}, mean, variance, true, 0.1, 1e-5, false);
          return h * variance.rsqrt();
        };
      },
      save_all_but_cheap()));
}

TEST_F(KeptRightly, ABackwardInsideTheFunctionDoesNotUseUpWhatIsKept) {
  EXPECT_TRUE(is_right(
      [this] {
        return [this](const Tensor& x) {
          const Tensor y = x.mm(w_).sin();
          const Tensor slope =
              torch::autograd::grad({y.sum()}, {x}, {}, /*retain_graph=*/true)[0].detach();
          return y * slope;
        };
      },
      save_matmuls()));
}

TEST_F(KeptRightly, SparseResultsCountTheirParts) {
  EXPECT_TRUE(is_right(
      [this] {
        return [this](const Tensor& x) {
          return at::_sparse_mm(at::eye(8).to_sparse(), x.mm(w_)).exp();
        };
      },
      save_largest_cost_per_byte(KiB(1))));
}

TEST_F(KeptRightly, ThreadsMayRunBackwardOverOneGraph) {
  const auto f = [this](const Tensor& x) { return x.mm(w_).sin().mm(w_).cos().mm(w_).exp(); };
  const Tensors plain = gradients_of([&] { return f(x_); }, {x_});
  const Tensor y = checkpoint(with_policy(save_matmuls(), {.reuse = true}), f, x_).sum();
  std::vector<std::thread> threads;
  std::vector<Tensors> results(4);
  for (Tensors& result : results) {
    threads.emplace_back([&] {
      for (int i = 0; i < 8; ++i) result = torch::autograd::grad({y}, {x_}, {}, true);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Tensors& result : results) EXPECT_TRUE(same_bits(result, plain));
}

TEST_F(KeptRightly, HashesOfSavedValuesAreNoCallsOfTheFunction) {
  CheckpointOptions options = with_policy(save_all_but({"gelu"}));
  options.determinism_check = DeterminismCheck::kValues;
  const auto f = [this](const Tensor& x) { return x.t().mm(w_).t().clone().sin().t().exp(); };
  const Tensors plain = gradients_of([&] { return f(x_); }, {x_, w_});
  EXPECT_TRUE(same_bits(gradients_of([&] { return checkpoint(options, f, x_); }, {x_, w_}), plain));
}

TEST_F(KeptRightly, CompositesAreRefusedSinceNoPolicySeesThem) {
  EXPECT_TRUE(contains(error_of<UsageError>([] { OperatorPolicy{"linear"}; }),
                       "OperatorPolicy: 'linear' is made of other operators"));
  EXPECT_THROW(save_all_but({"scaled_dot_product_attention"}), UsageError);
}

}  // namespace
}  // namespace reprise
