// Gradients of selective regions are those of the plain step, bit by bit.

#include <ATen/autocast_mode.h>
#include <rapidcheck/gtest.h>
#include <reprise/error.h>

#include <thread>

#include "tests/selective/testing.h"

namespace reprise {
namespace {

using testing::Block;
using testing::contains;
using testing::error_of;
using testing::gradients_of;
using testing::kRecompute;
using testing::kSave;
using testing::leaf;
using testing::same_bits;
using testing::with_policy;

TEST(SelectiveGradients, GradientsAreThePlainOnesUnderEveryNamedPolicy) {
  const at::Tensor x = leaf({2, 6, 8}), w = leaf({24, 8}), b = leaf({24}), out = leaf({8, 8});
  const auto block = [&](const at::Tensor& t) {
    const auto qkv = at::linear(at::layer_norm(t, {8}), w, b).chunk(3, -1);
    at::Tensor attended = named("attention", [&] {
      const at::Tensor scores = at::bmm(qkv[0], qkv[1].transpose(1, 2)) / 2.8;
      return at::bmm(at::dropout(scores.softmax(-1), 0.2, true), qkv[2]);
    });
    attended = at::linear(attended, out);
    return at::dropout(at::gelu(attended), 0.1, true).relu_() + t;
  };
  const testing::Tensors leaves{x, w, b, out};
  const auto plain = gradients_of([&] { return block(x); }, leaves);
  const std::vector<OperatorPolicy> policies{
      save_matmuls(),
      save_all_but_cheap(),
      save_all_but({"gelu", "_softmax"}),
      save_largest_cost_per_byte(Bytes{1500}),
      save_largest_cost_per_byte(Bytes{0}),
      recompute_attention(),
      every_nth("addmm", 2),
      every_nth("bmm", 1) | OperatorPolicy{"native_layer_norm"},
      inside("attention", save_matmuls()),
      [](const SelectiveCheckpointContext&) { return CheckpointPolicy::kPreferSave; },
      [](const SelectiveCheckpointContext&) { return CheckpointPolicy::kMustRecompute; }};
  for (const auto early_stop : {EarlyStop::kNever, EarlyStop::kWhenCheaper, EarlyStop::kAlways}) {
    for (std::size_t i = 0; i < policies.size(); ++i) {
      CheckpointOptions options = with_policy(policies[i]);
      options.early_stop = early_stop;
      options.determinism_check = DeterminismCheck::kValues;
      EXPECT_TRUE(
          same_bits(gradients_of([&] { return checkpoint(options, block, x); }, leaves), plain))
          << "policy " << i;
    }
  }
}

TEST(SelectiveGradients, RandomDrawsAfterAKeptDrawAreTheSameAgain) {
  const at::Tensor x = leaf({64});
  const auto f = [](const at::Tensor& t) {
    const at::Tensor first = at::rand_like(t.detach());
    const at::Tensor second = at::rand_like(t.detach());
    return (t * first).sin() * second;
  };
  const auto plain = gradients_of([&] { return f(x); }, {x});
  EXPECT_TRUE(same_bits(
      gradients_of([&] { return checkpoint(with_policy(every_nth("rand_like", 1)), f, x); }, {x}),
      plain));
  const auto first_only = with_policy([](const SelectiveCheckpointContext& call) {
    return call.is("rand_like") && call.call_index() == 0 ? kSave : kRecompute;
  });
  EXPECT_TRUE(same_bits(gradients_of([&] { return checkpoint(first_only, f, x); }, {x}), plain));
}

TEST(SelectiveGradients, DrawsFromAGivenGeneratorAreTheSameAgain) {
  const at::Tensor x = leaf({64});
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>();
  const auto f = [&](const at::Tensor& t) {
    const at::Tensor mask = at::bernoulli(at::full({64}, 0.5), generator);
    return (t * mask).sin() * at::rand({64}, generator);
  };
  const auto gradients = [&](auto&& run) {
    generator.set_current_seed(7);
    return gradients_of(run, {x});
  };
  const auto plain = gradients([&] { return f(x); });
  CheckpointOptions options = with_policy({"bernoulli"});
  options.generators = {generator};
  EXPECT_TRUE(same_bits(gradients([&] { return checkpoint(options, f, x); }), plain));
}

// A linear layer of LibTorch's C++ interface adds its bias in place to memory that the product
// returned, through a tensor that counts its changes apart.
TEST(SelectiveGradients, AProductThatIsChangedThroughATensorOfItsOwnIsRecomputed) {
  torch::nn::Linear first(8, 8), second(8, 8);
  const at::Tensor x = leaf({2, 4, 8});
  const auto f = [&](const at::Tensor& t) {
    return second->forward(at::gelu(first->forward(t.transpose(0, 1)))).tanh();
  };
  testing::Tensors leaves = first->parameters();
  leaves.push_back(x);
  const auto plain = gradients_of([&] { return f(x); }, leaves);
  for (const auto& policy : {save_matmuls(), save_all_but({"gelu"})}) {
    EXPECT_TRUE(same_bits(
        gradients_of([&] { return checkpoint(with_policy(policy), f, x); }, leaves), plain));
  }
  // As above, where the caller changes the result.
  const auto product = [&](const at::Tensor& t) { return t.matmul(first->weight); };
  const auto changed = [](const at::Tensor& y) { return at::sin(y.add_(1)); };
  const auto expected = gradients_of([&] { return changed(product(x)); }, leaves);
  EXPECT_TRUE(same_bits(
      gradients_of([&] { return changed(checkpoint(with_policy(save_matmuls()), product, x)); },
                   leaves),
      expected));
}

TEST(SelectiveGradients, NestedRegionsEachKeepTheirOwn) {
  const Block block;
  const at::Tensor x = leaf({4, 8});
  const auto plain = gradients_of([&] { return block(block(x)); }, block.leaves(x));
  const auto inner = with_policy(save_matmuls());
  for (const auto& outer : {with_policy(every_nth("mm", 2)), CheckpointOptions(), inner}) {
    const auto f = [&](const at::Tensor& t) { return block(checkpoint(inner, block, t)); };
    EXPECT_TRUE(
        same_bits(gradients_of([&] { return checkpoint(outer, f, x); }, block.leaves(x)), plain));
  }
}

TEST(SelectiveGradients, SecondDerivativesAndFurtherBackwardsNeedReuse) {
  const at::Tensor x = leaf({4, 8});
  const Block block;
  const auto second = [&](const at::Tensor& y) {
    const auto first = torch::autograd::grad({y.sum()}, {x}, {}, true, /*create_graph=*/true)[0];
    return torch::autograd::grad({first.pow(2).sum()}, {x, block.w1}, {}, true);
  };
  const auto plain = second(block(x));
  const OperatorPolicy policy = save_matmuls() | OperatorPolicy{"tanh"};
  const at::Tensor y = checkpoint(with_policy(policy, {.reuse = true}), block, x);
  EXPECT_TRUE(same_bits(second(y), plain));
  EXPECT_TRUE(same_bits(second(y), plain));
  EXPECT_TRUE(contains(
      error_of<DeterminismError>([&] { second(checkpoint(with_policy(policy), block, x)); }),
      "set SelectiveOptions::reuse"));
}

TEST(SelectiveGradients, AutocastIsReplayedUnderAPolicy) {
  const Block block;
  const at::Tensor x = leaf({4, 8});
  const auto in_bf16 = [&](auto&& run) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const at::Tensor y = run().to(at::kFloat).sum();
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    return y;
  };
  const auto plain =
      gradients_of([&] { return in_bf16([&] { return block(x); }); }, block.leaves(x));
  EXPECT_TRUE(same_bits(gradients_of(
                            [&] {
                              return in_bf16([&] {
                                return checkpoint(with_policy(save_matmuls()), block, x);
                              });
                            },
                            block.leaves(x)),
                        plain));
}

TEST(SelectiveGradients, ThreadsShareAPolicyAndKeepApart) {
  const OperatorPolicy policy = save_matmuls() | save_largest_cost_per_byte(Bytes{4096});
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      const Block block;
      const at::Tensor x = leaf({4, 8});
      const auto step = [&](auto&& run) {
        run().sum().backward();
        return testing::take_gradients(block.leaves(x));
      };
      const auto plain = step([&] { return block(x); });
      for (int run = 0; run < 20; ++run) {
        wrong += !same_bits(step([&] { return checkpoint(with_policy(policy), block, x); }), plain);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// Random chains of operators under a random set of kept ones.
RC_GTEST_PROP(SelectiveProperty, GradientsOfRandomChainsAreThePlainOnes, ()) {
  const auto steps =
      *rc::gen::container<std::vector<int>>(*rc::gen::inRange(1, 12), rc::gen::inRange(0, 9));
  const auto kept = *rc::gen::container<std::vector<bool>>(64, rc::gen::arbitrary<bool>());
  const at::Tensor x = leaf({4, 4}), w = leaf({4, 4});
  const auto chain = [&](at::Tensor t) {
    for (const int step : steps) {
      switch (step) {
        case 0:
          t = t.mm(w);
          break;
        case 1:
          t = t.sin();
          break;
        case 2:
          t = t.t() * w;
          break;
        case 3:
          t = at::dropout(t, 0.3, true);
          break;
        case 4:
          t = at::softmax(t, -1);
          break;
        case 5:
          t = (t + 1).relu_();
          break;
        case 6:
          t = std::get<0>(t.max(1, true)) * w;
          break;
        case 7:
          t = at::layer_norm(t, {4});
          break;
        default:
          t = t.contiguous().view({2, 8}).tanh().view({4, 4});
          break;
      }
    }
    return t;
  };
  const auto plain = gradients_of([&] { return chain(x); }, {x, w});
  std::atomic<std::size_t> asked = 0;
  const auto options = with_policy([&](const SelectiveCheckpointContext&) {
    return kept[asked++ % kept.size()] ? CheckpointPolicy::kPreferSave : kRecompute;
  });
  RC_ASSERT(same_bits(gradients_of([&] { return checkpoint(options, chain, x); }, {x, w}), plain));
}

}  // namespace
}  // namespace reprise
