// State that a region's function writes to, with everything that only non-reentrant regions have:
// ways to end the recomputation, versions, second derivatives, groups, changed arguments, memory.
#include <reprise/saved_tensor_hooks.h>

#include "tests/region/stateful.h"

namespace reprise {
namespace {

using namespace reprise::testing;

class CheckpointStateEarlyStop : public ::testing::TestWithParam<EarlyStop> {};
INSTANTIATE_TEST_SUITE_P(EarlyStops, CheckpointStateEarlyStop,
                         ::testing::Values(EarlyStop::kNever, EarlyStop::kWhenCheaper,
                                           EarlyStop::kAlways),
                         early_stop_name);

TEST_P(CheckpointStateEarlyStop, HoweverTheRunEndsStateIsUndone) {
  for (const Maker& make : {Maker(power_iteration), Maker(counter), Maker(written_twice),
                            Maker([] { return batch_norm(torch::nn::BatchNorm1dOptions(4)); })}) {
    EXPECT_TRUE(same_bits(after_region(make, with_early_stop(GetParam())), after_plain_step(make)));
  }
}

TEST_P(CheckpointStateEarlyStop, AWriteThatTheRunDoesNotReachIsNotMissed) {
  const at::Tensor count = torch::zeros({4});
  int runs = 0;
  const auto body = [&](const at::Tensor& x) {
    ++runs;
    const at::Tensor y = (x * count.clone()).sin();
    count.add_(1);
    return y;
  };
  const at::Tensor x = input();
  checkpoint(with_early_stop(GetParam()), body, x).sum().backward();
  EXPECT_EQ(runs, 2);
  EXPECT_TRUE(same_bits(count, torch::ones({4})));
  const Tensors actual = take_gradients({x});
  count.zero_();
  EXPECT_TRUE(same_bits(actual, gradients_of([&] { return body(x); }, {x})));
}

TEST_P(CheckpointStateEarlyStop, ACacheThatIsFilledOnceIsReadAsItWasFilled) {
  const at::Tensor cache = torch::zeros({4});
  bool filled = false;
  const auto body = [&](const at::Tensor& x) {
    if (!filled) cache.copy_(torch::arange(4));
    filled = true;
    const at::Tensor y = (x * cache.clone()).cos();
    TORCH_CHECK(cache.sum().item<float>() > 0, "the cache is not filled");
    return y.sin();
  };
  const at::Tensor x = input();
  checkpoint(with_early_stop(GetParam()), body, x).sum().backward();
  const Tensors actual = take_gradients({x});
  EXPECT_TRUE(same_bits(actual, gradients_of([&] { return body(x); }, {x})));
}

TEST_P(CheckpointStateEarlyStop, StateSavedAndThenChangedIsAnErrorAsInThePlainStep) {
  const at::Tensor state = torch::ones({4});
  const auto saved_before = [&](const at::Tensor& x) {
    const at::Tensor y = x * state;
    state.add_(1);
    return y.sin();
  };
  const auto saved_after = [&](const at::Tensor& x) {
    state.add_(1);
    return (x * state).sin();
  };
  const at::Tensor x = input();
  EXPECT_TRUE(contains(error_of<c10::Error>([&] { saved_before(x).sum().backward(); }), "inplace"));
  const auto region = [&](const auto& body) {
    return checkpoint(with_early_stop(GetParam()), body, x).sum();
  };
  EXPECT_TRUE(contains(error_of<c10::Error>([&] { region(saved_before).backward(); }), "inplace"));
  EXPECT_TRUE(contains(error_of<c10::Error>([&] {
                         const at::Tensor loss = region(saved_after);
                         state.add_(1);
                         loss.backward();
                       }),
                       "inplace"));
  take_gradients({x});
  state.fill_(1);
  region(saved_after).backward();
  const Tensors actual = take_gradients({x});
  state.fill_(1);
  EXPECT_TRUE(same_bits(actual, gradients_of([&] { return saved_after(x); }, {x})));
}

TEST(CheckpointStateNonReentrant, SecondDerivativesSeeTheSameState) {
  const auto twice = [](bool region) {
    torch::manual_seed(3);
    const Subject subject = power_iteration();
    const at::Tensor x = input();
    const at::Tensor y = region ? checkpoint(subject.body, x) : subject.body(x);
    const at::Tensor first = torch::autograd::grad({y.sum()}, {x}, {}, true, true)[0];
    first.pow(2).sum().backward();
    Tensors result = take_gradients({x, subject.parameters[0]});
    result.insert(result.end(), subject.state.begin(), subject.state.end());
    return result;
  };
  EXPECT_TRUE(same_bits(twice(true), twice(false)));
}

TEST(CheckpointStateNonReentrant, WhatHooksInsideTheFunctionWriteIsTheirs) {
  // A pool of memory, which hooks fill slot by slot.
  const at::Tensor pool = torch::zeros({4, 24});
  std::int64_t used = 0;
  const auto body = [&](const at::Tensor& x) {
    const at::Tensor y = x.sin();
    const SavedTensorHooksScope hooks(
        [&](const at::Tensor& tensor) {
          pool[used].copy_(tensor.flatten());
          return used++;
        },
        [&](std::int64_t slot) {
          return pool[slot].view({6, 4}).clone();
        });
    return y.exp();
  };
  const at::Tensor x = input();
  // To its end: the hooks come last.
  checkpoint(with_early_stop(EarlyStop::kNever), body, x).sum().backward();
  EXPECT_EQ(used, 2);
  EXPECT_TRUE(same_bits(pool[1], pool[0]));
  const Tensors actual = take_gradients({x});
  EXPECT_TRUE(same_bits(actual, gradients_of([&] { return x.sin().exp(); }, {x})));
}

TEST(CheckpointStateNonReentrant, AGroupOfBackwardCallsRecomputesFromForwardsState) {
  const at::Tensor scale = torch::ones({4});
  const auto body = [&](const at::Tensor& x) {
    scale.mul_(2);
    const at::Tensor y = (x * scale.clone()).sin();
    return std::pair(y, (y * scale.clone()).cos());
  };
  const at::Tensor x = input();
  const auto step = [&](auto&& pair) {
    const auto& [y, z] = pair;
    const at::Tensor grad_y = torch::autograd::grad({z}, {y}, {torch::ones_like(z)})[0];
    return torch::autograd::grad({y}, {x}, {grad_y})[0];
  };
  const at::Tensor expected = step(body(x));
  scale.fill_(1);
  const auto pair = checkpoint(body, x);
  GraphExecGroup group;
  const GraphExecGroup::Scope scope(group);
  EXPECT_TRUE(same_bits(step(pair), expected));
  EXPECT_TRUE(same_bits(scale, torch::full({4}, 2.0)));
}

TEST(CheckpointStateNonReentrant, ABackwardInsideTheFunctionAccumulatesOnce) {
  const at::Tensor weight = leaf({4});
  const auto body = [&](const at::Tensor& x) {
    (x.detach() * weight).sin().sum().backward();
    return (x * weight.grad()).sin();
  };
  const auto step = [&](bool region) {
    const at::Tensor x = input();
    weight.mutable_grad() = torch::ones({4});
    (region ? checkpoint(body, x) : body(x)).sum().backward();
    return Tensors{x.grad(), weight.grad().clone()};
  };
  EXPECT_TRUE(same_bits(step(true), step(false)));
}

TEST(CheckpointStateNonReentrant, AnArgumentThatMayChangeIsStateToo) {
  const auto step = [](bool region) {
    const at::Tensor x = input();
    const at::Tensor sum = torch::ones({4});
    const auto body = [](const at::Tensor& t, const at::Tensor& running) {
      {
        const at::NoGradGuard no_grad;
        running.mul_(0.5).add_(t.detach().mean(0));
      }
      return (t * running.clone()).sin();
    };
    CheckpointOptions options;
    options.allow_changed_arguments = true;
    const at::Tensor y = region ? checkpoint(options, body, x, sum) : body(x, sum);
    y.sum().backward();
    return Tensors{x.grad(), sum};
  };
  EXPECT_TRUE(same_bits(step(true), step(false)));
}

TEST(CheckpointStateNonReentrant, RunningStatisticsGivenAsArgumentsAreUpdatedOnce) {
  const auto step = [](bool region) {
    const at::Tensor x = input(), mean = torch::zeros({4}), variance = torch::ones({4});
    const auto body = [](const at::Tensor& t, const at::Tensor& m, const at::Tensor& v) {
      return torch::batch_norm(t, {}, {}, m, v, /*training=*/true, 0.1, 1e-5, false).sin();
    };
    const at::Tensor y = region ? checkpoint(body, x, mean, variance) : body(x, mean, variance);
    y.sum().backward();
    return Tensors{x.grad(), mean, variance};
  };
  EXPECT_TRUE(same_bits(step(true), step(false)));
}

// pytorch#193671
TEST(CheckpointStateNonReentrant, RreluDrawsTheSameSlopesAgain) {
  const auto body = [](const at::Tensor& t) {
    return torch::rrelu(t, 0.1, 0.4, /*training=*/true).sin();
  };
  const at::Tensor x = leaf({400});
  EXPECT_TRUE(same_bits(gradients_of([&] { return checkpoint(body, x); }, {x}),
                        gradients_of([&] { return body(x); }, {x})));
}

TEST(CheckpointStateMemory, WhatTheFunctionMakesItselfIsChangedInPlaceWithoutACopy) {
  const auto body = [](const at::Tensor& t) {
    at::Tensor y = t * 2;
    y.relu_();
    y = torch::dropout(y, 0.3, true);
    y = y.clone().mul_(3);
    y.view({-1}).narrow(0, 0, 100).zero_();
    return torch::zeros_like(y).add_(y).sin();
  };
  const at::Tensor x = leaf({64, 64});
  const auto allocations = [&](bool preserve) {
    // How far a recomputation runs must not depend on how long forward took.
    CheckpointOptions options = with_early_stop(EarlyStop::kNever);
    options.preserve_state = preserve;
    std::int64_t counts[2];
    // The first time may make tables.
    for (std::int64_t& count : counts) {
      const std::int64_t before = allocation_count();
      checkpoint(options, body, x).sum().backward();
      count = allocation_count() - before;
    }
    return counts[1];
  };
  EXPECT_EQ(allocations(true), allocations(false));
}

TEST(CheckpointStateMemory, CopiesOfStateGoWithTheGraph) {
  const at::Tensor state = torch::ones({1000});
  const auto body = [&](const at::Tensor& x) {
    state.add_(1);
    return x.sin();
  };
  const at::Tensor x = input();
  const Bytes before = live_bytes();
  {
    const at::Tensor y = checkpoint(body, x);
    EXPECT_GE((live_bytes() - before).count, 4000);
  }
  EXPECT_LT((live_bytes() - before).count, 1000);
}

}  // namespace
}  // namespace reprise
