// The schedules that are made by rule: small ones in full, large ones by their properties.
#include <gmock/gmock.h>
#include <rapidcheck.h>

#include <algorithm>
#include <map>

#include "reprise/pipeline_schedule.h"
#include "tests/refusal.h"

namespace reprise::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Written by hand from the papers' pictures.
TEST(PipelineSchedules, SmallOnesAreThoseOfThePapers) {
  EXPECT_EQ(schedules::gpipe(2, 2).csv(),
            "0F0,0F1,,,0B1,0B0\n"
            ",1F0,1F1,1B1,1B0\n");
  EXPECT_EQ(schedules::gpipe(1, 2, schedules::BackwardOrder::kAscending).csv(),
            "0F0,0F1,0B0,0B1\n");
  EXPECT_EQ(schedules::one_forward_one_backward(2, 3).csv(),
            "0F0,0F1,,0B0,0F2,0B1,,0B2\n"
            ",1F0,1B0,1F1,1B1,1F2,1B2\n");
  EXPECT_EQ(schedules::one_forward_one_backward(3, 1).csv(),
            "0F0,,,,,0B0\n"
            ",1F0,,,1B0\n"
            ",,2F0,2B0\n");
  EXPECT_EQ(schedules::looped_breadth_first(2, 2, 1).csv(),
            "0F0,2F0,,,2B0,0B0\n"
            ",1F0,3F0,3B0,1B0\n");
  EXPECT_EQ(schedules::interleaved_1f1b(2, 2, 2).csv(),
            "0F0,0F1,2F0,2F1,,,,2B0,,2B1,,0B0,,0B1\n"
            ",1F0,1F1,,3F0,3B0,3F1,3B1,,1B0,,1B1\n");
  EXPECT_EQ(schedules::interleaved_zero_bubble(2, 1, 2).csv(),
            "0F0,,0F1,0I0,0W0,0I1,0W1\n"
            ",1F0,1I0,1F1,1I1,1W0,1W1\n");
  EXPECT_EQ(schedules::zero_bubble_v(2, 3).csv(),
            "0F0,0F1,0F2,3F0,3I0,3W0,3F1,3I1,3W1,0I0,0W0,3F2,3I2,3W2,0I1,0W1,0I2,0W2\n"
            ",1F0,2F0,1F1,2F1,2I0,2W0,1F2,1I0,1W0,2F2,2I1,2W1,1I1,2I2,1I2,1W1,2W2,1W2\n");
  EXPECT_EQ(schedules::dual_pipe_v(1, 2).csv(),
            "0F0,1F0,0F1,1B0,(1F1;0B0)OVERLAP_F_B,1B1,0I1,0W1\n");
}

// ScheduleSizes that all schedules take.
struct ScheduleSizes {
  std::int64_t workers, stages_per_worker, micro_batches;
};

ScheduleSizes random_sizes(const std::string& name) {
  const auto workers = *rc::gen::inRange<std::int64_t>(1, 9);
  const bool has_one = name == "gpipe" || name == "1f1b";
  const bool has_two = name == "zbv" || name == "dualpipev";
  const auto stages = has_one ? 1 : has_two ? 2 : *rc::gen::inRange<std::int64_t>(1, 5);
  auto micro_batches = *rc::gen::inRange<std::int64_t>(1, 30);
  if (name == "dualpipev") micro_batches += 2 * workers - 1;
  if (name == "interleaved-1f1b" || name == "zero-bubble") {
    const auto rounds = std::max(std::int64_t{1}, micro_batches / workers);
    micro_batches -= micro_batches % rounds;
  }
  return {workers, stages, micro_batches};
}

TEST(PipelineSchedules, AllCanBeRunAndComeBackFromTheirText) {
  EXPECT_THAT(schedules::names(), ElementsAre("gpipe", "1f1b", "looped-bfs", "interleaved-1f1b",
                                              "zero-bubble", "zbv", "dualpipev"));
  for (const std::string& name : schedules::names()) {
    EXPECT_TRUE(rc::check(name, [&name] {
      const auto [workers, stages, micro_batches] = random_sizes(name);
      const auto schedule = schedules::by_name(name, workers, stages, micro_batches);
      schedule.check();
      RC_ASSERT(schedule.name == name);
      RC_ASSERT(schedule.stages == workers * stages);
      RC_ASSERT(schedule.micro_batches == micro_batches);
      RC_ASSERT(std::ssize(schedule.workers) == workers);
      auto same = PipelineSchedule::parse_csv(schedule.csv());
      same.name = name;
      RC_ASSERT(same == schedule);
    }));
  }
}

// How many actions of each kind there are.
std::map<PipelineWork, std::int64_t> counts_of(const PipelineSchedule& schedule) {
  std::map<PipelineWork, std::int64_t> counts;
  for (const auto& slots : schedule.workers) {
    for (const PipelineSlot& slot : slots) {
      for (const PipelineAction& action : slot) ++counts[action.work];
    }
  }
  return counts;
}

