// Named policies, combinations of policies, and names for parts of a computation.

#include <reprise/error.h>

#include "tests/selective/testing.h"

namespace reprise {
namespace {

using testing::Block;
using testing::contains;
using testing::error_of;
using testing::kRecompute;
using testing::kSave;
using testing::leaf;
using testing::OperatorCounts;
using testing::with_policy;

TEST(Policies, NamesThatLibTorchDoesNotKnowAreRefused) {
  EXPECT_TRUE(contains(error_of<UsageError>([] { OperatorPolicy{"mmm"}; }),
                       "LibTorch knows no operator 'mmm'; give a name such as 'mm'"));
  EXPECT_TRUE(contains(error_of<UsageError>([] { save_all_but({"aten::relu6x"}); }),
                       "save_all_but(): LibTorch knows no operator 'aten::relu6x'"));
  EXPECT_TRUE(
      contains(error_of<UsageError>([] { every_nth("mm", 0); }), "n is 0; it must be 1 or more"));
  EXPECT_TRUE(contains(error_of<UsageError>([] { save_largest_cost_per_byte(Bytes{-1}); }),
                       "the limit is -1 bytes; it must be 0 or more"));
  EXPECT_TRUE(
      contains(error_of<UsageError>([] { inside("", save_matmuls()); }), "the path is empty"));
  EXPECT_TRUE(contains(error_of<UsageError>([] { OperatorPolicy{OperatorPolicy::Function()}; }),
                       "the function is empty"));
}

TEST(Policies, ANamedPolicyKeepsWhatItsNameSays) {
  const Block block;
  const at::Tensor x = leaf({4, 8});
  const auto runs = [&](const OperatorPolicy& policy) {
    OperatorCounts counts;
    CheckpointOptions options = with_policy(policy);
    options.early_stop = EarlyStop::kNever;
    checkpoint(options, block, x).sum().backward();
    // Four products belong to backward.
    return std::tuple(counts["mm"] - 4, counts["gelu"], counts["tanh"]);
  };
  EXPECT_EQ(runs(save_matmuls()), std::tuple(2, 2, 2));
  EXPECT_EQ(runs(save_all_but_cheap()), std::tuple(2, 2, 2));
  EXPECT_EQ(runs(save_all_but({"tanh"})), std::tuple(2, 1, 2));
  EXPECT_EQ(runs(every_nth("mm", 2)), std::tuple(3, 2, 2));
  EXPECT_EQ(runs(every_nth("mm", 2) | OperatorPolicy{"tanh"}), std::tuple(3, 2, 1));
  // A product's 128 bytes are dearer than what the elementwise operators make.
  EXPECT_EQ(runs(save_largest_cost_per_byte(Bytes{128})), std::tuple(3, 2, 2));
  EXPECT_EQ(runs(save_largest_cost_per_byte(Bytes{256})), std::tuple(2, 2, 2));
}

TEST(Policies, CombinedPoliciesKeepWhatEitherKeeps) {
  const auto answer = [](CheckpointPolicy policy) {
    return OperatorPolicy([policy](const SelectiveCheckpointContext&) { return policy; });
  };
  const at::Tensor x = leaf({3});
  const auto runs = [&](const OperatorPolicy& policy) {
    OperatorCounts counts;
    checkpoint(
        with_policy(policy), [](const at::Tensor& t) { return t.sin().exp() * 2; }, x)
        .sum()
        .backward();
    return counts["sin"];
  };
  EXPECT_EQ(runs(answer(CheckpointPolicy::kPreferSave) | answer(kRecompute)), 1);
  EXPECT_EQ(runs(answer(CheckpointPolicy::kPreferSave) | answer(CheckpointPolicy::kMustRecompute)),
            2);
  EXPECT_EQ(runs(answer(CheckpointPolicy::kMustRecompute) |
                 [](const SelectiveCheckpointContext& call) {
                   return call.is("sin") ? kSave : kRecompute;
                 }),
            1);
}

TEST(Policies, PathsOfNamedPartsSelect) {
  const Block block;
  const at::Tensor x = leaf({4, 8});
  const auto model = [&](const at::Tensor& t) {
    const at::Tensor h = named("blocks.0", [&] { return named("mlp", block, t); });
    return named("blocks.1", [&] { return named("mlp", block, h); });
  };
  const auto products = [&](const char* path) {
    OperatorCounts counts;
    CheckpointOptions options = with_policy(inside(path, save_matmuls()));
    checkpoint(options, model, x).sum().backward();
    return counts["mm"] - 8;
  };
  EXPECT_EQ(products("mlp"), 4);
  EXPECT_EQ(products("blocks.1"), 6);
  EXPECT_EQ(products("blocks.1.mlp"), 6);
  EXPECT_EQ(products("locks"), 8);
}

TEST(Policies, NamesNestAndEnd) {
  EXPECT_EQ(current_path(), "");
  named("a", [] {
    EXPECT_EQ(current_path(), "a");
    named("b", [] { EXPECT_EQ(current_path(), "a.b"); });
    EXPECT_EQ(current_path(), "a");
  });
  EXPECT_EQ(current_path(), "");
  EXPECT_TRUE(contains(error_of<UsageError>([] { named("", [] {}); }), "the name is empty"));
}

TEST(Policies, ModulesHaveTheirPathAsName) {
  const torch::nn::Sequential inner(torch::nn::Linear(2, 2), torch::nn::ReLU());
  torch::nn::ModuleList root;
  root->push_back(inner.ptr());
  EXPECT_EQ(module_path(*root, *inner->children()[0]), "0.0");
  EXPECT_EQ(module_path(*root, *root), "");
  const torch::nn::Linear other(2, 2);
  EXPECT_TRUE(contains(error_of<UsageError>([&] { module_path(*root, *other); }),
                       "is not among those of torch::nn::ModuleList"));
}

}  // namespace
}  // namespace reprise
