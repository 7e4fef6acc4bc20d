// Which activations a worker of a pipeline holds, and in how many buffers.
#include <gmock/gmock.h>
#include <rapidcheck.h>

#include <map>
#include <set>

#include "reprise/pipeline_schedule.h"
#include "tests/refusal.h"

namespace reprise::plan {
namespace {

using ::testing::ElementsAre;

PipelineLives::Worker lives_of(const char* csv, std::int64_t checkpoint_stop = 0) {
  return activation_lives(PipelineSchedule::parse_csv(csv), checkpoint_stop).workers.at(0);
}

// The example of torch's analyze_pipeline_activation_liveness(): the last activation takes the
// buffer of the first.
TEST(PipelineLives, BuffersAreUsedAgainAfterALifeHasEnded) {
  const auto lives = lives_of("0F0,1F0,0F1,1B0,0B0,1F1,1B1,0B1");
  EXPECT_THAT(lives.kept, ElementsAre(1, 2, 3, 2, 1, 2, 1, 0));
  EXPECT_EQ(lives.peak_kept, 3);
  EXPECT_THAT(lives.buffer, ElementsAre(0, 1, 2, 0));
  EXPECT_EQ(lives.buffers, 3);
}

TEST(PipelineLives, InputGradientsFreeNothingAndWeightGradientsDo) {
  const auto lives = lives_of("0F0,0I0,0F1,0W0,0B1");
  EXPECT_THAT(lives.kept, ElementsAre(1, 1, 2, 1, 0));
  EXPECT_THAT(lives.buffer, ElementsAre(0, 1));
}

TEST(PipelineLives, WhatOverlapsLivesAtOnce) {
  const auto lives = lives_of("0F0,(0F1;0B0)OVERLAP_F_B,0B1");
  EXPECT_THAT(lives.kept, ElementsAre(1, 1, 0));
  EXPECT_EQ(lives.peak_kept, 2);
  EXPECT_THAT(lives.buffer, ElementsAre(0, 1));
  // One slot later the buffer is free.
  EXPECT_THAT(lives_of("0F0,0B0,0F1,0B1").buffer, ElementsAre(0, 0));
}

TEST(PipelineLives, CheckpointedOnesHoldTheirInputUntilTheirBackward) {
  const auto lives = lives_of("0F0,0F1,0F2,0B0,,0I1,0W1,0B2", 2);
  EXPECT_THAT(lives.checkpointed, ElementsAre(1, 2, 2, 1, 1, 0, 0, 0));
  EXPECT_THAT(lives.kept, ElementsAre(0, 0, 1, 1, 1, 2, 1, 0));
  EXPECT_EQ(lives.peak_checkpointed, 2);
  EXPECT_EQ(lives.peak_kept, 2);
  // Buffers are taken at the recomputation.
  EXPECT_THAT(lives.buffer, ElementsAre(1, 1, 0));
  EXPECT_EQ(lives.buffers, 2);
}

TEST(PipelineLives, OneActivationAtATimeWhereAllAreCheckpointed) {
  for (const std::int64_t all : {8, 1000}) {
    const auto lives = activation_lives(schedules::gpipe(4, 8), all);
    for (const auto& worker : lives.workers) {
      EXPECT_EQ(worker.peak_checkpointed, 8);
      EXPECT_EQ(worker.peak_kept, 1);
      EXPECT_EQ(worker.buffers, 1);
    }
  }
}

TEST(PipelineLives, OneForwardOneBackwardHoldsAsManyAsStagesFollow) {
  EXPECT_TRUE(rc::check([] {
    const auto workers = *rc::gen::inRange<std::int64_t>(1, 9);
    const auto micro_batches = *rc::gen::inRange<std::int64_t>(1, 30);
    const auto lives =
        activation_lives(schedules::one_forward_one_backward(workers, micro_batches));
    for (std::int64_t i = 0; i < workers; ++i) {
      RC_ASSERT(lives.workers[static_cast<std::size_t>(i)].peak_kept ==
                std::min(workers - i, micro_batches));
    }
  }));
}

// No two activations are in one buffer at once, and there are no more buffers than needed.
TEST(PipelineLives, BuffersHoldOneActivationAtATimeAndAreAsFewAsPossible) {
  for (const char* name : {"looped-bfs", "zero-bubble", "zbv", "dualpipev"}) {
    EXPECT_TRUE(rc::check(name, [name] {
      const auto workers = *rc::gen::inRange<std::int64_t>(1, 6);
      const auto micro_batches = workers * *rc::gen::inRange<std::int64_t>(2, 5);
      const auto stop = *rc::gen::inRange<std::int64_t>(0, micro_batches + 1);
      const auto schedule = schedules::by_name(name, workers, 2, micro_batches);
      const auto lives = activation_lives(schedule, stop);
      for (std::size_t w = 0; w < schedule.workers.size(); ++w) {
        const PipelineLives::Worker& worker = lives.workers[w];
        RC_ASSERT(worker.buffers == worker.peak_kept);
        RC_ASSERT(worker.kept.size() == schedule.workers[w].size());
        std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> buffer_of;
        std::set<std::int64_t> taken;
        std::size_t forwards = 0;
        for (const PipelineSlot& slot : schedule.workers[w]) {
          std::vector<std::int64_t> freed;
          for (const PipelineAction& action : slot) {
            const bool is_checkpointed = action.micro_batch < stop;
            const auto key = std::pair(action.stage, action.micro_batch);
            if (action.work == PipelineWork::kForward) buffer_of[key] = worker.buffer[forwards++];
            const bool is_first_gradient = action.work == PipelineWork::kBackward ||
                                           action.work == PipelineWork::kInputGradient;
            if (is_checkpointed ? is_first_gradient : action.work == PipelineWork::kForward) {
              RC_ASSERT(buffer_of[key] < worker.buffers);
              RC_ASSERT(taken.insert(buffer_of[key]).second);
            }
            if (action.work == PipelineWork::kBackward ||
                action.work == PipelineWork::kWeightGradient) {
              freed.push_back(buffer_of[key]);
            }
          }
          for (const std::int64_t buffer : freed) taken.erase(buffer);
        }
        RC_ASSERT(taken.empty());
        RC_ASSERT(worker.kept.back() == 0);
        RC_ASSERT(worker.checkpointed.back() == 0);
      }
    }));
  }
}

TEST(PipelineLives, ANegativeStopAndABrokenScheduleAreRefused) {
  EXPECT_EQ(refusal_of([] { activation_lives(schedules::gpipe(2, 2), -1); }),
            "activation_lives: checkpoint_stop is -1; it must be at least 0, which checkpoints no "
            "micro-batch");
  PipelineSchedule broken = schedules::gpipe(2, 2);
  broken.workers[1].clear();
  EXPECT_EQ(refusal_of<PlanError>([&] { activation_lives(broken); }),
            "worker 1 runs no stage; give it one, or leave the worker out");
}

}  // namespace
}  // namespace reprise::plan
