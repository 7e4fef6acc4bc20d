// Which pipeline schedules can be run, and their text.
#include "reprise/pipeline_schedule.h"

#include <gmock/gmock.h>
#include <rapidcheck.h>

#include <fstream>

#include "tests/plan/trace/testing.h"

namespace reprise::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kTwoByTwo =
    "0F0,0F1,,0B0,0B1\n"
    ",1F0,1B0,1F1,1I1,1W1\n";

std::string refusal_of_csv(const std::string& text) {
  return refusal_of<PlanError>([&] { PipelineSchedule::parse_csv(text); });
}

TEST(PipelineSchedule, IsReadFromItsText) {
  const PipelineSchedule schedule = PipelineSchedule::parse_csv(kTwoByTwo);
  EXPECT_EQ(schedule.stages, 2);
  EXPECT_EQ(schedule.micro_batches, 2);
  ASSERT_EQ(schedule.workers.size(), 2U);
  EXPECT_TRUE(schedule.workers[0][2].empty());
  EXPECT_THAT(schedule.workers[1][4],
              ElementsAre(PipelineAction{1, PipelineWork::kInputGradient, 1}));
  EXPECT_THAT(schedule.worker_of_stage(), ElementsAre(0, 1));
  EXPECT_EQ(schedule.csv(), kTwoByTwo);
}

TEST(PipelineSchedule, TextOfTorchIsReadWithItsLineEndsOverlapsAndMovements) {
  const PipelineSchedule schedule = PipelineSchedule::parse_csv(
      "0UNSHARD,0F0, 0SEND_F0 ,0RECV_B0,0B0,0F1,0RESHARD,0B1,0REDUCE_GRAD\r\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,(1F1 ; 1B1)OVERLAP_F_B\r\n\r\n");
  EXPECT_EQ(schedule.csv(), "0F0,0B0,0F1,0B1\n1F0,1B0,(1F1;1B1)OVERLAP_F_B\n");
}

TEST(PipelineSchedule, ErrorsOfItsTextNameLineAndCell) {
  EXPECT_EQ(refusal_of_csv("0F0,0B0\n1F0,1X0"),
            "line 2, cell 2: \"1X0\" is not an action; expected a stage, one of F, B, I and W, and "
            "a micro-batch, such as 0F3");
  for (const char* cell : {"F0", "0", "0F", "0F-1", "-1F0", "0F0F", "0F 0", "0UNSHARDED",
                           "0send_f0", "99999999999999999999F0", "0F99999999999999999999"}) {
    EXPECT_THAT(refusal_of_csv(cell), HasSubstr("line 1, cell 1: \"" + std::string(cell) + "\""));
  }
  for (const char* cell : {"(0F0;0B0)", "(0F0)OVERLAP_F_B", "(0F0;0B0OVERLAP_F_B",
                           "(0F0;0B0;0F1)OVERLAP_F_B", "(0F0;0SEND_F0)OVERLAP_F_B"}) {
    EXPECT_THAT(refusal_of_csv(cell), HasSubstr("is not two actions that overlap, such as"));
  }
  EXPECT_THAT(refusal_of_csv("(0F0;)OVERLAP_F_B"), HasSubstr("\"\" is not an action"));
  const std::string shown = refusal_of_csv(std::string(1000, 'x'));
  EXPECT_THAT(shown, HasSubstr("xxx...\" is not an action"));
  EXPECT_LT(shown.size(), 250U);
}

TEST(PipelineSchedule, DamagedTextIsRefusedOrASchedule) {
  int read = 0, refused = 0;
  EXPECT_TRUE(rc::check([&] {
    const char* const names[] = {"1f1b", "zbv", "dualpipev"};
    const char* const name = names[*rc::gen::inRange(0, 3)];
    std::string text =
        schedules::by_name(name, 2, *name == '1' ? 1 : 2, *rc::gen::inRange<std::int64_t>(4, 7))
            .csv();
    const auto damages = *rc::gen::inRange(1, 4);
    for (int i = 0; i < damages; ++i) {
      const std::string_view characters = "0123456789FBIW,;()\n _OE";
      const auto at = *rc::gen::inRange<std::size_t>(0, text.size());
      if (*rc::gen::inRange(0, 3) == 0)
        text.erase(at, 1);
      else
        text[at] = characters[*rc::gen::inRange<std::size_t>(0, characters.size())];
    }
    try {
      const PipelineSchedule schedule = PipelineSchedule::parse_csv(text);
      RC_ASSERT(PipelineSchedule::parse_csv(schedule.csv()) == schedule);
      ++read;
    } catch (const PlanError&) {
      ++refused;
    }
  }));
  EXPECT_GT(read, 0);
  EXPECT_GT(refused, 0);
}

TEST(PipelineSchedule, OneThatIsTooLargeIsRefusedWithoutTakingItsMemory) {
  EXPECT_EQ(refusal_of_csv("4000000000000000F4000000000000000,0B0"),
            "the schedule has 4194305 stages and 4194305 micro-batches; their product may be at "
            "most 4194304");
}

TEST(PipelineSchedule, OneWithoutActionsIsRefused) {
  EXPECT_EQ(refusal_of_csv("\n \n"),
            "the schedule has 0 workers, 1 stages and 1 micro-batches; it needs at least one of "
            "each");
  EXPECT_EQ(refusal_of_csv("0F0,0B0\n,,\n"),
            "worker 1 runs no stage; give it one, or leave the worker out");
}

