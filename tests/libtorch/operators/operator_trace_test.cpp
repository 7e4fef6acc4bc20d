// The list of operators that a thread ran, and the name of the one that runs.
#include "libtorch/operators/operator_trace.h"

#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <reprise/saved_tensor_hooks.h>
#include <torch/torch.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace reprise::libtorch {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

// Tensors made outside the trace, so that their making is not in it.
class OperatorTraceTest : public ::testing::Test {
 protected:
  void TearDown() override {
    EXPECT_FALSE(at::hasThreadLocalCallbacks());
    EXPECT_STREQ(current_operator(), "unknown");
  }
  at::Tensor a_ = torch::ones({8, 16});
  at::Tensor b_ = torch::ones({16, 4});
};

TEST_F(OperatorTraceTest, ShowsInputsAndOutputsWithDtypeAndShape) {
  OperatorTrace trace;
  a_.mm(b_);
  ASSERT_FALSE(trace.lines().empty());
  EXPECT_EQ(trace.lines()[0], "aten::mm(Float[8, 16], Float[16, 4]) -> Float[8, 4]");
}

TEST_F(OperatorTraceTest, ShowsScalarsListsAndAbsentArguments) {
  OperatorTrace trace;
  a_.sum(at::IntArrayRef({0, 1}), /*keepdim=*/true, at::kDouble);
  at::cat({b_, b_}, 1);
  EXPECT_THAT(trace.lines(),
              Contains("aten::sum.dim_IntList(Float[8, 16], [0, 1], True, 7) -> Double[1, 1]"));
  EXPECT_THAT(trace.lines(),
              Contains("aten::cat([Float[16, 4], Float[16, 4]], 1) -> Float[16, 8]"));
}

TEST_F(OperatorTraceTest, ShowsSeveralResults) {
  OperatorTrace trace;
  a_.max(1);
  EXPECT_THAT(trace.lines(),
              Contains("aten::max.dim(Float[8, 16], 1, False) -> Float[8], Long[8]"));
}

TEST_F(OperatorTraceTest, IndentsThePartsOfAComposite) {
  at::Tensor weight = torch::ones({4, 16});
  OperatorTrace trace;
  at::linear(a_, weight);
  at::sin(a_);
  ASSERT_GE(trace.lines().size(), 4u);
  EXPECT_EQ(trace.lines()[0], "aten::linear(Float[8, 16], Float[4, 16], None) -> Float[8, 4]");
  EXPECT_EQ(trace.lines()[1], "  aten::t(Float[4, 16]) -> Float[16, 4]");
  EXPECT_THAT(trace.lines(), Contains(MatchesRegex("  +aten::mm\\(.*\\) -> Float.8, 4.")));
  EXPECT_EQ(trace.lines().back(), "aten::sin(Float[8, 16]) -> Float[8, 16]");
}

TEST_F(OperatorTraceTest, NamesOtherDevicesThanTheCpu) {
  at::Tensor meta = torch::empty({3}, at::kMeta);
  OperatorTrace trace;
  meta.sin();
  EXPECT_THAT(trace.lines(), Contains("aten::sin(Float[3]@meta) -> Float[3]@meta"));
}

TEST_F(OperatorTraceTest, EqualRunsGiveEqualTraces) {
  auto p = torch::ones({16, 4}, torch::requires_grad());
  auto run = [&] {
    OperatorTrace trace;
    a_.mm(p).relu().sum();
    return trace.lines();
  };
  EXPECT_EQ(run(), run());
}

TEST_F(OperatorTraceTest, AnOuterTraceSeesWhatAnInnerOneSees) {
  OperatorTrace outer;
  a_.sin();
  {
    OperatorTrace inner;
    a_.cos();
    EXPECT_THAT(inner.lines(), ElementsAre(StartsWith("aten::cos(")));
  }
  a_.exp();
  EXPECT_THAT(outer.lines(),
              ElementsAre(StartsWith("aten::sin("), "aten::cos(Float[8, 16]) -> Float[8, 16]",
                          StartsWith("aten::exp(")));
}

