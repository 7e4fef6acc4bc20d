// Timelines of a pipeline as text, as SVG and as a trace for Chrome.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "reprise/pipeline_schedule.h"
#include "tests/refusal.h"

namespace reprise::plan {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

PipelineTimeline timeline_of(const PipelineSchedule& schedule, std::int64_t checkpoint_stop = 0) {
  return simulate(schedule, PipelineCosts::even(schedule.stages),
                  {.checkpoint_stop = checkpoint_stop});
}

TEST(PipelineTimeline, ItsTextHasARowForEachWorkerAndCellsAsWideAsTheirTime) {
  // 2 workers and 2 micro-batches take 9 slots.
  const auto timeline = timeline_of(schedules::one_forward_one_backward(2, 2));
  EXPECT_EQ(timeline.text(27),
            "worker 0 F0-F1-......B0----...B1----\n"
            "worker 1 ...F0-B0----F1-B1----......\n");
  EXPECT_EQ(timeline.text(9), "worker 0 FF..B0.B1\nworker 1 .FB0FB1..\n");
}

TEST(PipelineTimeline, ItsTextNamesStagesOfWorkersWithSeveralAndRecomputations) {
  EXPECT_EQ(timeline_of(PipelineSchedule::parse_csv("0F0,1F0,1B0,0I0,0W0"), 1).text(32),
            "worker 0 0F0-1F0-1R0-1B0-----0R0-0I0-0W0-\n");
}

TEST(PipelineTimeline, LabelsThatDoNotFitAreLeftOut) {
  const auto timeline = timeline_of(PipelineSchedule::parse_csv("0F0,0F1,0B0,0B1"));
  EXPECT_EQ(timeline.text(6), "worker 0 FFB0B1\n");
  EXPECT_EQ(timeline.text(3), "worker 0 FBB\n");
  EXPECT_EQ(timeline.text(1).size(), std::string("worker 0 F\n").size());
}

TEST(PipelineTimeline, AStepWithoutTimeIsDrawnIdle) {
  PipelineTimeline timeline;
  timeline.workers.resize(11);
  EXPECT_THAT(timeline.text(3), HasSubstr("worker  9 ...\nworker 10 ...\n"));
  EXPECT_THAT(timeline.svg(), HasSubstr("pipeline: 0 s, 0.0 % idle"));
  // Moments outside of the step, as clocks of several devices may give, are drawn at its ends.
  timeline.workers.resize(1);
  timeline.time = Seconds(2);
  timeline.workers[0].events = {{{}, false, Seconds(-1), Seconds(1)},
                                {{0, PipelineWork::kBackward, 0}, false, Seconds(1), Seconds(3)}};
  EXPECT_EQ(timeline.text(8), "worker 0 F0--B0--\n");
}

TEST(PipelineTimeline, ColumnsOutOfBoundsAreRefused) {
  const auto timeline = timeline_of(schedules::gpipe(1, 1));
  EXPECT_EQ(refusal_of([&] { timeline.text(0); }),
            "text: columns is 0; it must be between 1 and 10000");
  EXPECT_THAT(refusal_of([&] { timeline.text(10001); }), HasSubstr("columns is 10001"));
}

TEST(PipelineTimeline, ItsSvgHasABoxForEachEventAndEscapesItsName) {
  auto timeline = timeline_of(schedules::gpipe(2, 2), 1);
  timeline.name = "<gpipe>";
  const std::string svg = timeline.svg();
  EXPECT_THAT(svg, HasSubstr("&lt;gpipe&gt;: 10 s, 30.0 % idle"));
  std::size_t boxes = 0;
  for (std::size_t at = 0; (at = svg.find("<title>", at)) != std::string::npos; ++at) ++boxes;
  EXPECT_EQ(boxes, 2U * (2 + 2 + 1));
  EXPECT_THAT(svg, HasSubstr("<title>1B0, recompute</title>"));
  EXPECT_THAT(svg, HasSubstr("fill=\"url(#hatched)\""));
  EXPECT_THAT(svg, HasSubstr(">worker 1, 1 B</text>"));
  EXPECT_THAT(svg, Not(HasSubstr("script")));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
}

TEST(PipelineTimeline, TooManyEventsForAPictureAreRefused) {
  PipelineTimeline timeline;
  timeline.workers.resize(1);
  timeline.workers[0].events.resize(1'000'001);
  EXPECT_EQ(refusal_of([&] { timeline.svg(); }),
            "svg: 1000001 events are too many to draw; at most 1000000 fit: use chrome_trace()");
}

TEST(PipelineTimeline, ItsChromeTraceHasAThreadForEachWorkerAndTimesInMicroseconds) {
  auto timeline = timeline_of(schedules::gpipe(2, 1), 1);
  timeline.name = "\xff";
  const auto trace = nlohmann::json::parse(timeline.chrome_trace());
  const auto& events = trace.at("traceEvents");
  ASSERT_EQ(events.size(), 1U + 2 * (1 + 3));
  EXPECT_EQ(events[0].at("name"), "process_name");
  EXPECT_EQ(events[5].at("args").at("name"), "worker 1");
  EXPECT_EQ(events[7].at("name"), "recompute 1B0");
  EXPECT_EQ(events[7].at("cat"), "recompute");
  EXPECT_EQ(events[7].at("ts"), 2e6);
  EXPECT_EQ(events[7].at("dur"), 1e6);
  EXPECT_EQ(events[7].at("tid"), 2);
  EXPECT_EQ(events[8].at("args").at("stage"), 1);
}

}  // namespace
}  // namespace reprise::plan
