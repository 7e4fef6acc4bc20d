// Steps of a budget while a graph records the stream, as CUDA graphs do: refused, with nothing lost. The fake device only
// says that a graph records; its kernels run all the same.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/fake_device/tape_testing.h"

namespace reprise {
namespace {

using namespace testing_support;
using testing::error_of;
using ::testing::HasSubstr;

class DeviceGraphs : public OnFakeDevice {
 protected:
  Network network_{fake(0), 3, 64};
  const Tensors plain_ = network_.gradients();
  MemoryBudget budget_{network_.limit_at(0.6), on_fake()};
  const c10::Stream side_ = new_fake_stream();
};

TEST_F(DeviceGraphs, AStepThatBeginsWhileAGraphRecordsIsRefused) {
  {
    const GraphRecords records(side_);
    EXPECT_THAT(
        error_of<UsageError>([&] { budget_.step(); }),
        HasSubstr(
            "MemoryBudget: step() was called while a graph records the stream (device fake:0"));
  }
  EXPECT_TRUE(same_bits(network_.gradients_under(budget_), plain_));
}

TEST_F(DeviceGraphs, AnOperatorOfAStepIsRefusedWhileAGraphRecords) {
  auto step = budget_.step();
  const at::Tensor& leaf = network_.leaves().front();
  {
    const GraphRecords records(side_);
    EXPECT_THAT(error_of<UsageError>([&] { leaf.sin(); }),
                HasSubstr("MemoryBudget: aten::sin was called while a graph records the stream"));
  }
  const Tensors mine = network_.gradients();
  step.finish();
  EXPECT_TRUE(same_bits(mine, plain_));
}

TEST_F(DeviceGraphs, AStepCannotEndWhileAGraphRecordsAndCanAfterwards) {
  auto step = budget_.step();
  const Tensors mine = network_.gradients();
  {
    const GraphRecords records(side_);
    EXPECT_THAT(error_of<UsageError>([&] { step.finish(); }),
                HasSubstr("MemoryBudget: finish() was called while a graph records the stream"));
  }
  step.finish();
  EXPECT_TRUE(same_bits(mine, plain_));
}

TEST_F(DeviceGraphs, AGraphThatRecordsAnotherStreamDoesNotMatter) {
  FakeStreams::recorded = side_;
  const Tensors on_default_stream = network_.gradients_under(budget_);
  FakeStreams::recorded.reset();
  EXPECT_TRUE(same_bits(on_default_stream, plain_));
}

}  // namespace
}  // namespace reprise
