// Schedules read as regions inside regions.
#include "plan/chain/nested_schedule.h"
#include "plan/chain/revolve.h"

#include <gmock/gmock.h>
#include <rapidcheck.h>

#include "tests/plan/chain/chains.h"
#include "tests/plan/trace/testing.h"

namespace reprise::plan {
namespace {

using Kind = ScheduleOp::Kind;
using ::testing::HasSubstr;

// "0 (1 (2 3) 4) 5": kept stages, and in parentheses what is run again.
std::string text_of(const Nests& nests) {
  std::string text;
  for (const Nest& nest : nests) {
    if (!text.empty()) text += ' ';
    text += nest.again.empty() ? std::to_string(nest.stage) + (nest.is_offloaded ? "'" : "")
                               : '(' + text_of(nest.again) + ')';
  }
  return text;
}

std::string text_of(const Schedule& schedule, std::int64_t stages) {
  return text_of(nests_of(schedule, stages));
}

TEST(NestedSchedule, ShowsWhatRunsAgain) {
  const Chain chain = uniform_chain(5);
  EXPECT_EQ(text_of(planners::keep_all(chain), 5), "0 1 2 3 4");
  EXPECT_EQ(text_of(planners::every_stage(chain), 5), "(0) (1) (2) (3) 4");
  EXPECT_EQ(text_of(planners::uniform(chain, 2), 5), "(0 1) 2 3 4");
  EXPECT_EQ(text_of(plan::revolve_checkpoints(chain, 1), 5), "((((0) 1) 2) 3) 4");
}

TEST(NestedSchedule, ReadsWhatPlannersMake) {
  EXPECT_TRUE(rc::check([](std::uint64_t seed) {
    const std::int64_t stages = *rc::gen::inRange(1, 20);
    const Chain chain = random_chain(seed, stages, 1000);
    const planners::Rotor rotor(chain, {.slots = 0, .store = {100}});
    const Bytes least = rotor.least();
    const Bytes plain = evaluate(chain, planners::keep_all(chain)).peak;
    const Schedule schedule =
        rotor.plan(least + Bytes(*rc::gen::inRange<std::int64_t>(0, (plain - least).count + 1)));
    nests_of(schedule, stages);
    nests_of(plan::revolve_checkpoints(chain, *rc::gen::inRange(1, 20)), stages);
  }));
}

TEST(NestedSchedule, ReadsEveryPersistentSchedule) {
  int count = 0;
  EveryPersistentSchedule(
      4, [&](const Schedule& schedule) { ++count, nests_of(schedule, 4); }, /*offload=*/true);
  EXPECT_GT(count, 50);
}

TEST(NestedSchedule, RefusesOthersByTheirStep) {
  const auto refusal = [](std::vector<ScheduleOp> steps) {
    return refusal_of<PlanError>([&] { nests_of(Schedule{std::move(steps)}, 2); });
  };
  const ScheduleOp keep0{Kind::kForwardKeep, 0}, keep1{Kind::kForwardKeep, 1};
  const ScheduleOp back0{Kind::kBackward, 0}, back1{Kind::kBackward, 1};
  EXPECT_EQ(refusal({keep0, keep1, back1, back0}), "");
  EXPECT_EQ(
      refusal({}),
      "operation 0 of the schedule: stage 0 should be kept, or run with its input kept. Regions "
      "run schedules in which stages that are not kept run again as a whole, when all after "
      "them have had their backward, and do not go to a store then");
  EXPECT_THAT(refusal({keep0, keep1, back1}),
              HasSubstr("operation 3 of the schedule: stage 0 should be"
                        " backward"));
  EXPECT_THAT(refusal({keep0, keep1, back1, back0, back0}), HasSubstr("something is left"));
  // Run again before the other's backward: valid, but not as a whole later.
  EXPECT_THAT(refusal({{Kind::kForwardCheckpoint, 0}, keep0, keep1, back1, back0}),
              HasSubstr("operation 1 of the schedule: stage 1 should be kept"));
  EXPECT_THAT(refusal({{Kind::kForwardCheckpoint, 0}, {Kind::kForwardDrop, 1}, keep0}),
              HasSubstr("no stage is left that is kept"));
  EXPECT_THAT(refusal({keep0, {Kind::kOffload, 0}, keep1, back1, back0}),
              HasSubstr("stage 0 should be brought back from the store"));
  const ScheduleOp from0{Kind::kForwardCheckpoint, 0};
  EXPECT_THAT(
      refusal({from0, keep1, back1, keep0, {Kind::kOffload, 0}, {Kind::kLoad, 0}, back0}),
      HasSubstr("operation 5 of the schedule: stage 0 goes to a store where it is run again"));
}

TEST(NestedSchedule, ReadsLongChains) {
  constexpr std::int64_t kStages = 200'000;
  EXPECT_EQ(nests_of(planners::keep_all(uniform_chain(kStages)), kStages).size(), kStages);
}

}  // namespace
}  // namespace reprise::plan
