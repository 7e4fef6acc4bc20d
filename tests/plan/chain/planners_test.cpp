// Planners against hand-made figures, the closed form of revolve, and every persistent schedule.
#include <gmock/gmock.h>
#include <rapidcheck.h>
#include <reprise/planners.h>

#include <cmath>
#include <limits>
#include <map>

#include "plan/chain/revolve.h"
#include "tests/plan/chain/chains.h"
#include "tests/plan/trace/testing.h"

namespace reprise::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Planners, UniformCutsAsCheckpointSequentialDoes) {
  const Chain chain = uniform_chain(7);
  // Two, two, and three that are not run again.
  EXPECT_EQ(evaluate(chain, planners::uniform(chain, 3)).forwards, 7 + 4);
  EXPECT_EQ(planners::uniform(chain, 1), planners::keep_all(chain));
  EXPECT_EQ(planners::uniform(chain, 7), planners::every_stage(chain));
  EXPECT_EQ(planners::sqrt(chain), planners::uniform(chain, 3));
  EXPECT_EQ(planners::sqrt(uniform_chain(1)), planners::keep_all(uniform_chain(1)));
  for (const std::int64_t segments : {0, 8, -1}) {
    EXPECT_EQ(refusal_of([&] { planners::uniform(chain, segments); }),
              "uniform: segments is " + std::to_string(segments) +
                  ", but must be between 1 and the number of stages, 7");
  }
}

TEST(Planners, SayWhatTheyNeedWhereTheBudgetIsTooSmall) {
  const Chain chain = uniform_chain(4);
  const Bytes need = evaluate(chain, planners::every_stage(chain)).peak;
  EXPECT_EQ(planners::every_stage(chain, need), planners::every_stage(chain));
  EXPECT_EQ(refusal_of<BudgetError>([&] { planners::every_stage(chain, need - Bytes(1)); }),
            "every_stage: the budget is 79 B (79 bytes), but the chain needs at least 80 B (80 "
            "bytes) with this planner; raise the budget, or take rotor");
  // The output before, what a stage keeps, both gradients and the chain's output; from the input
  // each time.
  EXPECT_THAT(refusal_of<BudgetError>([&] { planners::rotor(chain, Bytes(1)); }),
              HasSubstr("rotor: the budget is 1 B (1 bytes), but the chain needs at least 70 B"));
  EXPECT_THAT(refusal_of<BudgetError>([&] { planners::revolve(chain, Bytes(-1)); }),
              HasSubstr("needs at least 70 B"));
}

TEST(Planners, RotorNamesTheLeastThatItsOwnSchedulesNeed) {
  // Neither segments of equal length nor binomial schedules keep the first stage alone.
  Chain chain = uniform_chain(3);
  for (ChainStage& stage : chain.stages) stage.output = stage.output_gradient = Bytes(1);
  chain.stages[0].saved = Bytes(1);
  chain.stages[0].forward_temporaries = Bytes(1000);
  chain.stages[1].saved = chain.stages[2].saved = Bytes(500);
  const Bytes least = planners::Rotor(chain).least();
  EXPECT_LT(least, Bytes(520));
  EXPECT_LE(evaluate(chain, planners::rotor(chain, least)).peak, least);
  EXPECT_THAT(refusal_of<BudgetError>([&] { planners::rotor(chain, Bytes(100)); }),
              HasSubstr("needs at least " + std::to_string(least.count) + " B"));
}

TEST(Planners, RotorPlansForTheLeastThatItNames) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    // Coarse slots, in which figures are rounded by much.
    const Chain chain = random_chain(seed, 3 + static_cast<std::int64_t>(seed % 20), 1000);
    const planners::RotorOptions options{.slots = 7 + static_cast<std::int64_t>(seed % 13),
                                         .store = {}};
    const planners::Rotor rotor(chain, options);
    const Bytes least = rotor.least();
    EXPECT_LE(evaluate(chain, rotor.plan(least)).peak, least) << seed;
    EXPECT_LE(evaluate(chain, planners::rotor(chain, least, options)).peak, least) << seed;
  }
}

TEST(Planners, RefuseWhatNoMachineHasRoomFor) {
  EXPECT_THAT(refusal_of([] { planners::rotor(uniform_chain(3000)); }),
              HasSubstr("rotor: 3000 stages at 100 slots need tables of"));
  Chain large = uniform_chain(181);
  large.stages[0].saved = Bytes(std::int64_t{1} << 51);
  EXPECT_THAT(refusal_of([&] {
                planners::rotor(large, kUnlimited, {.slots = std::int64_t{1} << 50, .store = {}});
              }),
              HasSubstr("the most is 4 GiB: join stages, or ask for fewer slots"));
  EXPECT_THAT(refusal_of([] { planners::revolve(uniform_chain(5001)); }),
              HasSubstr("at most 5000 are planned; join stages"));
}

TEST(Planners, SchedulesSayHowManyLayersAStageStandsFor) {
  Chain chain = uniform_chain(3);
  EXPECT_TRUE(planners::keep_all(chain).layers.empty());
  chain.stages[1].layers = 4;
  for (const char* name : {"keep_all", "every_stage", "uniform:2", "sqrt", "revolve", "rotor"}) {
    EXPECT_THAT(planner_named(name)(chain, kUnlimited).layers, ElementsAre(1, 4, 1)) << name;
  }
}