TEST_F(OperatorTraceTest, AnOperatorThatThrowsIsShownWithoutAResult) {
  OperatorTrace trace;
  EXPECT_THROW(a_.mm(a_), c10::Error);
  a_.sin();
  EXPECT_THAT(trace.lines(), ElementsAre("aten::mm(Float[8, 16], Float[8, 16])",
                                         "aten::sin(Float[8, 16]) -> Float[8, 16]"));
}

TEST_F(OperatorTraceTest, AnExceptionInTheScopeEndsIt) {
  EXPECT_THROW(
      {
        OperatorTrace trace;
        a_.sin();
        throw std::runtime_error("inside");
      },
      std::runtime_error);
}

TEST_F(OperatorTraceTest, SeesOnlyItsOwnThread) {
  OperatorTrace trace;
  std::thread([this] { a_.sin(); }).join();
  EXPECT_THAT(trace.lines(), IsEmpty());
}

TEST_F(OperatorTraceTest, MayBeOpenedAndClosedInsideARunningOperator) {
  auto p = torch::ones({4}, torch::requires_grad());
  std::vector<std::string> inner;
  OperatorTrace outer;
  SavedTensorHooksScope hooks(
      [&](const at::Tensor& tensor) {
        OperatorTrace trace;
        at::Tensor kept = tensor.clone();
        inner = trace.lines();
        return kept;
      },
      [](const at::Tensor& tensor) { return tensor; });
  p.sin();
  EXPECT_THAT(inner, Contains("aten::clone(Float[4], None) -> Float[4]"));
  EXPECT_EQ(outer.lines()[0], "aten::sin(Float[4]) -> Float[4]");
  EXPECT_THAT(outer.lines(), Contains("  aten::clone(Float[4], None) -> Float[4]"));
}

TEST_F(OperatorTraceTest, CurrentOperatorIsTheInnermostOneThatRuns) {
  auto weight = torch::ones({4, 16}, torch::requires_grad());
  std::vector<std::string> savers;
  CurrentOperatorScope scope;
  SavedTensorHooksScope hooks(
      [&](const at::Tensor& tensor) {
        savers.emplace_back(current_operator());
        return tensor;
      },
      [](const at::Tensor& tensor) { return tensor; });
  at::linear(a_, weight).sin();
  EXPECT_THAT(savers, ElementsAre("aten::mm", "aten::sin"));
}

TEST_F(OperatorTraceTest, CurrentOperatorIsUnknownOutsideOperatorsAndScopes) {
  auto p = torch::ones({4}, torch::requires_grad());
  std::string seen;
  SavedTensorHooksScope hooks(
      [&](const at::Tensor& tensor) {
        seen = current_operator();
        return tensor;
      },
      [](const at::Tensor& tensor) { return tensor; });
  p.sin();
  EXPECT_EQ(seen, "unknown");
  CurrentOperatorScope scope;
  p.sin();
  EXPECT_EQ(seen, "aten::sin");
  EXPECT_STREQ(current_operator(), "unknown");
}

TEST_F(OperatorTraceTest, AnOperatorThatThrowsDoesNotStayCurrent) {
  CurrentOperatorScope scope;
  EXPECT_THROW(a_.mm(a_), c10::Error);
  EXPECT_STREQ(current_operator(), "unknown");
}

TEST_F(OperatorTraceTest, AScopeThatClosesInsideAnOperatorLeavesNoNameBehind) {
  auto p = torch::ones({4}, torch::requires_grad());
  auto scope = std::make_unique<CurrentOperatorScope>();
  SavedTensorHooksScope hooks(
      [&](const at::Tensor& tensor) {
        scope.reset();
        return tensor;
      },
      [](const at::Tensor& tensor) { return tensor; });
  p.sin();
  EXPECT_STREQ(current_operator(), "unknown");
}

}  // namespace
}  // namespace reprise::libtorch
