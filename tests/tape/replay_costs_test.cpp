// What bringing values back costs: learnt from what it took, and by that a step chooses.
#include "tape/replay_costs.h"

#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <chrono>
#include <memory>

#include "tape/own_time.h"
#include "tape/session.h"
#include "tests/tape/testing.h"

namespace reprise {
namespace {

using at::Tensor;
using tape::ReplayCosts;
using testing::leaf;
using testing::Tensors;

constexpr std::int64_t kBytes = 1000;

// In and out again, as it is taken to be before anything was packed.
std::int64_t bytes_packed_in_a_second(const ReplayCosts& costs) {
  return static_cast<std::int64_t>(1e9 / costs.seconds_to_pack(1'000'000'000));
}

TEST(ReplayCosts, AreWhatTheFirstRunTookWhereNothingIsLearnt) {
  ReplayCosts costs(/*learns=*/false);
  ReplayCosts::Learnt learnt;
  const double packing = costs.seconds_to_pack(kBytes);
  EXPECT_GT(packing, 0);
  costs.replayed(learnt, 1, kBytes, 3);
  costs.packed(kBytes, 1);
  costs.unpacked(kBytes, 1);
  EXPECT_EQ(learnt.again, 0);
  EXPECT_EQ(costs.seconds(learnt, 1, kBytes), 1);
  EXPECT_EQ(costs.seconds_to_pack(kBytes), packing);
}

TEST(ReplayCosts, ComeToWhatReplaysTake) {
  ReplayCosts costs(/*learns=*/true);
  ReplayCosts::Learnt learnt;
  EXPECT_EQ(costs.seconds(learnt, 1, kBytes), 1);
  costs.replayed(learnt, 1, kBytes, 3);
  EXPECT_EQ(costs.seconds(learnt, 1, kBytes), 3);
  for (int i = 0; i < 40; ++i) costs.replayed(learnt, 1, kBytes, 2);
  EXPECT_NEAR(costs.seconds(learnt, 1, kBytes), 2, 1e-3);
  // Also below what the first run took.
  for (int i = 0; i < 40; ++i) costs.replayed(learnt, 1, kBytes, 0.5);
  EXPECT_NEAR(costs.seconds(learnt, 1, kBytes), 0.5, 1e-3);
}

TEST(ReplayCosts, AnInterruptionMovesThemLittle) {
  ReplayCosts costs(/*learns=*/true);
  ReplayCosts::Learnt learnt;
  costs.replayed(learnt, 1, kBytes, 1000);
  EXPECT_LE(costs.seconds(learnt, 1, kBytes), 4);
  for (int i = 0; i < 40; ++i) costs.replayed(learnt, 1, kBytes, 2);
  costs.replayed(learnt, 1, kBytes, 1000);
  EXPECT_LE(costs.seconds(learnt, 1, kBytes), 2.51);
}

TEST(ReplayCosts, OfACallThatWasNotRunAgainAreGuessedFromOthersByTheirBytes) {
  ReplayCosts costs(/*learns=*/true);
  ReplayCosts::Learnt learnt, other;
  for (int i = 0; i < 10; ++i) costs.replayed(learnt, 1, kBytes, 2);
  EXPECT_NEAR(costs.seconds(other, 5, kBytes), 6, 1e-9);
  EXPECT_NEAR(costs.seconds(other, 5, 3 * kBytes), 8, 1e-9);
  EXPECT_EQ(costs.seconds(other, 5, 0), 5);
  EXPECT_EQ(costs.seconds(other, 5, 100 * kBytes), 10) << "a guess is within bounds";
  // Faster ones say nothing of bytes.
  ReplayCosts fast(/*learns=*/true);
  ReplayCosts::Learnt once;
  fast.replayed(once, 1, kBytes, 0.5);
  EXPECT_EQ(fast.seconds(other, 5, kBytes), 5);
}

TEST(ReplayCosts, ThatWereMeasuredLastCountMost) {
  ReplayCosts costs(/*learns=*/true);
  ReplayCosts::Learnt other;
  const auto take = [&](double seconds) {
    ReplayCosts::Learnt learnt;
    costs.replayed(learnt, 1, kBytes, seconds);
  };
  for (int i = 0; i < 300; ++i) take(1.8);
  EXPECT_NEAR(costs.seconds(other, 1, kBytes), 1.8, 1e-9);
  for (int i = 0; i < 300; ++i) take(1.3);
  EXPECT_NEAR(costs.seconds(other, 1, kBytes), 1.3, 0.01);
}

TEST(ReplayCosts, OfPackingAreWhatBothWaysTake) {
  ReplayCosts costs(/*learns=*/true);
  const std::int64_t second = bytes_packed_in_a_second(costs);
  costs.packed(second, 2);
  // The way back is taken to be as long until it was gone.
  EXPECT_NEAR(costs.seconds_to_pack(second), 4, 1e-6);
  costs.unpacked(2 * second, 2);
  EXPECT_NEAR(costs.seconds_to_pack(second), 3, 1e-6);
  EXPECT_NEAR(costs.seconds_to_pack(10 * second), 30, 1e-6);
  EXPECT_EQ(costs.seconds_to_pack(0), 0);
}

TEST(ReplayCosts, AnInterruptionMovesThoseOfPackingLittle) {
  ReplayCosts costs(/*learns=*/true);
  const std::int64_t second = bytes_packed_in_a_second(costs);
  costs.packed(second, 1000);
  EXPECT_LE(costs.seconds_to_pack(second), 8);
  for (int i = 0; i < 400; ++i) {
    costs.packed(second, 1);
    costs.unpacked(second, 1);
  }
  EXPECT_NEAR(costs.seconds_to_pack(second), 2, 0.01);
  costs.packed(second, 1000);
  costs.unpacked(second, 1000);
  EXPECT_LE(costs.seconds_to_pack(second), 2.1);
}

// Where masks are drawn again nobody measures packing.
TEST(ReplayCosts, OfPackingAreTriedAgainWhereTheyAreTakenForTooHigh) {
  ReplayCosts costs(/*learns=*/true);
  const std::int64_t second = bytes_packed_in_a_second(costs);
  const auto declined_until = [&](double making) {
    int declined = 0;
    while (costs.seconds_to_pack(second) >= making && declined < 10000) {
      costs.declined_packing();
      ++declined;
    }
    return declined;
  };
  for (int i = 0; i < 40; ++i) {
    costs.packed(second, 4);
    costs.unpacked(second, 4);
  }
  EXPECT_NEAR(costs.seconds_to_pack(second), 8, 0.2);
  EXPECT_LT(declined_until(4), 200);
  // What is measured then is right at once.
  costs.packed(second, 0.5);
  costs.unpacked(second, 0.5);
  EXPECT_NEAR(costs.seconds_to_pack(second), 1, 0.01);
  for (int i = 0; i < 40; ++i) {
    costs.packed(second, 4);
    costs.unpacked(second, 4);
  }
  // If it is as high as it was, it is tried seldom.
  int packed = 0, declined = 0;
  for (int i = 0; i < 2000; ++i) {
    if (costs.seconds_to_pack(second) >= 4) {
      costs.declined_packing();
      ++declined;
    } else {
      costs.packed(second, 4);
      costs.unpacked(second, 4);
      ++packed;
    }
  }
  EXPECT_GT(declined, 50 * packed);
}

TEST(ReplayCosts, ThatATestGivesAreThoseOfBudgetsThatLearnAndOfOthers) {
  for (const bool learns : {false, true}) {
    const ReplayCosts::GivenScope scope({.seconds_a_replay = 7, .packed_bytes_a_second = 100});
    ReplayCosts costs(learns);
    ReplayCosts::Learnt learnt;
    EXPECT_TRUE(costs.differ_from_first_runs());
    costs.replayed(learnt, 1, kBytes, 3);
    costs.packed(kBytes, 1);
    costs.unpacked(kBytes, 1);
    EXPECT_EQ(costs.seconds(learnt, 1, kBytes), 7);
    EXPECT_EQ(costs.seconds_to_pack(kBytes), 10);
  }
  EXPECT_EQ(ReplayCosts(/*learns=*/true).seconds({}, 1, kBytes), 1);
}

TEST(ReplayCosts, OfPackingAreMeasuredInStepsOfBudgetsThatLearn) {
  const Tensor weight = leaf({256 * 1024}), half = at::full({256 * 1024}, 0.5);
  const auto forward = [&] {
    Tensor sum = at::zeros({});
    for (int i = 0; i < 8; ++i) {
      sum = sum + (weight * at::bernoulli(half)).sum();
    }
    return sum;
  };
  const Bytes limit = testing::limit_at(0.6, [&] { testing::plain_gradients(forward, {weight}); });
  const auto is_measured = [&](const BudgetOptions& options) {
    const auto budget = std::make_shared<tape::Budget>(limit, options);
    const double before = budget->costs.seconds_to_pack(kBytes);
    tape::Session step(budget);
    forward().backward();
    step.finish();
    EXPECT_EQ(budget->last.packed > 0, !options.paranoid);
    return budget->costs.seconds_to_pack(kBytes) != before;
  };
  EXPECT_TRUE(is_measured({}));
  EXPECT_FALSE(is_measured({.plan_repeated_steps = false}));
  EXPECT_FALSE(is_measured({.paranoid = true}));
}

// Two operators of the same bytes. The first time one takes half of what the other does, and run
// again five times as much.
// They take that by their word: whatever the machine does meanwhile is little beside it.
constexpr Seconds kShort{0.2}, kSteady{0.4}, kLong{2};
constexpr int kOfEach = 8;

struct Runs {
  int deceptive = 0, steady = 0;
};
Runs& runs() {
  static Runs counted;
  return counted;
}

Tensor deceptive(const Tensor& tensor) {
  tape::OwnTime::pretend(++runs().deceptive > kOfEach ? kLong : kShort);
  return tensor.exp();
}

Tensor steady(const Tensor& tensor) {
  ++runs().steady;
  tape::OwnTime::pretend(kSteady);
  return tensor.exp();
}

TORCH_LIBRARY(reprise_costs_test, library) {
  library.def("deceptive(Tensor tensor) -> Tensor");
  library.def("steady(Tensor tensor) -> Tensor");
}
TORCH_LIBRARY_IMPL(reprise_costs_test, CPU, library) {
  library.impl("deceptive", deceptive);
  library.impl("steady", steady);
}

Tensor result_of(const char* name, const Tensor& tensor) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(name, "")
      .typed<Tensor(const Tensor&)>()
      .call(tensor);
}

class DeceptiveOperator : public ::testing::Test {
 protected:
  Tensor forward() const {
    Tensor sum = at::zeros({});
    for (int i = 0; i < kOfEach; ++i) {
      for (const char* name : {"reprise_costs_test::deceptive", "reprise_costs_test::steady"}) {
        sum = sum + (weight_ * result_of(name, x_)).sum();  // keeps it for backward
      }
    }
    return sum;
  }
  Bytes limit() const {
    return testing::limit_at(0.7, [this] { plain(); });
  }
  Tensors plain() const {
    return testing::plain_gradients([this] { return forward(); }, {weight_});
  }
  // Of both operators in the last of so many steps, beyond their first ones.
  Runs replays_after(MemoryBudget& budget, int steps) const {
    const Tensors expected = plain();
    for (int i = 0; i < steps; ++i) {
      runs() = {};
      const Tensors mine =
          testing::gradients_under(budget, [this] { return forward(); }, {weight_});
      EXPECT_TRUE(testing::same_bits(mine, expected));
      EXPECT_LE(budget.report().peak, budget.limit());
    }
    return {runs().deceptive - kOfEach, runs().steady - kOfEach};
  }

  // All different: none is packed.
  const Tensor x_ = at::linspace(0, 1, 256 * 1024);
  const Tensor weight_ = leaf({256 * 1024});
};

TEST_F(DeceptiveOperator, IsDroppedLessOnceItsReplaysAreKnown) {
  const Bytes most = limit();
  MemoryBudget guesses(most, {.plan_repeated_steps = false});
  const Runs before = replays_after(guesses, 4);
  EXPECT_GT(before.deceptive, before.steady) << "it seems to cost less";
  MemoryBudget learns(most, {.planning_time = std::chrono::hours(1)});  // no plan so soon
  const Runs then = replays_after(learns, 4);
  EXPECT_FALSE(learns.plan().has_value());
  EXPECT_LT(then.deceptive, before.deceptive);
  EXPECT_GT(then.steady, before.steady);
}

TEST_F(DeceptiveOperator, IsDroppedLessByAPlan) {
  MemoryBudget budget(limit(), {.planning_time = std::chrono::milliseconds(500)});
  replays_after(budget, 4);
  ASSERT_TRUE(budget.wait_for_plan(std::chrono::minutes(1)));
  ASSERT_TRUE(budget.plan().has_value());
  const Runs planned = replays_after(budget, 1);
  EXPECT_EQ(budget.report().followed, budget.plan()->operators());
  EXPECT_LT(planned.deceptive, planned.steady);
}

}  // namespace
}  // namespace reprise
