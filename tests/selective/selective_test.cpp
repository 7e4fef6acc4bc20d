// Selective regions: what is kept and what is recomputed. The first half follows PyTorch's
// TestSelectiveActivationCheckpoint.

#include <reprise/error.h>
#include <torch/library.h>

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
using testing::OperatorCounts;
using testing::same_bits;
using testing::StorageWatch;
using testing::with_policy;

OperatorPolicy mm_by_function() {
  return [](const SelectiveCheckpointContext& call) { return call.is("mm") ? kSave : kRecompute; };
}
OperatorPolicy mm_by_bool() {
  return [](const SelectiveCheckpointContext& call) { return call.op() == "aten::mm"; };
}

TEST(Selective, KeptProductsAreNotRecomputedAndHoldTheirBytes) {
  const at::Tensor x = leaf({512, 512}), w = leaf({512, 512});
  const auto f = [&](const at::Tensor& t) { return t.mm(w).sin().cos(); };
  const std::int64_t size = x.nbytes();
  const auto run = [&](const CheckpointOptions* options, std::int64_t bytes, int products) {
    const Bytes before = live_bytes();
    OperatorCounts counts;
    const at::Tensor y = (options != nullptr ? checkpoint(*options, f, x) : f(x)).sum();
    EXPECT_NEAR(static_cast<double>((live_bytes() - before).count), static_cast<double>(bytes),
                8192);
    y.backward();
    // Two of them belong to backward.
    EXPECT_EQ(counts["mm"], products);
    testing::take_gradients({x, w});
  };
  run(nullptr, 2 * size, 3);
  const CheckpointOptions plain;
  run(&plain, 0, 4);
  for (const auto& policy : {OperatorPolicy{"mm"}, mm_by_function(), mm_by_bool()}) {
    const CheckpointOptions options = with_policy(policy);
    run(&options, size, 3);
  }
}

TEST(Selective, AViewOfAnIntegerTensorCanBeKept) {
  const at::Tensor x = leaf({2, 3});
  const auto f = [](const at::Tensor& t, const at::Tensor& integers) {
    return t.sin() * integers.view({2, 3});
  };
  const at::Tensor integers = at::arange(6);
  const auto plain = gradients_of([&] { return f(x, integers); }, {x});
  const auto options = with_policy(
      [](const SelectiveCheckpointContext& call) { return call.is("view") ? kSave : kRecompute; });
  EXPECT_TRUE(
      same_bits(gradients_of([&] { return checkpoint(options, f, x, integers); }, {x}), plain));
}

TEST(Selective, APolicyIsAskedInForwardOnly) {
  int asked = 0;
  const auto options = with_policy([&](const SelectiveCheckpointContext& call) {
    ++asked;
    return call.is("mm") ? kSave : kRecompute;
  });
  const Block block;
  const at::Tensor x = leaf({4, 8});
  const at::Tensor y = checkpoint(options, block, x).sum();
  const int in_forward = asked;
  EXPECT_EQ(in_forward, 5);  // mm, gelu, mm, tanh, mul
  y.backward();
  EXPECT_EQ(asked, in_forward);
}

TEST(Selective, KeptResultsDieWithTheGraphAndWithTheirUse) {
  const at::Tensor x = leaf({4, 4});
  std::optional<StorageWatch> watch;
  const auto options = with_policy([&](const SelectiveCheckpointContext& call) {
    if (!call.is("exp")) return kRecompute;
    watch.emplace(call.results()[0].toTensor());
    return kSave;
  });
  const auto f = [](const at::Tensor& t) { return t.exp().sin() * 2; };
  at::Tensor y = checkpoint(options, f, x).sum();
  EXPECT_TRUE(watch->alive());
  y.reset();
  EXPECT_FALSE(watch->alive());

  y = checkpoint(options, f, x).sum();
  EXPECT_TRUE(watch->alive());
  y.backward({}, /*retain_graph=*/true);
  EXPECT_FALSE(watch->alive());
}

TEST(Selective, AKeptResultThatWasChangedInPlaceIsAnError) {
  const at::Tensor x = leaf({4, 4});
  const auto f = [](const at::Tensor& t) {
    const at::Tensor kept = t.sin();
    kept.mul_(2);
    return kept.exp();
  };
  const auto policy = [](const SelectiveCheckpointContext& call) {
    return call.is("sin") ? kSave : kRecompute;
  };
  const auto step = [&](const SelectiveOptions& options) {
    checkpoint(with_policy(policy, options), f, x).sum().backward();
  };
  EXPECT_TRUE(contains(error_of<DeterminismError>([&] { step({}); }),
                       "the kept result of aten::sin has been mutated"));
  EXPECT_NO_THROW(step({.allow_cache_entry_mutation = true}));
}

