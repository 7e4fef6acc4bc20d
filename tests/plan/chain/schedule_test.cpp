// What a schedule costs, and which are none.
#include "reprise/chain.h"

#include <gmock/gmock.h>

#include "tests/plan/chain/chains.h"
#include "tests/plan/trace/testing.h"

namespace reprise::plan {
namespace {

using Kind = ScheduleOp::Kind;
using ::testing::HasSubstr;

constexpr TransferRate kStore{10};

TEST(Schedule, ThePlainStepKeepsEverything) {
  const ScheduleCost cost = evaluate(uniform_chain(3), planners::keep_all(uniform_chain(3)));
  // All three stages, the gradient of the last one's output and that of its input.
  EXPECT_EQ(cost.peak, Bytes(3 * 30 + 2 * 10));
  EXPECT_EQ(cost.time.count(), 9);
  EXPECT_EQ(cost.recompute.count(), 0);
  EXPECT_EQ(cost.forwards, 3);
}

TEST(Schedule, CountsEachKindOfBytesOnce) {
  Chain chain = uniform_chain(2);
  chain.stages[0].forward_temporaries = Bytes(1000);
  const Schedule kept = planners::keep_all(chain);
  EXPECT_EQ(evaluate(chain, kept).peak, Bytes(80)) << "the first stage is never run without";
  chain.stages[0].keep_temporaries = Bytes(100);
  EXPECT_EQ(evaluate(chain, kept).peak, Bytes(130));
  chain.stages[1].backward_temporaries = Bytes(200);
  EXPECT_EQ(evaluate(chain, kept).peak, Bytes(280));
  chain.stages[1].parameter_gradients = Bytes(50);
  EXPECT_EQ(evaluate(chain, kept).peak, Bytes(330));
  chain.stages[0].backward_temporaries = Bytes(1000);
  // What the first stage keeps, its output's gradient, and the chain's output.
  EXPECT_EQ(evaluate(chain, kept).peak, Bytes(30 + 10 + 10 + 50 + 1000));
  chain.input_gradient = Bytes(1);
  EXPECT_EQ(evaluate(chain, kept).peak, Bytes(30 + 10 + 10 + 50 + 1000 + 1));
  EXPECT_EQ(evaluate(chain, planners::every_stage(chain)).peak, Bytes(1101));
  chain.stages[0].forward_temporaries = Bytes(2000);
  EXPECT_EQ(evaluate(chain, planners::every_stage(chain)).peak, Bytes(2010));
}

TEST(Schedule, WhatIsRecomputedIsNotInMemoryMeanwhile) {
  // One stage kept, two gradients, and the outputs before it.
  const ScheduleCost cost = evaluate(uniform_chain(4), planners::every_stage(uniform_chain(4)));
  EXPECT_EQ(cost.peak, Bytes(30 + 2 * 10 + 3 * 10));
  EXPECT_EQ(cost.recompute.count(), 3);
  EXPECT_EQ(cost.forwards, 7);
}

TEST(Schedule, AnOutputThatNoBackwardNeedsGoesWhenTheNextStageRan) {
  Chain chain = uniform_chain(3);
  for (ChainStage& stage : chain.stages) {
    stage.saves_output = false;
    stage.needs_input = false;
    stage.saved = Bytes(20);
  }
  // What all save, the chain's output and two gradients.
  EXPECT_EQ(evaluate(chain, planners::keep_all(chain)).peak, Bytes(3 * 20 + 10 + 20));
  chain.stages[2].needs_input = true;
  EXPECT_EQ(evaluate(chain, planners::keep_all(chain)).peak, Bytes(3 * 20 + 10 + 20 + 10));
  chain.stages[2].needs_input = false;
  chain.stages[1].saves_output = true;
  EXPECT_EQ(evaluate(chain, planners::keep_all(chain)).peak, Bytes(3 * 20 + 10 + 20));
  // What the second is run again from waits for that, though no backward needs it.
  EXPECT_EQ(evaluate(chain, planners::every_stage(chain)).peak, Bytes(10 + 20 + 10 + 20));
}

TEST(Schedule, TheChainsOutputIsTheCallersUntilTheEnd) {
  for (const bool saves_output : {true, false}) {
    Chain chain = uniform_chain(2);
    chain.stages[1].output = Bytes(1000);
    chain.stages[1].saved = Bytes(saves_output ? 1000 : 0);
    chain.stages[1].saves_output = saves_output;
    // What the first stage keeps, both gradients of its backward, and the output.
    chain.stages[0].backward_temporaries = Bytes(500);
    EXPECT_EQ(evaluate(chain, planners::keep_all(chain)).peak, Bytes(30 + 10 + 500 + 1000))
        << saves_output;
  }
}

TEST(Schedule, TransfersAreWaitedFor) {
  const Chain chain = uniform_chain(2);
  const Schedule schedule{{{Kind::kForwardKeep, 0},
                           {Kind::kOffload, 0},
                           {Kind::kForwardKeep, 1},
                           {Kind::kBackward, 1},
                           {Kind::kLoad, 0},
                           {Kind::kBackward, 0}}};
  const ScheduleCost cost = evaluate(chain, schedule, kStore);
  EXPECT_EQ(cost.peak, Bytes(10 + 30 + 20));
  EXPECT_EQ(cost.transfer.count(), 6);  // 30 bytes there and back
  EXPECT_EQ(cost.time.count(), 6 + 6);
  EXPECT_EQ(cost.recompute.count(), 0);
}

TEST(Schedule, AnInvalidOneIsRefusedByItsStep) {
  const auto refusal = [](std::vector<ScheduleOp> steps, const TransferRate& store = kStore) {
    try {
      evaluate(uniform_chain(2), Schedule{std::move(steps)}, store);
    } catch (const PlanError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const ScheduleOp keep0{Kind::kForwardKeep, 0}, keep1{Kind::kForwardKeep, 1};
  const ScheduleOp back0{Kind::kBackward, 0}, back1{Kind::kBackward, 1};
  EXPECT_EQ(refusal({keep0, keep1, back1, back0}), "");
  EXPECT_EQ(
      refusal({keep1}),
      "operation 0 of the schedule, stage 1 forward, kept: its input, the output of stage 0, is "
      "not there");
  EXPECT_THAT(refusal({keep0, keep0}),
              HasSubstr("operation 1 of the schedule, stage 0 forward, kept: "
                        "its output is there already"));
  EXPECT_THAT(refusal({keep0, keep1, back0}), HasSubstr("it is the turn of stage 1"));
  EXPECT_THAT(refusal({keep0, {Kind::kForwardDrop, 1}, back1}), HasSubstr("it was not run kept"));
  EXPECT_THAT(refusal({{Kind::kForwardCheckpoint, 0}, keep1, back1, back0}),
              HasSubstr("it was not run kept"));
  EXPECT_THAT(refusal({keep0, keep1, back1, keep1}), HasSubstr("its backward has been"));
  EXPECT_THAT(refusal({keep0, keep1, back1, back0, back0}), HasSubstr("all of backward has been"));
  EXPECT_THAT(refusal({keep0, keep1, back1}),
              HasSubstr("ends after 3 operations, before the backward of stage 0"));
  EXPECT_THAT(refusal({{Kind::kForwardKeep, 2}}),
              HasSubstr("is of stage 2; the chain has 2, from 0"));
  EXPECT_THAT(refusal({{Kind::kForwardKeep, -1}}), HasSubstr("is of stage -1"));
  const ScheduleOp park{Kind::kOffload, 0}, load{Kind::kLoad, 0};
  EXPECT_THAT(refusal({keep0, park}, {}), HasSubstr("there is no store"));
  EXPECT_THAT(refusal({park}), HasSubstr("nothing of it is kept in memory"));
  EXPECT_THAT(refusal({keep0, load}), HasSubstr("it is not in the store"));
  EXPECT_THAT(refusal({keep0, park, keep1, back1, back0}),
              HasSubstr("what was kept of it is in the store"));
}

TEST(Schedule, IsOfTheChainThatItWasMadeFor) {
  Chain chain = uniform_chain(2);
  Schedule schedule = planners::keep_all(chain);
  schedule.layers = {1, 2};
  EXPECT_EQ(refusal_of<PlanError>([&] { evaluate(chain, schedule); }),
            "stage 1 is of 1 layers, but in the schedule of 2; plan for this chain");
  schedule.layers = {1};
  EXPECT_EQ(refusal_of<PlanError>([&] { evaluate(chain, schedule); }),
            "the schedule has layers of 1 stages, but the chain has 2; plan for this chain");
  chain.stages[1].layers = 2;
  schedule.layers = {1, 2};
  EXPECT_EQ(evaluate(chain, schedule).forwards, 2);
}

TEST(Schedule, OutputsThatGoToTheStoreTwiceCountOnce) {
  // Kept, moved away and back, and away again.
  const ScheduleOp keep0{Kind::kForwardKeep, 0}, keep1{Kind::kForwardKeep, 1};
  const ScheduleOp back0{Kind::kBackward, 0}, back1{Kind::kBackward, 1};
  const ScheduleOp park{Kind::kOffload, 0}, load{Kind::kLoad, 0};
  const Chain chain = uniform_chain(2);
  const Bytes once = evaluate(chain, {{keep0, park, keep1, back1, load, back0}}, kStore).peak;
  EXPECT_EQ(evaluate(chain, {{keep0, park, load, park, keep1, back1, load, back0}}, kStore).peak,
            once);
}

TEST(Schedule, ComesBackFromItsJsonAsItWas) {
  Chain chain = random_chain(4, 9, 100);
  const planners::Rotor rotor(chain, {.slots = 0, .store = kStore});
  const Schedule schedule = rotor.plan(rotor.least());
  EXPECT_FALSE(schedule.layers.empty());
  EXPECT_EQ(Schedule::parse(schedule.json()), schedule);
  const Schedule plain = planners::keep_all(uniform_chain(2));
  EXPECT_EQ(plain.json(),
            "{\"format\":\"reprise schedule\",\"version\":1,\"steps\":[[\"keep\",0],[\"keep\",1],"
            "[\"backward\",1],[\"backward\",0]]}\n");
}

TEST(Schedule, ErrorsOfItsJsonNameLineAndField) {
  const auto refusal = [](const std::string& rest) {
    return refusal_of([&] {
      Schedule::parse("{\"format\": \"reprise schedule\",\n\"version\": 1,\n" + rest + "}", "s");
    });
  };
  EXPECT_EQ(refusal("\"steps\": []"), "");
  EXPECT_EQ(refusal("\"steps\": [[\"kept\", 0]]"),
            "s:3: steps[0][0]: is \"kept\"; choose from keep, checkpoint, drop, backward, offload, "
            "load");
  EXPECT_EQ(refusal("\"steps\": [[\"keep\", 0],\n[\"keep\"]]"),
            "s:4: steps[1]: must be an operation and its stage, such as [\"keep\", 0]");
  EXPECT_EQ(refusal("\"steps\": [[\"keep\", -1]]"),
            "s:3: steps[0][1]: is -1; it must be between 0 and 2147483647");
  EXPECT_EQ(refusal("\"steps\": [[\"keep\", 3000000000]]"),
            "s:3: steps[0][1]: is 3000000000; it must be between 0 and 2147483647");
  EXPECT_EQ(refusal("\"layers\": [0]"),
            "s:3: layers[0]: is 0; it must be between 1 and 1000000000");
  EXPECT_EQ(refusal("\"steps\": 1"), "s:3: steps: must be an array");
}

TEST(Schedule, IsPrintedAStageALine) {
  Chain chain = uniform_chain(3);
  chain.stages[0].name = "first";
  EXPECT_EQ(picture(chain, planners::every_stage(chain)),
            "first c---- KB\n"
            "1      c- KB\n"
            "2       KB----\n");
}

TEST(Schedule, TooLargeForAPictureIsRefused) {
  const Chain chain = uniform_chain(1500);
  EXPECT_THAT(refusal_of([&] { picture(chain, planners::keep_all(chain)); }),
              HasSubstr("picture: 3000 operations of 1500 stages are too many to draw"));
}

TEST(Schedule, AsSvgEscapesNames) {
  Chain chain = uniform_chain(3);
  chain.stages[0].name = "<&\"";
  const std::string svg = picture_svg(chain, planners::every_stage(chain));
  EXPECT_THAT(svg, HasSubstr("&lt;&amp;&quot;"));
  EXPECT_THAT(svg, HasSubstr("peak 70 B"));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
}

}  // namespace
}  // namespace reprise::plan