TEST(Planners, AreFoundByName) {
  const Chain chain = uniform_chain(9);
  for (const std::string& name : planner_names()) {
    if (name == "uniform:K") continue;
    evaluate(chain, planner_named(name)(chain, kUnlimited));
  }
  EXPECT_EQ(planner_named("uniform:4")(chain, kUnlimited), planners::uniform(chain, 4));
  for (const char* text : {"", "uniform", "uniform:", "uniform:x", "uniform:0", "uniform:-3",
                           "uniform:4x", "uniform:99999999999999999999", "Rotor"}) {
    EXPECT_THAT(
        refusal_of([&] { planner_named(text); }),
        HasSubstr("\"" + std::string(text) + "\" is not a planner: choose one of keep_all, "))
        << text;
  }
}

TEST(Planners, RefuseChainsThatAreNone) {
  for (const char* name : {"keep_all", "every_stage", "uniform:1", "sqrt", "revolve", "rotor"}) {
    EXPECT_EQ(refusal_of([&] { planner_named(name)(Chain(), kUnlimited); }),
              "the chain has no stage; a chain has at least one")
        << name;
  }
  EXPECT_THAT(
      refusal_of([] { planners::rotor(uniform_chain(2), kUnlimited, {.slots = -1, .store = {}}); }),
      HasSubstr("rotor: slots is -1"));
  EXPECT_THAT(refusal_of([] { planners::rotor_offload(uniform_chain(2), kUnlimited, {-2}); }),
              HasSubstr("rotor: the store's rate is -2"));
}

TEST(Revolve, ItsScheduleTakesWhatTheClosedFormSays) {
  EXPECT_EQ(plan::revolve_advances(100, 10), 222);
  EXPECT_EQ(plan::revolve_advances(1000, 10), 3636);
  EXPECT_EQ(plan::revolve_advances(7, 1), 21);
  EXPECT_EQ(plan::revolve_advances(1, 5), 0);
  for (const std::int64_t stages : {1, 2, 3, 10, 57, 200, 1000}) {
    const Chain chain = uniform_chain(stages);
    for (const std::int64_t checkpoints : {1, 2, 3, 5, 10, 31, 1000}) {
      if (stages == 1000 && checkpoints == 1) continue;  // half a million steps
      const Schedule schedule = plan::revolve_checkpoints(chain, checkpoints);
      const ScheduleCost cost = evaluate(chain, schedule);
      // Every stage is run kept once besides.
      EXPECT_EQ(cost.forwards, plan::revolve_advances(stages, checkpoints) + stages)
          << stages << " stages, " << checkpoints << " checkpoints";
      // The last slot is the chain's input, which is not counted; the chain's output is.
      const std::int64_t waiting = std::min(checkpoints, stages) - 1;
      EXPECT_LE(cost.peak.count, 10 * (waiting + 2) + 30 + 2 * 10);
    }
  }
}

TEST(Revolve, IsTheLeastThatAnyOrderTakes) {
  // t(l, c) by its definition: the best first checkpoint.
  constexpr int kStages = 60, kCheckpoints = 9;
  std::int64_t least[kStages + 1][kCheckpoints + 1];
  for (int c = 1; c <= kCheckpoints; ++c) least[1][c] = 0;
  for (int l = 2; l <= kStages; ++l) {
    least[l][1] = l * (l - 1) / 2;
    for (int c = 2; c <= kCheckpoints; ++c) {
      least[l][c] = least[l][1];
      for (int j = 1; j < l; ++j) {
        least[l][c] = std::min(least[l][c], j + least[l - j][c - 1] + least[j][c]);
      }
      EXPECT_EQ(plan::revolve_advances(l, c), least[l][c]) << l << ", " << c;
    }
  }
}

TEST(Revolve, RefusesWhatCannotBe) {
  EXPECT_THAT(refusal_of([] { plan::revolve_advances(0, 1); }), HasSubstr("must be at least 1"));
  EXPECT_THAT(refusal_of([] { plan::revolve_checkpoints(uniform_chain(3), 0); }),
              HasSubstr("3 stages with 0 checkpoints"));
  EXPECT_THAT(refusal_of([] { plan::revolve_advances(1'000'001, 5); }),
              HasSubstr("takes up to 1000000"));
}

TEST(Rotor, IsRevolveWhereOneStageAtATimeCanBeKept) {
  // Keeping a stage takes more than any number of outputs, so only one is ever kept.
  for (const std::int64_t stages : {2, 5, 13, 30}) {
    Chain chain = uniform_chain(stages);
    for (ChainStage& stage : chain.stages) {
      stage.saved = Bytes(500);
      stage.output = Bytes(1);
      stage.output_gradient = Bytes(0);
    }
    // The caller holds this one beside what the other stages may take.
    chain.stages.back().output = Bytes(0);
    for (std::int64_t checkpoints = 1; checkpoints <= stages; ++checkpoints) {
      const Schedule schedule = planners::rotor(chain, Bytes(500 + checkpoints));
      EXPECT_EQ(evaluate(chain, schedule).forwards,
                stages + plan::revolve_advances(stages, checkpoints))
          << stages << " stages, " << checkpoints << " checkpoints";
    }
  }
}

