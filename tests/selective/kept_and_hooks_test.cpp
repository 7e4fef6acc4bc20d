// Tests of SelectiveOptions::respect_saved_tensors_hooks: kept results go through the hook scopes of
// the program, and nothing of them stays beside.

#include <gmock/gmock.h>
#include <reprise/error.h>
#include <reprise/offload.h>
#include <reprise/saved_tensor_hooks.h>
#include <reprise/store.h>

#include "tests/selective/kept_rightly.h"

namespace reprise {
namespace {

using at::Tensor;
using testing::Block;
using testing::contains;
using testing::disk;
using testing::error_of;
using testing::gradients_of;
using testing::leaf;
using testing::same_bits;
using testing::StorageWatch;
using testing::Tensors;
using testing::with_policy;

CheckpointOptions respecting(OperatorPolicy policy, SelectiveOptions options = {}) {
  options.respect_saved_tensors_hooks = true;
  return with_policy(std::move(policy), std::move(options));
}

// Hooks that count, fail when they are told to, and keep the tensor or a copy of it.
class Hooks {
 public:
  struct Packed {
    explicit Packed(Hooks& of, Tensor value) : hooks(of), tensor(std::move(value)) {
      ++hooks.alive;
    }
    ~Packed() { --hooks.alive; }
    Packed(const Packed&) = delete;
    Packed& operator=(const Packed&) = delete;
    Hooks& hooks;
    Tensor tensor;
  };

  explicit Hooks(bool copies) : copies_(copies) {}

  SavedTensorHooksScope scope() {
    return SavedTensorHooksScope(
        [this](const Tensor& tensor) {
          if (packs++ == fail_at_pack) throw std::runtime_error("no room");
          return std::make_unique<Packed>(*this, copies_ ? tensor.clone() : tensor);
        },
        [this](const std::unique_ptr<Packed>& packed) {
          if (unpacks++ == fail_at_unpack) throw std::runtime_error("gone");
          return packed->tensor;
        });
  }

  int packs = 0, unpacks = 0, alive = 0;
  int fail_at_pack = -1, fail_at_unpack = -1;

