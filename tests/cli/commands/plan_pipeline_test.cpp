// `reprise plan --pipeline`: its table, its JSON, its files, and what it says to wrong input.
#include <gmock/gmock.h>
#include <reprise/pipeline_schedule.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/program.h"
#include "tests/plan/chain/chains.h"

namespace reprise::app {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

Finished run_pipeline(const std::string& value, const std::string& more = "") {
  Arguments arguments = {"plan", "--pipeline", value};
  for (const std::string& each : words(more)) arguments.push_back(each);
  return run_here(arguments);
}

void expect_refused_pipeline(const std::string& value, const std::string& text,
                             const std::string& more = "") {
  Arguments arguments = {"plan", "--pipeline", value};
  for (const std::string& each : words(more)) arguments.push_back(each);
  expect_refusal(arguments, text);
}

std::string contents_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(PlanPipeline, TellsTimeBubbleAndActivationsInForwardsOfAStage) {
  const Finished table = run_pipeline("schedule=1f1b,stages=4,chunks=8,checkpoint=except_last");
  ASSERT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("4 stages on 4 workers, 8 micro-batches"));
  EXPECT_THAT(table.out, HasSubstr("7 of 8 micro-batches"));
  EXPECT_THAT(table.out, HasSubstr("\nworker 0 F0"));
  const json plain = json::parse(run_pipeline("schedule=1f1b,stages=4,chunks=8", "--json").out);
  EXPECT_EQ(plain.at("forwards"), 33);
  EXPECT_DOUBLE_EQ(plain.at("bubble"), 3.0 / 11);
  EXPECT_EQ(plain.at("workers").at(0).at("activations"), 4);
  EXPECT_EQ(plain.at("workers").at(3).at("buffers"), 1);
  EXPECT_EQ(plain.at("csv"), schedules::one_forward_one_backward(4, 8).csv());
  const json all =
      json::parse(run_pipeline("schedule=1f1b,stages=4,chunks=8,checkpoint=always", "--json").out);
  EXPECT_EQ(all.at("checkpoint_stop"), 8);
  EXPECT_EQ(all.at("workers").at(0).at("checkpointed_inputs"), 4);
  EXPECT_EQ(all.at("workers").at(0).at("activations"), 1);
  EXPECT_GT(all.at("forwards"), 33);
}

TEST(PlanPipeline, StagesArePutOnWorkersTwoAtATimeUnlessGivenOrAlone) {
  const auto stages_of_worker_0 = [](const std::string& value) {
    const json result = json::parse(run_pipeline(value, "--json").out);
    return result.at("workers").at(0).at("stages").get<std::vector<int>>();
  };
  EXPECT_THAT(stages_of_worker_0("schedule=gpipe,stages=4,chunks=8"), ElementsAre(0));
  EXPECT_THAT(stages_of_worker_0("schedule=zbv,stages=8,chunks=8"), ElementsAre(0, 7));
  EXPECT_THAT(stages_of_worker_0("schedule=interleaved-1f1b,stages=8,chunks=8"), ElementsAre(0, 4));
  EXPECT_THAT(stages_of_worker_0("schedule=looped-bfs,stages=8,chunks=8,per-worker=4"),
              ElementsAre(0, 2, 4, 6));
}

TEST(PlanPipeline, AChainIsCutByBalanceAndGivesSecondsAndBytes) {
  const TemporaryFolder folder;
  const std::string chain = folder / "chain.json";
  Chain of = plan::uniform_chain(6);  // 1 s forward, 2 s backward; outputs of 10 bytes, 30 kept
  of.stages[5].forward = Seconds(3);
  of.stages[5].backward = Seconds(6);
  of.stages[0].parameter_gradients = Bytes(1000);
  write_file(chain, of.json());
  const Finished finished = run_pipeline("schedule=gpipe,stages=2,chunks=2", chain + " --json");
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  const json result = json::parse(finished.out);
  EXPECT_EQ(result.at("cut"), json({4, 2}));
  // Both stages take 4 s forward and 8 s backward.
  EXPECT_EQ(result.at("seconds"), 3 * 12);
  // 4 x 30 bytes of each micro-batch, and both gradients of a backward.
  EXPECT_EQ(result.at("workers").at(0).at("peak_bytes"), 1000 + 2 * 120 + 20);
  // Each micro-batch also keeps its input.
  EXPECT_EQ(result.at("workers").at(1).at("peak_bytes"), 2 * (10 + 60) + 20);
  const Finished table = run_pipeline("schedule=gpipe,stages=2,chunks=2", chain);
  EXPECT_THAT(table.out, HasSubstr("its stages are cut into 4, 2"));
  EXPECT_THAT(table.out, HasSubstr("36000 ms"));
  EXPECT_THAT(table.out, HasSubstr("1.3 KB"));
  expect_refused_pipeline("schedule=gpipe,stages=7,chunks=2",
                          "parts is 7; it must be between 1 and the number of layers, 6", chain);
}

