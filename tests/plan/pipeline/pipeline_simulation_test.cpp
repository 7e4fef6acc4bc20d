// Times, bubbles and peaks that simulations of a pipeline predict.
#include <gmock/gmock.h>
#include <rapidcheck.h>

#include <algorithm>

#include "reprise/pipeline_schedule.h"
#include "tests/refusal.h"

namespace reprise::plan {
namespace {

using ::testing::HasSubstr;

struct Yardstick {
  const char* name;
  std::int64_t workers, stages_per_worker, micro_batches;
  double slots;
  std::int64_t in_flight;  // on worker 0
};

// The tables of torch.distributed.pipelining 2.13, run in the order of their dependencies.
TEST(PipelineSimulation, EvenStagesTakeTheSlotsThatTorchCounts) {
  for (const Yardstick& each : {Yardstick{"gpipe", 4, 1, 8, 33, 8},
                                {"1f1b", 4, 1, 8, 33, 4},
                                {"interleaved-1f1b", 4, 2, 8, 57, 11},
                                {"looped-bfs", 4, 2, 8, 57, 16},
                                {"zero-bubble", 4, 2, 8, 51, 8},
                                {"zbv", 4, 2, 8, 51, 8},
                                {"dualpipev", 4, 2, 8, 51, 9},
                                {"gpipe", 8, 1, 32, 117, 32},
                                {"1f1b", 8, 1, 32, 117, 8},
                                {"interleaved-1f1b", 8, 2, 32, 213, 23},
                                {"looped-bfs", 8, 2, 32, 213, 64},
                                {"zero-bubble", 8, 2, 32, 199, 16},
                                {"zbv", 8, 2, 32, 199, 16},
                                {"dualpipev", 8, 2, 32, 199, 17}}) {
    const auto schedule =
        schedules::by_name(each.name, each.workers, each.stages_per_worker, each.micro_batches);
    const auto run = simulate(schedule, PipelineCosts::even(schedule.stages));
    EXPECT_EQ(run.time.count(), each.slots) << each.name;
    EXPECT_EQ(activation_lives(schedule).workers[0].peak_kept, each.in_flight) << each.name;
    // Each activation is one byte, and inputs have none.
    EXPECT_LE(run.workers[0].peak, Bytes(each.in_flight)) << each.name;
  }
}

TEST(PipelineSimulation, BubblesAreThoseOfThePapers) {
  EXPECT_TRUE(rc::check([] {
    const auto workers = *rc::gen::inRange<std::int64_t>(1, 9);
    const auto micro_batches = workers * *rc::gen::inRange<std::int64_t>(1, 6);
    const auto stages = *rc::gen::inRange<std::int64_t>(1, 5);
    const auto bubble_of = [](const PipelineSchedule& schedule) {
      return simulate(schedule, PipelineCosts::even(schedule.stages)).bubble;
    };
    const auto n = static_cast<double>(workers), m = static_cast<double>(micro_batches),
               v = static_cast<double>(stages);
    RC_ASSERT(std::abs(bubble_of(schedules::gpipe(workers, micro_batches)) -
                       (n - 1) / (m + n - 1)) < 1e-6);
    RC_ASSERT(std::abs(bubble_of(schedules::one_forward_one_backward(workers, micro_batches)) -
                       (n - 1) / (m + n - 1)) < 1e-6);
    RC_ASSERT(std::abs(bubble_of(schedules::interleaved_1f1b(workers, stages, micro_batches)) -
                       (n - 1) / (v * m + n - 1)) < 1e-6);
    const auto any = workers + *rc::gen::inRange<std::int64_t>(0, 20);
    RC_ASSERT(std::abs(bubble_of(schedules::looped_breadth_first(workers, stages, any)) -
                       (n - 1) / (v * static_cast<double>(any) + n - 1)) < 1e-6);
  }));
}

TEST(PipelineSimulation, WorkersOfTheVIdleOnlyBeforeTheirFirstActionAndAfterTheirLast) {
  EXPECT_TRUE(rc::check([] {
    const auto workers = *rc::gen::inRange<std::int64_t>(1, 9);
    const auto micro_batches = 2 * workers - 1 + *rc::gen::inRange<std::int64_t>(0, 20);
    const auto run = simulate(schedules::zero_bubble_v(workers, micro_batches),
                              PipelineCosts::even(2 * workers));
    for (const PipelineTimeline::Worker& worker : run.workers) {
      RC_ASSERT(worker.busy == worker.events.back().end - worker.events.front().begin);
    }
  }));
}

// A stage of 2 s forward, 4 s backward, 1 s to send.
PipelineCosts sending_costs(std::int64_t stages) {
  PipelineCosts costs = PipelineCosts::even(stages);
  for (PipelineStageCosts& stage : costs.stages) {
    stage.forward = Seconds(2);
    stage.backward = Seconds(4);
    stage.recompute = Seconds(3);
    stage.send = Seconds(1);
  }
  return costs;
}

TEST(PipelineSimulation, SendsDelayButOccupyNobody) {
  const auto schedule = PipelineSchedule::parse_csv("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1");
  const auto run = simulate(schedule, sending_costs(2));
  const auto begin_of = [&](std::size_t worker, std::size_t event) {
    return run.workers[worker].events[event].begin.count();
  };
  EXPECT_EQ(begin_of(0, 1), 2);      // while the first output is on its way
  EXPECT_EQ(begin_of(1, 0), 2 + 1);  // its arrival
  EXPECT_EQ(begin_of(0, 2), 9 + 1);  // of the gradient
  EXPECT_EQ(run.time.count(), 20);   // 1F1 from 9, 1B1 from 11, 0B1 from 16
  EXPECT_EQ(run.workers[0].busy.count(), 12);
  EXPECT_DOUBLE_EQ(run.bubble, 1 - 24.0 / 40);
}

TEST(PipelineSimulation, StagesOfOneWorkerSendNothing) {
  const auto run = simulate(PipelineSchedule::parse_csv("0F0,1F0,1B0,0B0"), sending_costs(2));
  EXPECT_EQ(run.time.count(), 12);
  EXPECT_EQ(run.bubble, 0);
}

TEST(PipelineSimulation, InputAndWeightGradientsShareTheBackwardUnlessTheyHaveTimes) {
  const auto schedule = PipelineSchedule::parse_csv("0F0,0I0,0W0");
  PipelineCosts costs = PipelineCosts::even(1);
  costs.stages[0].backward = Seconds(8);
  EXPECT_EQ(simulate(schedule, costs).time.count(), 1 + 1 + 1);
  costs.stages[0].input_gradient = costs.stages[0].weight_gradient = Seconds(0);
  EXPECT_EQ(simulate(schedule, costs).time.count(), 1 + 4 + 4);
  costs.stages[0].weight_gradient = Seconds(3);
  EXPECT_EQ(simulate(schedule, costs).time.count(), 1 + 0 + 3);
}

TEST(PipelineSimulation, ARecomputationMayRunAheadOfItsGradient) {
  const auto schedule = PipelineSchedule::parse_csv("0F0,0B0\n1F0,1B0");
  const auto ahead = simulate(schedule, sending_costs(2), {.checkpoint_stop = 1});
  // Stage 1 ends at 3 + 2 + 3 + 4 = 12; stage 0 recomputes meanwhile.
  ASSERT_EQ(ahead.workers[0].events.size(), 3U);
  const PipelineEvent& recomputation = ahead.workers[0].events[1];
  EXPECT_TRUE(recomputation.recompute);
  EXPECT_EQ(to_string(recomputation.action), "0B0");
  EXPECT_EQ(recomputation.begin.count(), 2);
  EXPECT_EQ(recomputation.end.count(), 5);
  EXPECT_EQ(ahead.workers[0].events[2].begin.count(), 13);
  EXPECT_EQ(ahead.time.count(), 17);
  EXPECT_EQ(ahead.workers[0].busy.count(), 9);
  const auto waiting =
      simulate(schedule, sending_costs(2), {.checkpoint_stop = 1, .recompute_ahead = false});
  EXPECT_EQ(waiting.workers[0].events[1].begin.count(), 13);
  EXPECT_EQ(waiting.time.count(), 20);
  // I is preceded by one too, W is not.
  const auto split = simulate(PipelineSchedule::parse_csv("0F0,0I0,0W0"), sending_costs(1),
                              {.checkpoint_stop = 1});
  ASSERT_EQ(split.workers[0].events.size(), 4U);
  EXPECT_EQ(to_string(split.workers[0].events[1].action), "0I0");
}

TEST(PipelineSimulation, OnlyTheLastOfGpipesMicroBatchesNeedsNoRecomputation) {
  const auto schedule = schedules::gpipe(4, 8);
  const auto costs = PipelineCosts::even(4);
  EXPECT_EQ(simulate(schedule, costs, {.checkpoint_stop = 8}).time.count(), 8 + 3 + 3 * 11 - 3);
  EXPECT_EQ(simulate(schedule, costs, {.checkpoint_stop = 7}).time.count(), 33 + 7);
}

// A stage has 10 bytes of input and saves 30; W needs 25 of these 40. 7 are temporary, 1000 resident.
PipelineCosts byte_costs(std::int64_t stages) {
  PipelineCosts costs = PipelineCosts::even(stages);
  for (PipelineStageCosts& stage : costs.stages) {
    stage.input = Bytes(10);
    stage.saved = Bytes(30);
    stage.saved_for_weights = Bytes(25);
    stage.temporaries = Bytes(7);
    stage.resident = Bytes(1000);
  }
  return costs;
}

Bytes peak_of_one_worker(const char* csv, std::int64_t checkpoint_stop = 0) {
  const auto schedule = PipelineSchedule::parse_csv(csv);
  return simulate(schedule, byte_costs(schedule.stages), {.checkpoint_stop = checkpoint_stop})
      .workers.at(0)
      .peak;
}

TEST(PipelineSimulation, CountsEachKindOfBytesOnce) {
  EXPECT_EQ(peak_of_one_worker("0F0,0B0"), Bytes(1000 + 40 + 7));
  EXPECT_EQ(peak_of_one_worker("0F0,0F1,0B1,0B0"), Bytes(1000 + 80 + 7));
  EXPECT_EQ(peak_of_one_worker("0F0,0F1,0B1,0B0", 2), Bytes(1000 + 50 + 7));
  EXPECT_EQ(peak_of_one_worker("0F0,0B0,0F1,0B1", 1), Bytes(1000 + 40 + 7));
  // The bytes that W needs stay beside the next micro-batch.
  EXPECT_EQ(peak_of_one_worker("0F0,0I0,0F1,0I1,0W0,0W1"), Bytes(1000 + 25 + 40 + 7));
  // Two stages; the gradient of the last is with the temporaries of the first.
  EXPECT_EQ(peak_of_one_worker("0F0,1F0,1B0,0B0"), Bytes(2000 + 80 + 7));
}

TEST(PipelineSimulation, OutputsAndGradientsThatWaitAreInMemory) {
  PipelineCosts costs = byte_costs(2);
  const auto schedule = PipelineSchedule::parse_csv(
      "0F0,0F1,0F2,0B0,0B1,0B2\n"
      "1F0,1B0,1F1,1B1,1F2,1B2");
  // While 1B0 runs from 2 to 4, the outputs of 0F1 and 0F2 arrive at 2 and 3.
  EXPECT_EQ(simulate(schedule, costs).workers[1].peak, Bytes(1000 + 40 + 7 + 2 * 10));
  costs.stages[0].send = Seconds(1);
  // 1B0 ends at 5; the outputs arrive at 3 and 4.
  EXPECT_EQ(simulate(schedule, costs).workers[1].peak, Bytes(1000 + 40 + 7 + 2 * 10));
  costs.stages[0].send = Seconds(0);
  costs.stages[0].forward = Seconds(100);
  EXPECT_EQ(simulate(schedule, costs).workers[1].peak, Bytes(1000 + 40 + 7));
  // Two gradients arrive before 0F2 ends.
  EXPECT_EQ(simulate(schedule, costs).workers[0].peak, Bytes(1000 + 3 * 40 + 7 + 2 * 10));
  costs.stages[0].backward = Seconds(50);
  // Both other gradients arrive during 0B0.
  costs.stages[0].forward = Seconds(1);
  EXPECT_EQ(simulate(schedule, costs).workers[0].peak, Bytes(1000 + 3 * 40 + 7 + 2 * 10));
}

TEST(PipelineSimulation, CostsOutOfBoundsAreRefused) {
  const auto schedule = schedules::gpipe(2, 2);
  const auto refusal = [&](auto change) {
    PipelineCosts costs = byte_costs(2);
    change(costs.stages);
    return refusal_of([&] { simulate(schedule, costs); });
  };
  EXPECT_EQ(
      refusal([](auto& stages) { stages.pop_back(); }),
      "simulate: the costs are of 1 stages, and the schedule has 2; give each stage its costs");
  EXPECT_EQ(refusal([](auto& stages) { stages[1].backward = Seconds(-1); }),
            "simulate: stage 1: backward is -1.000000; it must be between 0 and 1e9 seconds");
  EXPECT_THAT(refusal([](auto& stages) { stages[0].send = Seconds(0) / 0.0; }),
              HasSubstr("stage 0: send is"));
  EXPECT_EQ(refusal([](auto& stages) { stages[0].temporaries = Bytes(std::int64_t{1} << 40); }),
            "simulate: stage 0: temporaries is 1099511627776; it must be between 0 and 2^39 bytes");
  EXPECT_EQ(
      refusal([](auto& stages) { stages[0].saved_for_weights = Bytes(41); }),
      "simulate: stage 0: saved_for_weights is 41, more than input and saved together, 40; it "
      "is a part of them");
  EXPECT_THAT(refusal_of([&] { simulate(schedule, byte_costs(2), {.checkpoint_stop = -1}); }),
              HasSubstr("simulate: checkpoint_stop is -1"));
  EXPECT_EQ(refusal_of([] { PipelineCosts::even(0); }),
            "PipelineCosts::even: stages is 0; it must be between 1 and 4194304");
  PipelineSchedule broken = schedule;
  broken.workers[0].pop_back();
  EXPECT_THAT(refusal_of<PlanError>([&] { simulate(broken, byte_costs(2)); }),
              HasSubstr("worker 0 has no 0B0"));
}

TEST(PipelineSimulation, StepsWithoutTimeHaveNoBubble) {
  PipelineCosts costs = PipelineCosts::even(2);
  for (PipelineStageCosts& stage : costs.stages) stage = PipelineStageCosts();
  const auto run = simulate(schedules::gpipe(2, 2), costs);
  EXPECT_EQ(run.time.count(), 0);
  EXPECT_EQ(run.bubble, 0);
}

}  // namespace
}  // namespace reprise::plan