TEST(PipelineSchedule, EachActionIsCheckedInItsWorkersList) {
  EXPECT_EQ(refusal_of_csv("0F0,0F0"), "worker 0, slot 1, 0F0: the worker has run it before");
  EXPECT_EQ(refusal_of_csv(",0B0"), "worker 0, slot 1, 0B0: it comes before its forward");
  EXPECT_EQ(refusal_of_csv("0F0,0W0"), "worker 0, slot 1, 0W0: it comes without an I before it");
  EXPECT_EQ(refusal_of_csv("0F0,0B0,0W0"),
            "worker 0, slot 2, 0W0: it comes without an I before it");
  EXPECT_EQ(refusal_of_csv("0F0,0I0,0B0"),
            "worker 0, slot 2, 0B0: the micro-batch has both B and I on that stage; B includes I "
            "and W");
  EXPECT_EQ(refusal_of_csv("0F0,0B0\n0F1,0B1"),
            "worker 1, slot 0, 0F1: worker 0 runs stage 0; a stage runs on one worker");
  PipelineSchedule schedule = PipelineSchedule::parse_csv("0F0,0B0");
  schedule.workers[0][0] = {{0, PipelineWork::kForward, 0},
                            {0, PipelineWork::kInputGradient, 0},
                            {0, PipelineWork::kWeightGradient, 0}};
  EXPECT_EQ(refusal_of<PlanError>([&] { schedule.check(); }),
            "worker 0, slot 0: it has 3 actions; at most two may overlap");
  schedule.workers[0][0] = {{1, PipelineWork::kForward, 0}};
  EXPECT_EQ(refusal_of<PlanError>([&] { schedule.check(); }),
            "worker 0, slot 0, 1F0: its stage is 1; the schedule has 1, from 0");
  schedule.workers[0][0] = {{0, PipelineWork::kForward, -1}};
  EXPECT_EQ(refusal_of<PlanError>([&] { schedule.check(); }),
            "worker 0, slot 0, 0F-1: its micro-batch is -1; the schedule has 1, from 0");
}

TEST(PipelineSchedule, MissingActionsAreNamed) {
  EXPECT_EQ(refusal_of_csv("0F0,0B0,0F1"),
            "worker 0 has no 0B1 (or I and W), which every micro-batch needs on every stage");
  EXPECT_EQ(refusal_of_csv("0F0,0B0\n1F0,1B0,1F1,1B1"),
            "worker 0 has no 0F1, which every micro-batch needs on every stage");
  EXPECT_EQ(refusal_of_csv("0F0,0I0"),
            "worker 0 has no 0W0, which every micro-batch needs on every stage");
  EXPECT_EQ(refusal_of_csv("0F0,0B0\n2F0,2B0"), "no worker runs stage 1; each stage needs one");
}

TEST(PipelineSchedule, WorkersThatWaitForEachOtherForeverAreRefused) {
  EXPECT_EQ(refusal_of_csv("0F0,0B0,0F1,0B1\n1F0,1F1,1B1,1B0"),
            "the schedule stops in a circle of waits: worker 0, slot 1, 0B0 waits for 1B0 of "
            "worker 1; worker 1, slot 1, 1F1 waits for 0F1 of worker 0; each comes later in its "
            "worker's list: move one of them ahead");
  // The first worker that stops need not belong to the circle.
  EXPECT_EQ(refusal_of_csv("0F0,0B0\n2F0,1F0,2I0,2W0,1B0"),
            "the schedule stops in a circle of waits: worker 1, slot 0, 2F0 waits for 1F0 of "
            "worker 1; each comes later in its worker's list: move one of them ahead");
  // The second action of a slot comes after the first.
  EXPECT_EQ(refusal_of_csv("(0F0;0B0)OVERLAP_F_B\n1F0,1B0"), "");
  EXPECT_THAT(refusal_of_csv("(0F0;0I0)OVERLAP_F_B,0F1,0W0,0B1\n1F0,1F1,1B1,1B0"),
              HasSubstr("worker 0, slot 0, 0I0 waits for 1B0 of worker 1"));
}

TEST(PipelineSchedule, StagesOfTwoWorkersOrNoneHaveNoWorker) {
  PipelineSchedule schedule = PipelineSchedule::parse_csv(kTwoByTwo);
  schedule.stages = 3;
  EXPECT_EQ(refusal_of<PlanError>([&] { schedule.worker_of_stage(); }),
            "no worker runs stage 2; each stage needs one");
  schedule.stages = 1;
  EXPECT_EQ(refusal_of<PlanError>([&] { schedule.worker_of_stage(); }),
            "stage 1 is not one of the schedule's 1");
  schedule.stages = 2;
  schedule.workers[1][0] = {{0, PipelineWork::kForward, 0}};
  EXPECT_EQ(refusal_of<PlanError>([&] { schedule.worker_of_stage(); }),
            "workers 0 and 1 run stage 0; a stage runs on one worker");
}

TEST(PipelineSchedule, ErrorsOfAFileBeginWithItsName) {
  const TemporaryFolder folder;
  const auto file = folder / "schedule.csv";
  std::ofstream(file) << kTwoByTwo;
  EXPECT_EQ(PipelineSchedule::read_csv(file), PipelineSchedule::parse_csv(kTwoByTwo));
  std::ofstream(file) << "0F0\n";
  EXPECT_EQ(refusal_of<PlanError>([&] { PipelineSchedule::read_csv(file); }),
            file.string() +
                ": worker 0 has no 0B0 (or I and W), which every micro-batch needs on "
                "every stage");
  EXPECT_THAT(refusal_of([&] { PipelineSchedule::read_csv(folder / "none"); }),
              HasSubstr("cannot read the schedule"));
}

}  // namespace
}  // namespace reprise::plan