 private:
  const bool copies_;
};

template <class F>
Tensor loss_under(Hooks& hooks, const CheckpointOptions& options, const F& f, const Tensor& x) {
  const auto scope = hooks.scope();
  return checkpoint(options, f, x).sum();
}
template <class F>
Tensors step_under(Hooks& hooks, const CheckpointOptions& options, const F& f, const Tensor& x,
                   const Tensors& leaves) {
  torch::manual_seed(2016);
  loss_under(hooks, options, f, x).backward();
  return testing::take_gradients(leaves);
}

TEST(KeptAndHooks, AreShownOnRequestAndByDefaultAreNot) {
  const Block block;
  const Tensor x = leaf({4, 8});
  const auto packs = [&](const CheckpointOptions& options) {
    Hooks hooks(/*copies=*/false);
    const auto scope = hooks.scope();
    checkpoint(options, block, x).sum().backward();
    return hooks.packs;
  };
  // The region's argument is always shown.
  EXPECT_EQ(packs(with_policy(save_matmuls())), 1);
  EXPECT_FALSE(SelectiveOptions().respect_saved_tensors_hooks);
  EXPECT_EQ(packs(respecting(save_matmuls())), 1 + 2);
}

TEST(KeptAndHooks, AnOffloadScopeTakesTheirBytesOutOfMemory) {
  const Tensor x = leaf({512, 512}), w = leaf({512, 512});
  const auto f = [&](const Tensor& t) { return t.mm(w).sin().mm(w).cos(); };
  const auto plain = gradients_of([&] { return f(x); }, {x, w});
  const std::int64_t size = x.nbytes();
  const auto step = [&](const CheckpointOptions& options, std::int64_t stays) {
    const auto store = disk();
    const Bytes before = live_bytes();
    Tensor y;
    {
      const OffloadScope scope(store);
      y = checkpoint(options, f, x).sum();
    }
    store->flush();
    EXPECT_NEAR(static_cast<double>((live_bytes() - before).count), static_cast<double>(stays),
                16384);
    EXPECT_EQ(store->statistics().parked.count, 2 * size - stays);
    y.backward();
    EXPECT_EQ(store->statistics().count, 0);
    EXPECT_TRUE(same_bits(testing::take_gradients({x, w}), plain));
    y.reset();
    EXPECT_LT((live_bytes() - before).count, 16384);
  };
  step(with_policy(save_matmuls()), 2 * size);
  step(respecting(save_matmuls()), 0);
}

// torch::nn::Linear adds its bias in this way, if the input has three dimensions.
TEST(KeptAndHooks, AResultThatIsChangedAtOnceIsShownAfterTheChange) {
  const Tensor x = leaf({256, 256}), w = leaf({256, 256});
  for (const bool adds : {true, false}) {
    const auto f = [&](const Tensor& t) {
      const Tensor product = t.mm(w);
      if (adds) {
        product.add_(1);
      } else {
        product.sub_(1);
      }
      return product.mul(2).exp();
    };
    const auto plain = gradients_of([&] { return f(x); }, {x, w});
    const auto store = disk();
    testing::OperatorCounts counts;
    const Bytes before = live_bytes();
    Tensor y;
    {
      const OffloadScope scope(store);
      y = checkpoint(respecting(save_matmuls()), f, x).sum();
    }
    store->flush();
    EXPECT_LT((live_bytes() - before).count, 16384);
    EXPECT_EQ(store->statistics().parked.count, static_cast<std::int64_t>(x.nbytes()));
    y.backward();
    EXPECT_TRUE(same_bits(testing::take_gradients({x, w}), plain));
    // One in forward, two for gradients.
    EXPECT_EQ(counts["mm"], 3);
  }
}

TEST(KeptAndHooks, GradientsAreThePlainOnesWhateverStandsAroundAndHoweverARunEnds) {
  const Block block;
  const Tensor x = leaf({4, 8});
  const auto plain = gradients_of([&] { return block(block(x)); }, block.leaves(x));
  for (const bool copies : {false, true}) {
    for (const auto stop : {EarlyStop::kNever, EarlyStop::kWhenCheaper, EarlyStop::kAlways}) {
      CheckpointOptions inner = respecting(save_all_but_cheap());
      inner.early_stop = stop;
      for (CheckpointOptions outer : {CheckpointOptions(), inner, with_policy(every_nth("mm", 2)),
                                      respecting(save_all_but({"tanh"}))}) {
        outer.early_stop = stop;
        const auto f = [&](const Tensor& t) { return block(checkpoint(inner, block, t)); };
        Hooks hooks(copies);
        EXPECT_TRUE(same_bits(step_under(hooks, outer, f, x, block.leaves(x)), plain));
        EXPECT_GT(hooks.packs, 2);
        EXPECT_EQ(hooks.alive, 0);
      }
    }
  }
}

TEST(KeptAndHooks, FurtherBackwardsAndSecondDerivativesUnpackAgain) {
  const Tensor x = leaf({4, 8});
  const Block block;
  const auto second = [&](const Tensor& y) {
    const auto first = torch::autograd::grad({y.sum()}, {x}, {}, true, /*create_graph=*/true)[0];
    return torch::autograd::grad({first.pow(2).sum()}, {x, block.w1}, {}, true);
  };
  const auto plain = second(block(x));
  for (const bool copies : {false, true}) {
    Hooks hooks(copies);
    {
      const Tensor y = loss_under(
          hooks, respecting(save_matmuls() | OperatorPolicy{"tanh"}, {.reuse = true}), block, x);
      EXPECT_TRUE(same_bits(second(y), plain));
      EXPECT_TRUE(same_bits(second(y), plain));
    }
    EXPECT_EQ(hooks.alive, 0);
    Tensor y = loss_under(hooks, respecting(save_matmuls()), block, x);
    y.backward({}, /*retain_graph=*/true);
    // The argument stays with the graph.
    EXPECT_EQ(hooks.alive, 1);
    EXPECT_TRUE(contains(error_of<DeterminismError>([&] { y.backward(); }),
                         "Trying to backward an extra time"));
    y.reset();
    EXPECT_EQ(hooks.alive, 0);
    testing::take_gradients(block.leaves(x));
  }
}

TEST(KeptAndHooks, AnErrorInAnyPackOrUnpackLeavesNothingBehindAndTheNextStepWorks) {
  const Block block;
  const Tensor x = leaf({4, 8});
  const auto plain = gradients_of([&] { return block(x); }, block.leaves(x));
  Hooks hooks(/*copies=*/true);
  const auto step = [&] {
    hooks.packs = hooks.unpacks = 0;
    return step_under(hooks, respecting(save_matmuls()), block, x, block.leaves(x));
  };
  const Bytes before = live_bytes();
  for (int at = 0; at < 3; ++at) {
    for (int* const fault : {&hooks.fail_at_pack, &hooks.fail_at_unpack}) {
      *fault = at;
      EXPECT_THROW(step(), std::runtime_error) << at;
      testing::take_gradients(block.leaves(x));
      EXPECT_EQ(hooks.alive, 0);
      EXPECT_EQ(live_bytes(), before);
      *fault = -1;
      EXPECT_TRUE(same_bits(step(), plain));
      EXPECT_EQ(hooks.packs, 3);
    }
  }
}

TEST(KeptAndHooks, AnUnpackThatFailedMayBeTriedAgain) {
  const Block block;
  const Tensor x = leaf({4, 8});
  const auto plain = gradients_of([&] { return block(x); }, block.leaves(x));
  Hooks hooks(/*copies=*/false);
  Tensor y = loss_under(hooks, respecting(save_matmuls()), block, x);
  hooks.fail_at_unpack = 2;
  EXPECT_THROW(y.backward({}, /*retain_graph=*/true), std::runtime_error);
  testing::take_gradients(block.leaves(x));
  y.backward();
  EXPECT_TRUE(same_bits(testing::take_gradients(block.leaves(x)), plain));
}

TEST(KeptAndHooks, TheInnermostScopeOfTheProgramIsAskedAlsoInsideTheFunction) {
  const Tensor x = leaf({4, 4}), w = leaf({4, 4});
  Hooks outer(/*copies=*/false), inner(/*copies=*/false);
  const auto f = [&](const Tensor& t) {
    Tensor y = t.mm(w).sin();
    {
      const auto scope = inner.scope();
      y = y.mm(w);
    }
    const NoSavedTensorHooksScope none;
    return y.mm(w);
  };
  const auto plain = gradients_of([&] { return f(x); }, {x, w});
  inner.packs = 0;
  Tensor y = loss_under(outer, respecting(save_matmuls()), f, x);
  // The argument and the first product; the second one, beside both factors.
  EXPECT_EQ(outer.packs, 2);
  EXPECT_EQ(inner.packs, 3);
  y.backward();
  EXPECT_TRUE(same_bits(testing::take_gradients({x, w}), plain));
}

TEST(KeptAndHooks, AResultThatIsChangedLaterIsRecomputedOrRefused) {
  const Tensor x = leaf({4, 4});
  const auto f = [](const Tensor& t) {
    const Tensor kept = t.sin();
    const Tensor read = kept.sum();
    return kept.mul_(2).exp() * read;
  };
  const auto plain = gradients_of([&] { return f(x); }, {x});
  const auto step = [&](CheckpointPolicy policy) {
    const auto options = respecting(
        [policy](const SelectiveCheckpointContext& call) {
          return call.is("sin") ? policy : CheckpointPolicy::kPreferRecompute;
        },
        {.allow_cache_entry_mutation = true});
    Hooks hooks(/*copies=*/false);
    return step_under(hooks, options, f, x, {x});
  };
  EXPECT_TRUE(same_bits(step(CheckpointPolicy::kPreferSave), plain));
  const std::string error = error_of<DeterminismError>([&] { step(CheckpointPolicy::kMustSave); });
  EXPECT_TRUE(contains(error, "aten::sin has been mutated"));
  EXPECT_FALSE(contains(error, "allow_cache_entry_mutation"));
}

TEST(KeptAndHooks, NewMemoryIsUnpackedForOneRunOnly) {
  const Tensor x = leaf({4, 4});
  const auto f = [](const Tensor& t) { return (t * torch::zeros({4, 4}).add_(3)).exp(); };
  const auto plain = gradients_of([&] { return f(x); }, {x});
  Hooks hooks(/*copies=*/false);
  Tensor y = loss_under(hooks, respecting({"zeros"}, {.reuse = true}), f, x);
  EXPECT_EQ(hooks.packs, 2);
  for (int run = 0; run < 3; ++run) {
    y.backward({}, /*retain_graph=*/true);
    EXPECT_TRUE(same_bits(testing::take_gradients({x}), plain));
  }
}

TEST(KeptAndHooks, OffloadPoliciesKeepToTheirStore) {
  const Block block;
  const Tensor x = leaf({4, 8});
  const auto plain = gradients_of([&] { return block(x); }, block.leaves(x));
  const auto store = memory_store();
  Hooks hooks(/*copies=*/false);
  EXPECT_TRUE(same_bits(gradients_of(
                            [&] {
                              const auto scope = hooks.scope();
                              const Tensor y = checkpoint(
                                  respecting(offloading(save_matmuls()), {.store = store}), block,
                                  x);
                              EXPECT_EQ(store->statistics().count, 2);
                              return y;
                            },
                            block.leaves(x)),
                        plain));
  EXPECT_EQ(hooks.packs, 1);
}

struct Squared : torch::autograd::Function<Squared> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    const Tensor saved = x * 2;
    context->save_for_backward({saved});
    return x * x;
  }
  static Tensors backward(torch::autograd::AutogradContext* context, Tensors gradients) {
    return {context->get_saved_variables()[0] * gradients[0]};
  }
};