// The least time for each peak among all persistent schedules.
std::map<Bytes, double> frontier_of_all(const Chain& chain, const TransferRate& store) {
  std::map<Bytes, double> times;
  EveryPersistentSchedule(
      std::ssize(chain.stages),
      [&](const Schedule& schedule) {
        const ScheduleCost cost = evaluate(chain, schedule, store);
        double& time = times.try_emplace(cost.peak, cost.time.count()).first->second;
        time = std::min(time, cost.time.count());
      },
      store.bytes_per_second > 0);
  return times;
}

// At every budget the time of the best persistent schedule, or a refusal with the least budget.
void expect_optimal(const Chain& chain, const TransferRate& store) {
  const planners::Rotor rotor(chain, {.slots = 0, .store = store});
  double best = std::numeric_limits<double>::infinity();
  const std::map<Bytes, double> frontier = frontier_of_all(chain, store);
  ASSERT_EQ(rotor.least(), frontier.begin()->first);
  EXPECT_THROW(rotor.plan(rotor.least() - Bytes(1)), BudgetError);
  for (const auto& [peak, time] : frontier) {
    best = std::min(best, time);
    const ScheduleCost cost = evaluate(chain, rotor.plan(peak), store);
    ASSERT_LE(cost.peak, peak);
    ASSERT_NEAR(cost.time.count(), best, 1e-5 * best) << "at " << peak.count << " bytes";
  }
}

TEST(Rotor, IsAsFastAsTheBestOfAllPersistentSchedules) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    expect_optimal(random_chain(seed, 1 + static_cast<std::int64_t>(seed % 6), 8), {});
  }
  expect_optimal(random_chain(1, 8, 8), {});
  expect_optimal(uniform_chain(8), {});
}

TEST(Rotor, IsAsFastAsTheBestThatMayMoveThingsToAStore) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    expect_optimal(random_chain(seed, 1 + static_cast<std::int64_t>(seed % 5), 8),
                   {1 + static_cast<double>(seed % 7)});
  }
}

TEST(Rotor, ALargerBudgetIsNeverSlowerAndNeverPassed) {
  EXPECT_TRUE(rc::check([](std::uint64_t seed) {
    const std::int64_t stages = *rc::gen::inRange(1, 25);
    // From sizes that are exact to sizes that slots round.
    const auto most = static_cast<std::int64_t>(std::pow(10, *rc::gen::inRange(1, 10)));
    const Chain chain = random_chain(seed, stages, most);
    const std::int64_t slots = *rc::gen::element<std::int64_t>(0, 50, 500);
    const planners::Rotor rotor(chain, {.slots = slots, .store = {}});
    const Bytes least = rotor.least();
    const Bytes plain = evaluate(chain, planners::keep_all(chain)).peak;
    RC_ASSERT(least <= plain);
    double before = std::numeric_limits<double>::infinity();
    for (int i = 0; i <= 20; ++i) {
      const Bytes budget = least + Bytes((plain - least).count / 20 * i);
      const ScheduleCost cost = evaluate(chain, rotor.plan(budget));
      RC_ASSERT(cost.peak <= budget);
      RC_ASSERT(cost.time.count() <= before);
      before = cost.time.count();
    }
    RC_ASSERT(evaluate(chain, rotor.plan(plain)).recompute.count() == 0);
  }));
}

TEST(Rotor, IsNeverSlowerThanSegmentsOrRevolveInAsManyBytes) {
  EXPECT_TRUE(rc::check([](std::uint64_t seed) {
    const std::int64_t stages = *rc::gen::inRange(2, 25);
    const Chain chain = random_chain(seed, stages, 1'000'000);
    const planners::Rotor rotor(chain);
    const auto compare = [&](const Schedule& schedule) {
      const ScheduleCost other = evaluate(chain, schedule);
      const ScheduleCost ours = evaluate(chain, rotor.plan(other.peak));
      RC_ASSERT(ours.time <= other.time);
    };
    for (std::int64_t k = 1; k <= stages; ++k) compare(planners::uniform(chain, k));
    for (std::int64_t c = 1; c <= stages; ++c) compare(plan::revolve_checkpoints(chain, c));
  }));
}

TEST(Rotor, ChainsOfManyStagesAreSolvedInSlots) {
  const Chain chain = random_chain(3, 150, 100'000'000);
  const planners::Rotor rotor(chain, {.slots = 500, .store = {}});
  const Bytes budget(rotor.least().count * 6 / 5);
  const ScheduleCost cost = evaluate(chain, rotor.plan(budget));
  EXPECT_LE(cost.peak, budget);
  EXPECT_GT(cost.peak, Bytes(budget.count * 95 / 100));
  EXPECT_LT(cost.recompute, chain.forward());
}

}  // namespace
}  // namespace reprise::plan
