// What a budget learns of an accelerator's operators: bytes and seconds.
#include "tape/device/operator_sizes.h"

#include <gtest/gtest.h>

namespace reprise::tape {
namespace {

TEST(OperatorSizes, AreTheMostOfAllCallsButTheFirst) {
  OperatorSizes sizes;
  EXPECT_FALSE(sizes.bytes(1).has_value());
  // Libraries try out ways, with workspaces of their own, when they see a shape first.
  sizes.note(1, 1000);
  EXPECT_EQ(sizes.bytes(1), 1000);
  sizes.note(1, 300);
  EXPECT_EQ(sizes.bytes(1), 300);
  EXPECT_FALSE(sizes.is_learnt(1));
  sizes.note(1, 400);
  sizes.note(1, 350);
  EXPECT_EQ(sizes.bytes(1), 400);
  EXPECT_TRUE(sizes.is_learnt(1));
  EXPECT_FALSE(sizes.bytes(2).has_value());
}

TEST(DeviceCosts, AreTheLeastThatWasMeasured) {
  DeviceCosts costs;
  costs.note(1, 1000, 5e-3);
  costs.note(1, 1000, 2e-3);
  costs.note(1, 1000, 9e-3);
  EXPECT_DOUBLE_EQ(costs.seconds(1, 1000), 2e-3);
  EXPECT_TRUE(costs.is_learnt(1));
}

TEST(DeviceCosts, OfALaterRoundAreTakenOverInPartWhereTheyAreLonger) {
  DeviceCosts costs;
  costs.note(1, 1000, 2e-3);
  costs.note(1, 1000, 4e-3);
  EXPECT_DOUBLE_EQ(costs.seconds(1, 1000), 2e-3) << "in a round the least counts";
  costs.begin_round();
  EXPECT_FALSE(costs.is_learnt(1));
  costs.note(1, 1000, 4e-3);
  EXPECT_DOUBLE_EQ(costs.seconds(1, 1000), 2.5e-3);
  costs.note(1, 1000, 1e-3);
  EXPECT_DOUBLE_EQ(costs.seconds(1, 1000), 1e-3);
  costs.note(1, 1000, 1e-3);
  EXPECT_TRUE(costs.is_learnt(1));
}

TEST(DeviceCosts, OfUnknownCallsLieOnALineThroughTheKnownOnes) {
  DeviceCosts costs;
  const double guess = costs.seconds(9, 1'000'000);
  EXPECT_GT(guess, 0);
  EXPECT_GT(costs.seconds(9, 100'000'000), guess);
  for (int i = 1; i <= 5; ++i) {
    costs.note(static_cast<std::uint64_t>(i), i * 1000, 1e-5 + i * 2e-6);
  }
  EXPECT_NEAR(costs.seconds(9, 10'000), 1e-5 + 10 * 2e-6, 1e-9);
  EXPECT_NEAR(costs.seconds(9, 0), 1e-5, 1e-9);
}

TEST(DeviceCosts, NeverFallWithTheBytes) {
  DeviceCosts costs;
  costs.note(1, 1000, 9e-5);
  costs.note(2, 100'000, 1e-5);
  EXPECT_DOUBLE_EQ(costs.seconds(9, 0), costs.seconds(9, 1'000'000));
  EXPECT_DOUBLE_EQ(costs.seconds(9, 0), 5e-5);
}

}  // namespace
}  // namespace reprise::tape