TEST(KeptAndHooks, AKeptFunctionsResultsAndSavedTensorsAreShown) {
  const Tensor x = leaf({4, 4});
  const auto f = [](const Tensor& t) { return reprise::apply<Squared>(t.exp()).sin(); };
  const auto plain = gradients_of([&] { return f(x); }, {x});
  for (const bool copies : {false, true}) {
    Hooks hooks(copies);
    const auto step = [&](const CheckpointOptions& options) {
      hooks.packs = 0;
      return step_under(hooks, options, f, x, {x});
    };
    EXPECT_TRUE(same_bits(step(with_policy({function_name<Squared>()})), plain));
    EXPECT_EQ(hooks.packs, 1);
    EXPECT_TRUE(same_bits(step(respecting({function_name<Squared>()})), plain));
    EXPECT_EQ(hooks.packs, 1 + 2);
    EXPECT_EQ(hooks.alive, 0);
  }
}

TEST(KeptAndHooks, TheirMemoryAndTheirGraphDieAsWithoutHooks) {
  const Tensor x = leaf({4, 4});
  std::optional<StorageWatch> watch;
  testing::GraphWatch graph;
  const auto options = respecting([&](const SelectiveCheckpointContext& call) {
    if (!call.is("exp")) return testing::kRecompute;
    watch.emplace(call.results()[0].toTensor());
    return testing::kSave;
  });
  Hooks hooks(/*copies=*/true);
  const auto f = [](const Tensor& t) { return t.exp().sin() * 2; };
  Tensor y = loss_under(hooks, options, f, x);
  EXPECT_FALSE(watch->alive());
  graph.add(y);
  y.backward({}, /*retain_graph=*/true);
  EXPECT_EQ(hooks.alive, 1);
  y.reset();
  EXPECT_EQ(hooks.alive, 0);
  EXPECT_GT(graph.seen(), 0u);
  EXPECT_THAT(graph.alive(), ::testing::IsEmpty());
}

}  // namespace
}  // namespace reprise
