// Plans of what stages keep: they hold the bytes, and little time is lost to the best plan.
#include <gmock/gmock.h>
#include <rapidcheck.h>
#include <reprise/pipeline_residency.h>
#include <reprise/planners.h>

#include "plan/residency/stage_choices.h"
#include "plan/residency/worker_bytes.h"
#include "tests/plan/chain/chains.h"
#include "tests/refusal.h"

namespace reprise::plan {
namespace {

using ::testing::HasSubstr;

PipelineStageProfile random_profile(std::uint64_t seed, std::int64_t layers) {
  PipelineStageProfile profile;
  profile.layers = random_chain(seed, layers, 1000);
  profile.input = Bytes(static_cast<std::int64_t>(seed % 700));
  profile.resident = Bytes(5000);
  return profile;
}

std::vector<PipelineStageProfile> random_profiles(std::int64_t stages, std::int64_t layers) {
  std::vector<PipelineStageProfile> profiles;
  for (std::int64_t i = 0; i < stages; ++i) {
    profiles.push_back(random_profile(*rc::gen::arbitrary<std::uint32_t>(), layers));
  }
  return profiles;
}

// The bytes of a worker as its list has them, without what waits.
Bytes replayed_peak(const PipelineSchedule& schedule, std::size_t worker,
                    const std::vector<PipelineStageProfile>& profiles,
                    const PipelineResidency& plan) {
  Bytes held, peak;
  const auto worker_of_stage = schedule.worker_of_stage();
  for (std::size_t s = 0; s < profiles.size(); ++s) {
    if (worker_of_stage[s] == static_cast<std::int64_t>(worker)) held += profiles[s].resident;
  }
  for (const PipelineSlot& slot : schedule.workers[worker]) {
    for (const PipelineAction& action : slot) {
      const PipelineMicroBatch& each =
          plan.stages[static_cast<std::size_t>(action.stage)].of(action.micro_batch);
      const bool is_forward = action.work == PipelineWork::kForward;
      if (!is_forward) held -= each.kept;
      peak = std::max(peak, held + (is_forward ? each.forward_peak : each.backward_peak));
      if (is_forward) held += each.kept;
    }
  }
  return peak;
}

PipelineSchedule random_schedule() {
  const auto name =
      *rc::gen::element<std::string>("gpipe", "1f1b", "looped-bfs", "interleaved-1f1b");
  const auto workers = *rc::gen::inRange<std::int64_t>(1, 4);
  const bool is_alone = name == "gpipe" || name == "1f1b";
  return schedules::by_name(name, workers, is_alone ? 1 : 2,
                            workers * *rc::gen::inRange<std::int64_t>(1, 4));
}

TEST(PlanResidency, PlansHoldTheBytesAndTheLeastThatIsNamedIsEnough) {
  EXPECT_TRUE(rc::check([] {
    const PipelineSchedule schedule = random_schedule();
    const auto profiles = random_profiles(schedule.stages, *rc::gen::inRange<std::int64_t>(1, 6));
    const auto all = plan_residency(schedule, profiles, {});
    std::vector<Bytes> bytes;
    for (const Bytes peak : all.peaks)
      bytes.push_back(peak * (0.3 + 0.1 * *rc::gen::inRange(0, 8)));
    for (std::size_t tries = 0; tries <= bytes.size(); ++tries) {
      PipelineResidency plan;
      try {
        plan = plan_residency(schedule, profiles, bytes);
      } catch (const BudgetError& error) {
        // "worker W cannot fit in N bytes (...): it needs at least L (".
        const std::string text = error.what();
        const auto number_after = [&](const std::string& words) {
          return std::stoll(text.substr(text.find(words) + words.size()));
        };
        const auto worker = static_cast<std::size_t>(number_after("on worker "));
        const Bytes least(number_after("at least "));
        RC_ASSERT(least > bytes[worker]);
        bytes[worker] = least;
        continue;
      }
      for (std::size_t w = 0; w < bytes.size(); ++w) {
        RC_ASSERT(plan.peaks[w] <= bytes[w]);
        RC_ASSERT(replayed_peak(schedule, w, profiles, plan) <= plan.peaks[w]);
      }
      RC_ASSERT(plan.timeline.time >= all.timeline.time);
      return;
    }
    RC_FAIL("the least bytes were not enough");
  }));
}

TEST(PlanResidency, WithoutABoundAllIsKept) {
  EXPECT_TRUE(rc::check([] {
    const PipelineSchedule schedule = random_schedule();
    const auto profiles = random_profiles(schedule.stages, 3);
    const auto plan = plan_residency(schedule, profiles, {});
    for (const auto& stage : plan.stages) {
      for (const PipelineMicroBatch& choice : stage.choices) {
        RC_ASSERT(choice.recompute + choice.recompute_within == Seconds(0));
      }
    }
  }));
}

// The best of all plans of one worker is the one with the least recomputation.
TEST(PlanResidency, LittleTimeIsLostToTheBestPlanOfAll) {
  double lost = 0, worst = 0;
  int cases = 0;
  for (std::uint64_t seed = 1; seed <= 80; ++seed) {
    const std::vector<PipelineStageProfile> profiles{random_profile(seed, 4)};
    const PipelineSchedule schedule =
        seed % 2 == 0 ? schedules::gpipe(1, 3) : schedules::one_forward_one_backward(1, 3);
    const Bytes bytes = plan_residency(schedule, profiles, {}).peaks.front() * 0.7;
    Seconds planned{};
    try {
      const auto plan = plan_residency(schedule, profiles, {bytes});
      for (std::int64_t i = 0; i < 3; ++i) {
        planned += plan.stages[0].of(i).recompute + plan.stages[0].of(i).recompute_within;
      }
    } catch (const BudgetError&) {
      continue;
    }
    const auto choices = choices_of(profiles.front(), false);
    const auto workers =
        actions_of_workers(schedule, profiles, std::vector<Waiting>(profiles.size()));
    Seconds best(1e9);
    const std::size_t n = choices.size();
    for (std::size_t code = 0; code < n * n * n; ++code) {
      std::vector<const PipelineMicroBatch*> plan;
      Seconds time{};
      for (std::size_t i = 0, rest = code; i < 3; ++i, rest /= n) {
        plan.push_back(&choices[rest % n].micro_batch);
        time += choices[rest % n].recompute();
      }
      if (time < best && WorkerBytes(workers.front(), profiles, plan).peak() <= bytes) best = time;
    }
    const double step = 3 * (profiles[0].layers.forward() + profiles[0].layers.backward()).count();
    const double share = (planned - best).count() / (step + best.count());
    lost += share;
    worst = std::max(worst, share);
    ++cases;
    EXPECT_GE(planned, best);
  }
  EXPECT_GE(cases, 30);
  EXPECT_LE(lost / cases, 0.01);
  EXPECT_LE(worst, 0.1);
}

TEST(PlanResidency, LaterStagesOf1F1BKeepMore) {
  std::vector<PipelineStageProfile> profiles(4);
  for (auto& profile : profiles) {
    profile.layers = uniform_chain(6);
    profile.input = Bytes(10);
  }
  const auto schedule = schedules::one_forward_one_backward(4, 8);
  const auto all = plan_residency(schedule, profiles, {});
  const auto plan = plan_residency(schedule, profiles, {all.peaks[1]});
  const auto layers_of = [&](std::size_t stage) {
    std::int64_t layers = 0;
    for (std::int64_t i = 0; i < 8; ++i) layers += plan.stages[stage].of(i).recomputed_layers;
    return layers;
  };
  EXPECT_GT(layers_of(0), 0);
  EXPECT_EQ(layers_of(1) + layers_of(2) + layers_of(3), 0);
  EXPECT_LT(layers_of(0), 8 * 6) << "only some of its layers";
  EXPECT_GT(plan.timeline.time, all.timeline.time);
}

TEST(PlanResidency, TheTextNamesStagesMicroBatchesLayersAndBytes) {
  std::vector<PipelineStageProfile> profiles(2);
  for (auto& profile : profiles) profile.layers = uniform_chain(4);
  const auto schedule = schedules::gpipe(2, 2);
  EXPECT_EQ(plan_residency(schedule, profiles, {}).text(),
            "stage 0 on worker 0\n"
            "  micro-batches 0-1: all layers kept, 120 B each\n"
            "stage 1 on worker 1\n"
            "  micro-batches 0-1: all layers kept, 120 B each\n"
            "worker 0: at most 260 B, without a bound\n"
            "worker 1: at most 260 B, without a bound\n"
            "step: 36000.00 ms, bubble 0.333\n");
  const std::string text = plan_residency(schedule, profiles, {Bytes(230)}).text();
  EXPECT_THAT(text, HasSubstr("of 4 layers run again"));
  EXPECT_THAT(text, HasSubstr(" of 230 B\n"));
}

TEST(PlanResidency, WhatDoesNotFitTogetherIsRefused) {
  std::vector<PipelineStageProfile> profiles(2);
  for (auto& profile : profiles) profile.layers = uniform_chain(4);
  const auto schedule = schedules::gpipe(2, 2);
  EXPECT_THAT(refusal_of([&] { plan_residency(schedules::gpipe(3, 2), profiles, {}); }),
              HasSubstr("profiles of 2 stages, and the schedule has 3"));
  EXPECT_THAT(refusal_of([&] {
                plan_residency(schedule, profiles, {Bytes(1), Bytes(1), Bytes(1)});
              }),
              HasSubstr("bytes has 3 numbers for the 2 workers"));
  EXPECT_THAT(refusal_of<BudgetError>([&] { plan_residency(schedule, profiles, {Bytes(9)}); }),
              HasSubstr("stage 0 on worker 0 cannot fit in 9 bytes (9 B): it needs at least "));
}

}  // namespace
}  // namespace reprise::plan