TEST(Selective, AnOperatorWithSeveralResultsIsKeptWhole) {
  const at::Tensor x = leaf({4, 5});
  const auto f = [](const at::Tensor& t) {
    const auto [variance, mean] = at::var_mean(t.sin(), at::IntArrayRef({1}));
    return variance.exp() * mean;
  };
  const auto plain = gradients_of([&] { return f(x); }, {x});
  OperatorCounts counts;
  EXPECT_TRUE(same_bits(
      gradients_of([&] { return checkpoint(with_policy({"var_mean"}), f, x); }, {x}), plain));
  EXPECT_EQ(counts["var_mean"], 1);
}

std::atomic<int> runs_of_counted = 0;
std::tuple<at::Tensor, std::int64_t> counted_kernel(const at::Tensor& x) {
  return {x.sin(), ++runs_of_counted};
}

TEST(Selective, AResultThatIsNoTensorIsKept) {
  runs_of_counted = 0;
  torch::Library library(torch::Library::FRAGMENT, "reprise_counted", std::nullopt, __FILE__,
                         __LINE__);
  library.def("sin_and_count(Tensor x) -> (Tensor, int)");
  torch::Library kernels(torch::Library::IMPL, "reprise_counted", c10::DispatchKey::CPU, __FILE__,
                         __LINE__);
  kernels.impl("sin_and_count", &counted_kernel);
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow("reprise_counted::sin_and_count", "")
                      .typed<std::tuple<at::Tensor, std::int64_t>(const at::Tensor&)>();
  std::vector<std::int64_t> seen;
  const at::Tensor x = leaf({3}), constant = at::ones({3});
  const auto f = [&](const at::Tensor& t) {
    const auto [sine, count] = op.call(constant);
    seen.push_back(count);
    return (t * sine).exp();
  };
  checkpoint(with_policy({"reprise_counted::sin_and_count"}), f, x).sum().backward();
  EXPECT_EQ(seen, (std::vector<std::int64_t>{1, 1}));
  EXPECT_EQ(runs_of_counted, 1);
}

TEST(Selective, ARegionCanBeRecomputedOnce) {
  const Block block;
  const at::Tensor x = leaf({4, 8});
  const at::Tensor y = checkpoint(with_policy(mm_by_function()), block, x).sum();
  y.backward({}, /*retain_graph=*/true);
  EXPECT_TRUE(contains(error_of<DeterminismError>([&] { y.backward(); }),
                       "Trying to backward an extra time: the kept result of aten::mm"));
}

TEST(Selective, AnOperatorThatWritesInPlaceIsRecomputedOrRefused) {
  const at::Tensor x = leaf({4, 4});
  const auto f = [](const at::Tensor& t) { return t.sin().relu_().exp(); };
  const auto plain = gradients_of([&] { return f(x); }, {x});
  const auto all = [](CheckpointPolicy policy) {
    return with_policy([policy](const SelectiveCheckpointContext& call) {
      return call.is("relu_") ? policy : kRecompute;
    });
  };
  EXPECT_TRUE(same_bits(
      gradients_of([&] { return checkpoint(all(CheckpointPolicy::kPreferSave), f, x); }, {x}),
      plain));
  EXPECT_TRUE(contains(error_of<UsageError>([&] { checkpoint(all(kSave), f, x); }),
                       "kMustSave of aten::relu_, which changes its arguments in place"));
  EXPECT_TRUE(same_bits(gradients_of([&] { return checkpoint(f, x); }, {x}), plain));
}

TEST(Selective, ARouterThatChoosesOtherwiseIsAnErrorThatNamesTheOperator) {
  const at::Tensor x = leaf({6, 8});
  const std::vector<at::Tensor> experts{leaf({8, 8}), leaf({8, 8})};
  int run = 0;
  const auto mixture = [&](const at::Tensor& t) {
    // Four tokens to the first expert in forward, two in the recomputation.
    const at::Tensor scores = at::arange(6).lt(run++ == 0 ? 4 : 2);
    const at::Tensor chosen = scores.nonzero().squeeze(1);
    return t.index_select(0, chosen).mm(experts[0]).sin().sum();
  };
  const auto step = [&](const CheckpointOptions& options) {
    run = 0;
    checkpoint(options, mixture, x).backward();
  };
  const std::string without = error_of<DeterminismError>([&] { step(with_policy({"gelu"})); });
  EXPECT_TRUE(contains(without,
                       "operator call 3 is aten::squeeze.dim in the recomputation and has "
                       "arguments of other shapes in forward"));
  EXPECT_TRUE(contains(error_of<DeterminismError>([&] { step(with_policy({"mm"})); }),
                       "The kept result of aten::mm does not fit"));
  // Kept choices make the recomputation follow forward.
  EXPECT_NO_THROW(step(with_policy({"nonzero"})));
}