TEST(PipelineSchedules, OnlyZeroBubbleOnesTakeBackwardsApart) {
  for (const char* name : {"gpipe", "1f1b", "looped-bfs", "interleaved-1f1b"}) {
    const bool has_one = std::string(name) == "gpipe" || std::string(name) == "1f1b";
    auto counts = counts_of(schedules::by_name(name, 4, has_one ? 1 : 2, 8));
    EXPECT_EQ(counts[PipelineWork::kBackward], has_one ? 32 : 64) << name;
    EXPECT_EQ(counts[PipelineWork::kInputGradient], 0) << name;
  }
  for (const char* name : {"zero-bubble", "zbv"}) {
    auto counts = counts_of(schedules::by_name(name, 4, 2, 8));
    EXPECT_EQ(counts[PipelineWork::kBackward], 0) << name;
    EXPECT_EQ(counts[PipelineWork::kWeightGradient], 64) << name;
  }
  auto counts = counts_of(schedules::dual_pipe_v(4, 8));
  EXPECT_GT(counts[PipelineWork::kBackward], 0);
  EXPECT_GT(counts[PipelineWork::kInputGradient], 0);
}

TEST(PipelineSchedules, StagesLoopOverTheWorkersOrTurnAtTheLast) {
  EXPECT_THAT(schedules::interleaved_1f1b(3, 2, 3).worker_of_stage(),
              ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_THAT(schedules::looped_breadth_first(2, 3, 1).worker_of_stage(),
              ElementsAre(0, 1, 0, 1, 0, 1));
  EXPECT_THAT(schedules::interleaved_zero_bubble(2, 2, 2).worker_of_stage(),
              ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(schedules::zero_bubble_v(3, 3).worker_of_stage(), ElementsAre(0, 1, 2, 2, 1, 0));
  EXPECT_THAT(schedules::dual_pipe_v(2, 4).worker_of_stage(), ElementsAre(0, 1, 1, 0));
}

// In slots of equal length, an action comes after the slots of all that it waits for.
TEST(PipelineSchedules, IdleSlotsAlignTheCellsOfATable) {
  for (const char* name : {"gpipe", "1f1b"}) {
    EXPECT_TRUE(rc::check(name, [name] {
      const auto [workers, stages, micro_batches] = random_sizes(name);
      const auto schedule = schedules::by_name(name, workers, stages, micro_batches);
      std::map<std::string, std::size_t> slot_of;
      for (const auto& slots : schedule.workers) {
        for (std::size_t i = 0; i < slots.size(); ++i) {
          for (const PipelineAction& action : slots[i]) slot_of[to_string(action)] = i;
        }
      }
      for (std::int64_t stage = 0; stage + 1 < schedule.stages; ++stage) {
        for (std::int64_t i = 0; i < micro_batches; ++i) {
          const auto at = [&](std::int64_t of, PipelineWork work) {
            return slot_of.at(to_string(PipelineAction{of, work, i}));
          };
          RC_ASSERT(at(stage, PipelineWork::kForward) < at(stage + 1, PipelineWork::kForward));
          RC_ASSERT(at(stage + 1, PipelineWork::kBackward) < at(stage, PipelineWork::kBackward));
        }
      }
    }));
  }
}

TEST(PipelineSchedules, SizesOutOfBoundsAreRefused) {
  for (const std::string& name : schedules::names()) {
    const std::int64_t stages = name == "gpipe" || name == "1f1b" ? 1 : 2;
    EXPECT_EQ(refusal_of([&] { schedules::by_name(name, 0, stages, 8); }),
              name + ": workers is 0; it must be between 1 and 4194304");
    EXPECT_EQ(refusal_of([&] { schedules::by_name(name, 2, stages, -1); }),
              name + ": micro_batches is -1; it must be between 1 and 4194304");
    EXPECT_THAT(refusal_of([&] { schedules::by_name(name, 1 << 20, stages, 8); }),
                HasSubstr("micro-batches are too many; the product may be at most 4194304"));
  }
  EXPECT_EQ(refusal_of([] { schedules::looped_breadth_first(1, 0, 1); }),
            "looped-bfs: stages_per_worker is 0; it must be between 1 and 4194304");
  EXPECT_EQ(
      refusal_of([] { schedules::interleaved_1f1b(1 << 12, 1 << 12, 1); }),
      "interleaved-1f1b: 4096 workers with 4096 stages each and 1 micro-batches are too many; "
      "the product may be at most 4194304");
}

TEST(PipelineSchedules, MicroBatchesThatDoNotFillTheirRoundsAreRefused) {
  EXPECT_EQ(refusal_of([] { schedules::interleaved_1f1b(4, 2, 9); }),
            "interleaved-1f1b: micro_batches is 9; with 4 workers it must be a multiple of 2, the "
            "number of rounds: take 8 or 10");
  EXPECT_THAT(refusal_of([] { schedules::interleaved_zero_bubble(4, 2, 13); }),
              HasSubstr("zero-bubble: micro_batches is 13"));
  schedules::interleaved_1f1b(4, 2, 3).check();  // fewer than workers: one round
  EXPECT_EQ(refusal_of([] { schedules::dual_pipe_v(4, 7); }),
            "dualpipev: micro_batches is 7; it must be at least the number of stages, 8");
}

TEST(PipelineSchedules, NamesAndTheirStagesAreChecked) {
  EXPECT_EQ(refusal_of([] { schedules::by_name("pipedream", 4, 1, 8); }),
            "no schedule has the name \"pipedream\"; choose from gpipe, 1f1b, looped-bfs, "
            "interleaved-1f1b, zero-bubble, zbv, dualpipev");
  EXPECT_EQ(refusal_of([] { schedules::by_name("1f1b", 4, 2, 8); }),
            "1f1b: stages_per_worker is 2; this schedule has 1");
  EXPECT_EQ(refusal_of([] { schedules::by_name("zbv", 4, 1, 8); }),
            "zbv: stages_per_worker is 1; this schedule has 2");
}

}  // namespace
}  // namespace reprise::plan
