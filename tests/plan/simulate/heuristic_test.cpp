// The scores of arXiv:2006.09616 by hand, what the interface promises of every heuristic, and
// names.
#include "plan/simulate/heuristic.h"

#include <gmock/gmock.h>
#include <rapidcheck.h>
#include <reprise/error.h>

#include <cmath>
#include "tests/plan/simulate/heuristics.h"

namespace reprise::plan {
namespace {

constexpr EvictionCandidate kCandidate{
    .own_cost = 3, .neighbourhood_cost = 5, .bytes = 16, .staleness = 2};

double score(const char* name, const EvictionCandidate& candidate = kCandidate) {
  return heuristic_named(name)->score(candidate);
}

TEST(Heuristic, DividesCostByBytesTimesStaleness) {
  EXPECT_EQ(score("h_dtr"), 8.0 / 32);
  EXPECT_EQ(score("h_eq"), 8.0 / 32);
  EXPECT_EQ(score("h_up"), 8.0 / 32);
  EXPECT_EQ(score("h_local"), 3.0 / 32);
}

TEST(Heuristic, KnowsTheSimplerOnesOfThePaper) {
  EXPECT_EQ(score("lru"), 0.5);
  EXPECT_EQ(score("largest"), 1.0 / 16);
  EXPECT_EQ(score("random"), score("random", {}));
}

TEST(Heuristic, NamesTheNeighbourhoodItNeeds) {
  EXPECT_EQ(heuristic_named("h_dtr")->neighbourhood(), Neighbourhood::kWalk);
  EXPECT_EQ(heuristic_named("h_eq")->neighbourhood(), Neighbourhood::kClasses);
  EXPECT_EQ(heuristic_named("h_up")->neighbourhood(), Neighbourhood::kUpstream);
  for (const char* name : {"h_local", "lru", "largest", "random"}) {
    EXPECT_EQ(heuristic_named(name)->neighbourhood(), Neighbourhood::kNone) << name;
  }
}

TEST(Heuristic, IsInfiniteWhereNothingIsGained) {
  EvictionCandidate empty = kCandidate, fresh = kCandidate;
  empty.bytes = 0;
  fresh.staleness = 0;
  for (const char* name : {"h_dtr", "h_eq", "h_local"}) {
    EXPECT_TRUE(std::isinf(score(name, empty))) << name;
    EXPECT_TRUE(std::isinf(score(name, fresh))) << name;
  }
  EXPECT_TRUE(std::isinf(score("largest", empty)));
  EXPECT_TRUE(std::isinf(score("lru", fresh)));
}

TEST(Heuristic, IsFoundByEachOfItsNames) {
  EXPECT_EQ(heuristic_names().size(), 7U);
  for (const std::string& name : heuristic_names()) {
    EXPECT_EQ(heuristic_named(name)->name(), name);
    EXPECT_EQ(to_string(parse_heuristic(name)), name);
  }
}

TEST(Heuristic, RefusesOtherNamesAndListsThem) {
  try {
    heuristic_named("h_drt");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(),
                 "\"h_drt\" is not a heuristic: choose one of h_dtr, h_eq, h_up, h_local, lru, "
                 "largest, random");
  }
}

TEST(Heuristic, RefusesWhatIsNoEnumerator) {
  try {
    make_heuristic(static_cast<Heuristic>(7));
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(),
                 "heuristic 7 does not exist: choose one of h_dtr, h_eq, h_up, h_local, lru, "
                 "largest, random");
  }
}

TEST(Heuristic, HasTheShapeItClaimsAndRisesWithCost) {
  for (const std::string& name : heuristic_names()) {
    const auto heuristic = heuristic_named(name);
    EXPECT_TRUE(rc::check("shape of " + name, [&] {
      EvictionCandidate one;
      one.own_cost = *rc::gen::inRange(0, 1000);
      one.neighbourhood_cost = *rc::gen::inRange(0, 1000);
      one.bytes = *rc::gen::inRange(0, 1000);
      one.staleness = 1;
      EvictionCandidate later = one, dearer = one;
      later.staleness = *rc::gen::inRange(1, 1000);
      dearer.neighbourhood_cost += *rc::gen::inRange(0, 1000);
      const double score = heuristic->score(one);
      RC_ASSERT(score >= 0);
      RC_ASSERT(heuristic->score(dearer) >= score);
      switch (heuristic->shape()) {
        case ScoreShape::kFallsWithStaleness:
          if (std::isinf(score)) {
            RC_ASSERT(std::isinf(heuristic->score(later)));
          } else {
            RC_ASSERT(std::abs(heuristic->score(later) * later.staleness - score) <= 1e-12 * score);
          }
          break;
        case ScoreShape::kIgnoresStaleness:
          RC_ASSERT(heuristic->score(later) == score);
          break;
        case ScoreShape::kArbitrary:
          break;
      }
    }));
  }
}

}  // namespace
}  // namespace reprise::plan
