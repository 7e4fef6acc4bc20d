// Steps together with everything else of the library, with one another, and with what lives longer
// than they do.

#include <gmock/gmock.h>
#include <reprise/checkpoint.h>
#include <reprise/offload.h>
#include <reprise/saved_tensor_hooks.h>
#include <reprise/selective.h>
#include <reprise/store.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <filesystem>

#include "tests/tape/testing.h"

namespace reprise {
namespace {

using at::Tensor;
using testing::is_right_when_all_is_dropped;
using testing::leaf;
using testing::paranoid;
using testing::same_bits;
using testing::Tensors;

Tensor block(const Tensor& x, const Tensor& w) {
  return at::dropout(at::layer_norm(x.mm(w).tanh(), {16}), 0.2, true).exp().mul(2).add_(1).log() +
         x;
}

class Composition : public ::testing::Test {
 protected:
  Tensors leaves() const { return {x_, w_}; }
  Tensor plain_blocks() const { return block(block(block(x_, w_), w_), w_); }
  // Right when everything is dropped, and under less than the plain step takes.
  template <class F>
  void expect_right(const F& forward) {
    EXPECT_TRUE(is_right_when_all_is_dropped(forward, leaves()));
    const Bytes limit =
        testing::limit_at(0.85, [&] { testing::plain_gradients(forward, leaves()); });
    MemoryBudget budget(limit,
                        {.heuristic = Heuristic::kLru, .min_bytes = Bytes(1), .verify = true});
    EXPECT_TRUE(same_bits(testing::gradients_under(budget, forward, leaves()),
                          testing::plain_gradients(forward, leaves())));
    EXPECT_LE(budget.report().peak, limit);
  }
  const Tensor x_ = leaf({16, 16}), w_ = leaf({16, 16});
};

TEST_F(Composition, ARegionInsideAStep) {
  expect_right([&] { return checkpoint(block, checkpoint(block, block(x_, w_), w_), w_); });
  expect_right([&] {
    return checkpoint(
        [](const Tensor& x, const Tensor& w) { return checkpoint(block, block(x, w), w); }, x_, w_);
  });
}

TEST_F(Composition, ARegionInsideAStepGivesThePlainGradients) {
  MemoryBudget budget(GiB(64), paranoid());
  const auto regions = [&] { return checkpoint(block, checkpoint(block, x_, w_), w_); };
  EXPECT_TRUE(
      same_bits(testing::gradients_under(budget, regions, leaves()),
                testing::plain_gradients([&] { return block(block(x_, w_), w_); }, leaves())));
}

TEST_F(Composition, ASelectiveRegionInsideAStep) {
  for (const OperatorPolicy& policy : {save_matmuls(), save_all_but_cheap()}) {
    CheckpointOptions options;
    options.context = selective(policy);
    expect_right([&] { return checkpoint(options, block, block(x_, w_), w_).sin(); });
  }
}

TEST_F(Composition, AnOffloadScopeInsideAStep) {
  const DiskStoreOptions disk{.folder = std::filesystem::temp_directory_path()};
  for (const auto& store : {memory_store(), disk_store(disk)}) {
    const auto forward = [&] {
      const Tensor y = block(x_, w_);
      const OffloadScope scope(store, Bytes(1));
      return block(block(y, w_), w_);
    };
    EXPECT_TRUE(is_right_when_all_is_dropped(forward, leaves()));
  }
}

// A column of a large tensor that was dropped is copied to be kept, and not parked.
TEST_F(Composition, AnOffloadScopeSavesAPartOfWhatWasDropped) {
  const auto store = memory_store();
  EXPECT_TRUE(is_right_when_all_is_dropped(
      [&] {
        const Tensor y = block(x_, w_);
        const OffloadScope scope(store, {.min_bytes = Bytes(y.element_size() * y.size(0) + 1)});
        return y.narrow(1, 0, 1).sin() + y.sum();
      },
      leaves()));
}

TEST_F(Composition, HooksOfTheProgramInsideAStep) {
  expect_right([&] {
    const SavedTensorHooksScope scope([](const Tensor& t) { return t.clone(); },
                                      [](const Tensor& t) { return t.mul(1); });
    return plain_blocks();
  });
  expect_right([&] {
    const SavedTensorHooksScope scope([](const Tensor& t) { return t.to(at::kDouble); },
                                      [](const Tensor& t) { return t.to(at::kFloat); });
    return plain_blocks();
  });
}

TEST_F(Composition, AStepInsideARegionsFunction) {
  MemoryBudget budget(GiB(64), paranoid());
  const auto managed = [&](const Tensor& x, const Tensor& w) {
    auto step = budget.step();
    const Tensor y = block(x, w).sin();
    step.finish();
    return y;
  };
  const auto with = [&] { return checkpoint(managed, checkpoint(managed, x_, w_), w_); };
  const auto without = [&] { return block(block(x_, w_).sin(), w_).sin(); };
  EXPECT_TRUE(same_bits(testing::plain_gradients(with, leaves()),
                        testing::plain_gradients(without, leaves())));
  EXPECT_GT(budget.report().replayed, 0);
  MemoryBudget outer(GiB(64), paranoid());
  EXPECT_TRUE(same_bits(testing::gradients_under(outer, with, leaves()),
                        testing::plain_gradients(without, leaves())));
}

TEST_F(Composition, OfTwoBudgetsTheSmallerBinds) {
  const auto f = [&] { return plain_blocks(); };
  const Tensors plain = testing::plain_gradients(f, leaves());
  const Bytes limit = testing::limit_at(0.85, [&] { testing::plain_gradients(f, leaves()); });
  MemoryBudget small(limit, {.heuristic = Heuristic::kLru, .min_bytes = Bytes(1)});
  MemoryBudget large(GiB(64), {.min_bytes = Bytes(1)});
  for (const bool small_is_inside : {true, false}) {
    MemoryBudget& outer = small_is_inside ? large : small;
    MemoryBudget& inner = small_is_inside ? small : large;
    auto step = outer.step();
    EXPECT_TRUE(same_bits(testing::gradients_under(inner, f, leaves()), plain));
    EXPECT_LE(inner.report().peak, limit);
    step.finish();
    EXPECT_LE(outer.report().peak, limit);
    // Masks go as bits where that is quicker.
    EXPECT_GT(outer.report().dropped + outer.report().packed + inner.report().dropped +
                  inner.report().packed,
              0);
  }
}

TEST_F(Composition, AnInnerStepMayDropWhatTheOuterOneMade) {
  // Not the steps': what is compared is read past operators.
  const Tensors plain{at::ones({64, 64}).mul(2).exp().sin()};
  const Bytes before = live_bytes();
  {
    MemoryBudget large(GiB(64), {.min_bytes = Bytes(1)});
    auto outer = large.step();
    const Tensor ones = at::ones({64, 64}), first = ones.mul(2), second = first.exp();
    MemoryBudget small(live_bytes() + KiB(4), {.min_bytes = Bytes(1)});
    {
      auto inner = small.step();
      EXPECT_TRUE(same_bits(Tensors{second.sin()}, plain));
    }
    outer.finish();
    EXPECT_TRUE(same_bits(second, at::full({64, 64}, 2.).exp()));
  }
  EXPECT_EQ(live_bytes(), before);
}

TEST_F(Composition, BackwardAfterTheScope) {
  const Tensors plain = testing::plain_gradients([&] { return plain_blocks(); }, leaves());
  for (const bool finishes : {true, false}) {
    MemoryBudget budget(GiB(64), paranoid());
    at::manual_seed(7);
    Tensor loss;
    {
      auto step = budget.step();
      loss = plain_blocks().sum();
      if (finishes) step.finish();
    }
    loss.backward();
    EXPECT_TRUE(same_bits(testing::take_gradients(leaves()), plain));
    EXPECT_GT(budget.report().dropped, 0);
  }
}

TEST_F(Composition, BackwardInALaterStep) {
  const Tensors plain = testing::plain_gradients([&] { return plain_blocks(); }, leaves());
  MemoryBudget budget(GiB(64), paranoid());
  at::manual_seed(7);
  Tensor loss;
  {
    auto step = budget.step();
    loss = plain_blocks().sum();
  }
  auto step = budget.step();
  loss.backward();
  step.finish();
  EXPECT_TRUE(same_bits(testing::take_gradients(leaves()), plain));
}

TEST_F(Composition, WhatOutlivesTheStepAndDoesNotFitSaysSo) {
  const Bytes before = live_bytes();
  {
    Tensors kept;
    const Tensor x = at::rand({64, 64});
    MemoryBudget budget(live_bytes() + KiB(70), {.min_bytes = Bytes(1)});
    {
      auto step = budget.step();
      for (int i = 0; i < 8; ++i) kept.push_back((x * (i + 1)).sin());
      testing::error_of<BudgetError>([&] { step.finish(); });
    }
    int gone = 0;
    for (int i = 0; i < 8; ++i) {
      try {
        EXPECT_TRUE(same_bits(kept[static_cast<std::size_t>(i)].clone(), (x * (i + 1)).sin()));
      } catch (const c10::Error& error) {
        EXPECT_THAT(error.what(), ::testing::HasSubstr("MemoryBudget"));
        ++gone;
      }
    }
    EXPECT_GT(gone, 0);
    EXPECT_LT(gone, 8);
    // Written whole or not, what is gone is an error; what is made anew is not.
    auto step = budget.step();
    EXPECT_NO_THROW(x.sin().sum().item<float>());
  }
  EXPECT_EQ(live_bytes(), before);
}

TEST_F(Composition, AnExceptionInForwardOrInBackwardEndsTheStep) {
  const auto f = [&] { return plain_blocks(); };
  const Tensors plain = testing::plain_gradients(f, leaves());
  const Bytes before = live_bytes();
  for (const bool in_backward : {false, true}) {
    MemoryBudget budget(GiB(64), paranoid());
    Tensor outlives;
    EXPECT_THROW(
        {
          auto step = budget.step();
          outlives = x_.detach().exp();
          Tensor y = f();
          if (!in_backward) throw std::runtime_error("forward");
          y.register_hook([](const Tensor&) { throw std::runtime_error("backward"); });
          (y.sin() * y).sum().backward();
        },
        std::runtime_error);
    EXPECT_TRUE(same_bits(outlives, x_.exp()));
    outlives = Tensor();
    testing::take_gradients(leaves());
    EXPECT_EQ(live_bytes(), before);
    EXPECT_TRUE(same_bits(testing::gradients_under(budget, f, leaves()), plain));
  }
}

// torch.utils.checkpoint detaches all that it recomputes there.
TEST_F(Composition, WhatHooksDetachInBackwardIsDropped) {
  const Tensor x = leaf({1 << 18});
  MemoryBudget budget(live_bytes() + MiB(8));
  auto step = budget.step();
  Tensors detached;
  const Tensor y = x.sin();
  y.register_hook([&](const Tensor& gradient) {
    Tensor made = gradient + 1;
    for (int i = 0; i < 16; ++i) detached.push_back((made = made.sin()).detach());
  });
  y.sum().backward();
  EXPECT_GE(budget.report().dropped + budget.report().packed, 8);
  EXPECT_TRUE(at::equal(detached[0], at::full({1 << 18}, 2.0).sin()));
  detached.clear();
  step.finish();
  EXPECT_TRUE(same_bits(x.grad(), x.detach().cos()));
}

TEST_F(Composition, ListsOfTensorsThatTorchScriptHasMade) {
  auto program = torch::jit::compile(R"(
def chosen(x, w):
    y = x * w + x
    y[y < 1.0] = 2.0
    z = y * w
    return z[z > 0.5] * z[z > 0.5].cos()
)");
  EXPECT_TRUE(is_right_when_all_is_dropped(
      [&] { return program->run_method("chosen", x_, w_).toTensor(); }, leaves()));
}

}  // namespace
}  // namespace reprise
