// Tensors saved through autograd: that hooks manage them, that versions are checked as autograd
// checks them, and that changes are counted where regions ask for them.
#include "libtorch/autograd/saved_tensor.h"

#include "tests/libtorch/operators/hooks_testing.h"

namespace reprise::libtorch {
namespace {

using namespace reprise::testing;

TEST(WithoutHistory, KeepsMemoryAndVersionCounterButNoGraph) {
  const at::Tensor y = leaf().sin();
  const at::Tensor bare = without_history(y);
  EXPECT_FALSE(bare.requires_grad());
  EXPECT_EQ(bare.const_data_ptr(), y.const_data_ptr());
  bare.mul_(2);
  EXPECT_EQ(y._version(), 1);
  EXPECT_EQ(version_of(bare), 1u);
}

TEST(WithoutHistory, IsTheTensorItselfWhereThereIsNone) {
  const at::Tensor x = torch::ones(3);
  EXPECT_TRUE(without_history(x).is_same(x));
}

TEST(WeakNode, NamesTheOutputOfAnOperatorWhileItsGraphLives) {
  at::Tensor y = (leaf() * 2).split(2)[1];
  const WeakNode node(y);
  EXPECT_TRUE(contains(node.describe(), "output 1 of Split"));
  y.reset();
  EXPECT_EQ(node.describe(), "");
}

TEST(WeakNode, NamesNothingForALeaf) {
  EXPECT_EQ(WeakNode(leaf()).describe(), "");
  EXPECT_EQ(WeakNode().describe(), "");
}

TEST(SavedVersion, AcceptsAnUnchangedTensorAndNamesAChangedOne) {
  const at::Tensor x = torch::ones({2, 3});
  const SavedVersion version(x);
  version.check(x);
  x.add_(1);
  x.add_(1);
  const std::string text = error_of<c10::Error>([&] { version.check(x); });
  EXPECT_TRUE(contains(text,
                       "modified by an inplace operation: [CPUFloatType [2, 3]] is at version 2; "
                       "expected version 0 instead."));
}

TEST(SavedTensor, GivesBackTheVariableItWasGiven) {
  const at::Tensor x = leaf();
  EXPECT_TRUE(SavedTensor(x).unpack().is_same(x));
  const at::Tensor y = x.sin();
  EXPECT_TRUE(SavedTensor(y).unpack().is_same(y));
  EXPECT_EQ(SavedTensor(y).unpack().grad_fn(), y.grad_fn());
}

TEST(SavedTensor, MayBeUndefined) {
  EXPECT_FALSE(SavedTensor(at::Tensor()).unpack().defined());
  EXPECT_FALSE(SavedTensor().unpack().defined());
  EXPECT_EQ(SavedTensor(at::Tensor()).changes().value_or(0), 0);
}

TEST(SavedTensor, IsManagedByTheHooksInForce) {
  HookCounts counts;
  const at::Tensor x = leaf(), y = x.sin();
  {
    std::optional<SavedTensor> of_leaf, of_result;
    {
      const CountingHooks scope(counts);
      of_leaf.emplace(x);
      of_result.emplace(y);
    }
    EXPECT_EQ(counts.packs, 2);
    const at::Tensor again = of_result->unpack();
    EXPECT_EQ(again.grad_fn(), y.grad_fn());
    EXPECT_EQ(again.const_data_ptr(), y.const_data_ptr());
    EXPECT_TRUE(of_leaf->unpack().requires_grad());
    EXPECT_EQ(counts.unpacks, 2);
  }
  EXPECT_EQ(counts.alive, 0);
}

TEST(SavedTensor, CountsChangesInPlaceAndRefusesThem) {
  const at::Tensor y = leaf().sin();
  const SavedTensor saved(y);
  EXPECT_EQ(saved.changes(), 0);
  y.detach().mul_(2);
  EXPECT_EQ(saved.changes(), 1);
  EXPECT_TRUE(
      contains(error_of<c10::Error>([&] { saved.unpack(); }), "modified by an inplace operation"));
}

TEST(SavedTensor, GivesThePresentContentsOfAChangedTensorWhenAsked) {
  const at::Tensor y = leaf().sin();
  const SavedTensor saved(y);
  EXPECT_TRUE(same_bits(saved.unpack_changed(), y));
  y.detach().mul_(2);
  EXPECT_TRUE(same_bits(saved.unpack_changed(), y));
}

TEST(SavedTensor, DoesNotKnowOfChangesWhereAHookKeepsIt) {
  HookCounts counts;
  const at::Tensor y = leaf().sin();
  const CountingHooks scope(counts, Keeps::kCopy);
  const SavedTensor saved(y);
  const at::Tensor before = y.detach().clone();
  y.detach().mul_(2);
  EXPECT_EQ(saved.changes(), std::nullopt);
  EXPECT_TRUE(same_bits(saved.unpack(), before));
  EXPECT_TRUE(same_bits(saved.unpack_changed(), before));
}

TEST(SavedTensor, AdoptsAChangedTensorWithoutItsHistory) {
  GraphWatch graph;
  const at::Tensor before = leaf().sin();
  at::Tensor y = before;
  SavedTensor saved(y);
  y.mul_(2);
  graph.add(y);
  saved.adopt_changes();
  const at::Tensor expected = y.detach().clone();
  const at::Tensor adopted = saved.unpack();
  EXPECT_TRUE(adopted.requires_grad());
  EXPECT_FALSE(adopted.grad_fn());
  EXPECT_TRUE(same_bits(adopted, expected));
}

TEST(SavedVersion, HasTheTextThatAutogradHasForTheSameMistake) {
  const auto first_line = [](const std::string& text) { return text.substr(0, text.find('\n')); };
  const at::Tensor h = leaf().abs();
  const SavedVersion version(h);
  const WeakNode node(h);
  const at::Tensor y = h.sin();
  h.detach().mul_(2);
  const std::string plain =
      error_of<c10::Error>([&] { torch::autograd::grad({y.sum()}, {h}, {}, true); });
  EXPECT_EQ(first_line(error_of<c10::Error>([&] { version.check(h, node); })), first_line(plain));
  const torch::autograd::DetectAnomalyGuard anomaly;
  const std::string in_anomaly_mode =
      error_of<c10::Error>([&] { torch::autograd::grad({y.sum()}, {h}); });
  EXPECT_NE(first_line(in_anomaly_mode), first_line(plain));
  EXPECT_EQ(first_line(error_of<c10::Error>([&] { version.check(h, node); })),
            first_line(in_anomaly_mode));
}

}  // namespace
}  // namespace reprise::libtorch