TEST(PlanPipeline, WritesItsPictureItsTableAndItsTrace) {
  const TemporaryFolder folder;
  const std::string picture = folder / "t.svg", table = folder / "t.csv", trace = folder / "t.json";
  const Finished finished =
      run_pipeline("schedule=zero-bubble,stages=4,chunks=4",
                   "--picture " + picture + " --schedule-out " + table + " --trace-out " + trace);
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(contents_of(picture), HasSubstr("zero-bubble: "));
  EXPECT_EQ(contents_of(table), schedules::interleaved_zero_bubble(2, 2, 4).csv());
  EXPECT_EQ(json::parse(contents_of(trace)).at("traceEvents").size(), 1U + 2 + 3 * 16);
  // The table is read again.
  const json again = json::parse(run_pipeline("csv=" + table, "--json").out);
  EXPECT_EQ(again.at("csv"), contents_of(table));
  EXPECT_EQ(again.at("stages"), 4);
}

TEST(PlanPipeline, RefusesValuesThatItCannotRead) {
  expect_refused_pipeline("1f1b", "--pipeline has '1f1b', which is no KEY=VALUE: give schedule=");
  expect_refused_pipeline("schedule=1f1b,", "--pipeline has '', which is no KEY=VALUE");
  expect_refused_pipeline("stages=4,chunks=8", "--pipeline lacks schedule");
  expect_refused_pipeline("schedule=1f1b,chunks=8", "--pipeline lacks stages");
  expect_refused_pipeline("schedule=1f1b,stages=4", "--pipeline lacks chunks");
  expect_refused_pipeline("schedule=2f2b,stages=4,chunks=8",
                          "--pipeline schedule is '2f2b': choose from gpipe, 1f1b, looped-bfs");
  expect_refused_pipeline("schedule=1f1b,stages=0,chunks=8",
                          "--pipeline stages is '0': give a whole number between 1 and");
  expect_refused_pipeline("schedule=zbv,stages=7,chunks=8",
                          "--pipeline stages is 7, and each worker runs 2: give a multiple");
  expect_refused_pipeline("schedule=1f1b,stages=4,chunks=8,chunks=8", "has chunks twice");
  expect_refused_pipeline("schedule=1f1b,stages=4,chunks=8,chunk=8",
                          "--pipeline has 'chunk', which is no key");
  expect_refused_pipeline("schedule=1f1b,stages=4,chunks=8,checkpoint=some",
                          "--pipeline checkpoint is 'some': choose always, except_last, never");
  expect_refused_pipeline("csv=t,stages=4", "--pipeline has stages beside csv");
  expect_refused_pipeline("schedule=1f1b,stages=4,chunks=8,per-worker=2",
                          "1f1b: stages_per_worker is 2; this schedule has 1");
  expect_refused_pipeline("schedule=dualpipev,stages=4,chunks=3",
                          "dualpipev: micro_batches is 3; it must be at least");
}

TEST(PlanPipeline, RefusesATableThatCannotBeRun) {
  const TemporaryFolder folder;
  const std::string table = folder / "t.csv";
  write_file(table, "0F0,0F1,0B0\n");
  expect_refused_pipeline("csv=" + table, "t.csv: worker 0 has no 0B1");
  expect_refused_pipeline("csv=" + folder / "none", "cannot read the schedule");
}

TEST(PlanPipeline, RefusesOptionsWithoutEffect) {
  const TemporaryFolder folder;
  const std::string value = "schedule=1f1b,stages=4,chunks=8";
  const std::string one = folder / "one.json";
  expect_refused_pipeline(value, "have no effect with --pipeline", "--budget 50%");
  expect_refused_pipeline(value, "have no effect with --pipeline", "--planner rotor");
  expect_refused_pipeline(value, "--layers has no effect with --pipeline, which measures nothing",
                          "--layers 3");
  expect_refused_pipeline(value, "--device and --threads have no effect with --pipeline",
                          "--threads 2");
  expect_refused_pipeline(value, "leave it out, or --pipeline", "--chain-out " + one);
  expect_refused_pipeline(value, "end the name in .json", "--trace-out " + folder / "t.log");
  expect_refused_pipeline(value, "--picture would write over",
                          "--trace-out " + one + " --picture " + one);
  expect_refusal(words("plan --trace-out " + one),
                 "--trace-out is for the timeline of a pipeline: add --pipeline");
}

}  // namespace
}  // namespace reprise::app