TEST(Selective, AnErrorInThePolicyPassesThroughAndTheNextStepWorks) {
  struct Mine : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  const Block block;
  const at::Tensor x = leaf({4, 8});
  const auto plain = gradients_of([&] { return block(x); }, block.leaves(x));
  const Bytes before = live_bytes();
  for (int at = 0; at < 5; ++at) {
    int asked = 0;
    const auto options = with_policy([&](const SelectiveCheckpointContext&) {
      if (asked++ == at) throw Mine("no");
      return kSave;
    });
    EXPECT_THROW(checkpoint(options, block, x), Mine);
    EXPECT_EQ(live_bytes(), before);
  }
  EXPECT_TRUE(
      same_bits(gradients_of([&] { return checkpoint(with_policy(save_matmuls()), block, x); },
                             block.leaves(x)),
                plain));
}

TEST(Selective, GroupsAndDebugWorkWithAPolicy) {
  const at::Tensor x = leaf({4, 8}), z = leaf({4, 8});
  const Block block;
  CheckpointOptions options = with_policy(save_matmuls());
  options.debug = true;
  const auto f = [&](const at::Tensor& a, const at::Tensor& b) {
    return std::pair(block(a), block(b));
  };
  GraphExecGroup group;
  OperatorCounts counts;
  const auto [y1, y2] = checkpoint(options, f, x, z);
  {
    GraphExecGroup::Scope scope(group);
    const auto first = torch::autograd::grad({y1.sum()}, {x}, {}, true);
    const auto second = torch::autograd::grad({y2.sum()}, {z});
    EXPECT_TRUE(first[0].defined() && second[0].defined());
  }
  EXPECT_EQ(counts["gelu"], 4);
  EXPECT_EQ(counts["mm"], 4 + 4);
}

OperatorPolicy prefer(std::string op) {
  return [op = std::move(op)](const SelectiveCheckpointContext& call) {
    return call.is(op) ? CheckpointPolicy::kPreferSave : kRecompute;
  };
}

TEST(Selective, AListMustBeKeptAsItWasReturned) {
  const at::Tensor x = leaf({4, 4});
  const auto f = [](const at::Tensor& t) {
    const at::Tensor kept = t.sin();
    const at::Tensor read = kept.sum();
    return kept.mul_(2).exp() * read;
  };
  const std::string error =
      error_of<DeterminismError>([&] { checkpoint(with_policy({"sin"}), f, x).sum().backward(); });
  EXPECT_TRUE(contains(error, "the kept result of aten::sin has been mutated"));
  EXPECT_TRUE(contains(error_of<UsageError>([&] { checkpoint(with_policy({"mul_"}), f, x).sum(); }),
                       "which changes its arguments in place"));
}

TEST(Selective, TheContextsOfOneRegionAreThoseThatSelectiveMakes) {
  const at::Tensor x = leaf({16, 16}), w = leaf({16, 16});
  const auto f = [&](const at::Tensor& t) { return t.mm(w).sin().cos(); };
  const auto plain = gradients_of([&] { return f(x); }, {x, w});
  for (const auto& policy : {OperatorPolicy{"mm"}, mm_by_function()}) {
    CheckpointOptions options;
    int made = 0;
    options.context = [&] {
      ++made;
      return create_selective_checkpoint_contexts(policy);
    };
    OperatorCounts counts;
    EXPECT_TRUE(same_bits(gradients_of([&] { return checkpoint(options, f, x); }, {x, w}), plain));
    EXPECT_EQ(made, 1);
    // Two products belong to backward.
    EXPECT_EQ(counts["mm"], 3);
    // As one sine does.
    EXPECT_EQ(counts["sin"], 3);
  }
  const RegionContexts contexts = create_selective_checkpoint_contexts(OperatorPolicy{"mm"});
  EXPECT_TRUE(contexts.forward && contexts.recompute && contexts.on_save && contexts.recomputed);
}

TEST(Selective, WhatMayBeRecomputedIsRatherThanUsedAfterAChangeInPlace) {
  const at::Tensor x = leaf({4, 4});
  const auto f = [](const at::Tensor& t) {
    const at::Tensor kept = t.sin();
    const at::Tensor read = kept.sum();
    return kept.mul_(2).exp() * read;
  };
  const auto plain = gradients_of([&] { return f(x); }, {x});
  OperatorCounts counts;
  EXPECT_TRUE(same_bits(
      gradients_of([&] { return checkpoint(with_policy(prefer("sin")), f, x); }, {x}), plain));
  EXPECT_EQ(counts["sin"], 2);
  // The result itself, changed by the caller.
  const auto change = [](const at::Tensor& y) { return at::mul(y.mul_(2), 3); };
  const auto g = [](const at::Tensor& t) { return t.cos().neg(); };
  const auto expected = gradients_of([&] { return change(g(x)); }, {x});
  EXPECT_TRUE(same_bits(
      gradients_of([&] { return change(checkpoint(with_policy(prefer("neg")), g, x)); }, {x}),
      expected));
}

}  // namespace
}  // namespace reprise
