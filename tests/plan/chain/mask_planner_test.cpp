// Masks of chains: their bytes and what is cheapest, against all masks.
#include "plan/chain/mask_planner.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <reprise/error.h>
#include <reprise/planners.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "tests/plan/chain/chains.h"
#include "tests/refusal.h"

namespace reprise::plan {
namespace {

KeepMask mask_of(std::uint64_t bits, std::int64_t stages) {
  KeepMask mask;
  for (std::int64_t i = 0; i < stages; ++i) mask.push_back((bits >> i & 1) != 0);
  return mask;
}

struct Tried {
  KeepMask mask;
  Bytes peak;
  double loss;
};

// All masks as they are run, by the schedules' own checker.
std::vector<Tried> all_masks(const Chain& chain, const std::vector<double>& losses) {
  const std::int64_t stages = std::ssize(chain.stages);
  std::vector<Tried> all;
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << stages; ++bits) {
    const KeepMask mask = mask_of(bits, stages);
    if (!mask.back()) continue;
    double loss = 0;
    for (std::size_t i = 0; i < mask.size(); ++i) loss += mask[i] ? 0 : losses[i];
    all.push_back({mask, evaluate(chain, masked_schedule(chain, mask)).peak, loss});
  }
  return all;
}

TEST(MaskPlanner, AScheduleRunsTheStagesOfTheMaskAgain) {
  const Chain chain = uniform_chain(6);
  const ScheduleCost cost = evaluate(chain, masked_schedule(chain, mask_of(0b111001, 6)));
  EXPECT_EQ(cost.recompute, seconds(2));
  EXPECT_EQ(cost.forwards, 8);
  EXPECT_EQ(masked_schedule(chain, mask_of(0b111111, 6)), planners::keep_all(chain));
  EXPECT_EQ(masked_schedule(chain, mask_of(0, 6)), planners::keep_all(chain))
      << "what ends the chain is kept";
  EXPECT_EQ(as_run(mask_of(0b0001, 4)), mask_of(0b1111, 4));
  EXPECT_EQ(as_run(mask_of(0b0100, 4)), mask_of(0b1100, 4));
}

TEST(MaskPlanner, EveryScheduleOfAMaskIsOneThatRegionsCanRun) {
  EXPECT_TRUE(rc::check([] {
    const auto stages = *rc::gen::inRange<std::int64_t>(1, 9);
    const Chain chain = random_chain(*rc::gen::arbitrary<std::uint64_t>(), stages, 20);
    const auto bits = *rc::gen::arbitrary<std::uint64_t>();
    const Schedule schedule = masked_schedule(chain, mask_of(bits, stages));
    const KeepMask mask = as_run(mask_of(bits, stages));
    double again = 0;
    for (std::size_t i = 0; i < mask.size(); ++i) {
      if (!mask[i]) again += chain.stages[i].forward.count();
    }
    RC_ASSERT(evaluate(chain, schedule).recompute.count() == again);
  }));
}

TEST(MaskPlanner, FindsTheLeastBudgetAndTheCheapestMaskOfEach) {
  EXPECT_TRUE(rc::check([] {
    const auto stages = *rc::gen::inRange<std::int64_t>(1, 9);
    const Chain chain = random_chain(*rc::gen::arbitrary<std::uint64_t>(), stages, 20);
    std::vector<double> losses;
    for (std::int64_t i = 0; i < stages; ++i) losses.push_back(*rc::gen::inRange(0, 9));
    const MaskPlanner planner(chain);
    const std::vector<Tried> all = all_masks(chain, losses);
    Bytes least(std::numeric_limits<std::int64_t>::max());
    for (const Tried& each : all) least = std::min(least, each.peak);
    RC_ASSERT(planner.least() == least);
    RC_ASSERT(!planner.cheapest(least - Bytes(1), losses));
    for (const Tried& budget : all) {
      double best = std::numeric_limits<double>::infinity();
      for (const Tried& each : all) {
        if (each.peak <= budget.peak) best = std::min(best, each.loss);
      }
      const std::optional<KeepMask> found = planner.cheapest(budget.peak, losses);
      RC_ASSERT(found.has_value());
      const auto tried = std::find_if(all.begin(), all.end(),
                                      [&](const Tried& each) { return each.mask == *found; });
      RC_ASSERT(tried != all.end());
      RC_ASSERT(tried->peak <= budget.peak);
      RC_ASSERT(tried->loss == best);
    }
  }));
}

TEST(MaskPlanner, LongChainsArePlannedWithinBytes) {
  const Chain chain = random_chain(7, 300, 1'000'000);
  const MaskPlanner planner(chain);
  // Sums of which there are as many as masks.
  std::vector<double> losses;
  for (int i = 0; i < 300; ++i) losses.push_back(1 + 0.001 * std::sin(i));
  const Bytes most = evaluate(chain, planners::keep_all(chain)).peak;
  ASSERT_LT(planner.least(), most);
  double before = std::numeric_limits<double>::infinity();
  for (int i = 0; i <= 4; ++i) {
    const Bytes budget = planner.least() + Bytes((most - planner.least()).count * i / 4);
    const auto mask = planner.cheapest(budget, losses);
    ASSERT_TRUE(mask.has_value());
    EXPECT_LE(evaluate(chain, masked_schedule(chain, *mask)).peak, budget);
    double lost = 0;
    for (std::size_t k = 0; k < mask->size(); ++k) lost += (*mask)[k] ? 0 : losses[k];
    EXPECT_LE(lost, before * 1.02) << "a larger budget";
    before = lost;
  }
  EXPECT_EQ(before, 0);
}

TEST(MaskPlanner, RefusesChainsThatAreTooLong) {
  const std::string text = refusal_of([] { MaskPlanner planner(uniform_chain(1001)); });
  EXPECT_NE(text.find("a mask of 1001 stages is too long to plan; it may have at most 1000"),
            std::string::npos)
      << text;
}

}  // namespace
}  // namespace reprise::plan
