// `reprise train --pipeline`: how the model is cut and scheduled changes no weight, and what cannot
// run is refused before anything does. That gradients are those of the same micro-batches without a
// pipeline is in verify_test.cpp.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/cli/program.h"
#include "tests/cli/training/tables.h"

namespace reprise::app {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

// Three blocks and the embedding: four layers.
json trained(const std::string& pipeline, const std::string& more = "") {
  const Finished done = run_here(
      tiny_run("train", "--json --steps 3 --batch 4 --dropout 0.2 --pipeline " + pipeline + more));
  EXPECT_EQ(done.exit_code, 0) << pipeline << done.err;
  return json::parse(done.out, nullptr, false);
}

TEST(TrainPipeline, BalanceScheduleAndCheckpointsChangeNoWeight) {
  const json plain = trained("stages=1,chunks=4,checkpoint=never");
  for (const char* other :
       {"stages=2,chunks=4", "stages=2,chunks=4,balance=bytes,checkpoint=always",
        "stages=2,chunks=4,balance=3+1,checkpoint=2", "stages=4,chunks=4,checkpoint=never",
        "stages=4,chunks=4,schedule=interleaved-1f1b", "stages=4,chunks=4,schedule=zero-bubble",
        "stages=4,chunks=4,schedule=dualpipev,checkpoint=always"}) {
    const json result = trained(other);
    EXPECT_EQ(result.at("weights_xxh3"), plain.at("weights_xxh3")) << other;
    EXPECT_EQ(result.at("loss"), plain.at("loss")) << other;
    EXPECT_EQ(result.at("validation_loss"), plain.at("validation_loss")) << other;
  }
  EXPECT_NE(trained("stages=2,chunks=2").at("loss"), plain.at("loss"));  // other dropout
}

TEST(TrainPipeline, SaysHowTheModelIsCutAndHowIdleTheWorkersWere) {
  const json result = trained("stages=2,chunks=4,balance=3+1").at("pipeline");
  EXPECT_EQ(result.at("schedule"), "1f1b");
  EXPECT_EQ(result.at("balance"), (json::array({3, 1})));
  EXPECT_EQ(result.at("workers"), 2);
  EXPECT_EQ(result.at("checkpoint_stop"), 3);
  EXPECT_GT(result.at("bubble"), 0);
  EXPECT_LT(result.at("bubble"), 1);
  const Finished table =
      run_here(tiny_run("train", "--steps 1 --batch 4 --pipeline stages=2,chunks=4,balance=3+1"));
  EXPECT_THAT(table.out,
              AllOf(HasSubstr("1f1b: stages of 3, 1 layers on 2 workers with 1 thread each, 3 of 4 "
                              "micro-batches checkpointed"),
                    HasSubstr("a head of its own"), HasSubstr("workers were idle for")));
}

TEST(TrainPipeline, RunsATableFromAFile) {
  const TemporaryFolder folder;
  write_file(folder / "t.csv", "0F0,0F1,,0B0,0B1\n,1F0,1B0,1F1,1B1\n");
  const json result = trained("csv=" + folder / "t.csv" + ",checkpoint=never");
  EXPECT_EQ(result.at("weights_xxh3"), trained("stages=2,chunks=2").at("weights_xxh3"));
}

TEST(TrainPipeline, ARunGoesOnBitForBitWithAPipelineOnly) {
  const TemporaryFolder folder;
  const std::string saved = " --steps 4 --checkpoint-dir " + folder / "c";
  const std::string pipeline = "stages=2,chunks=4";
  trained(pipeline, saved + " --stop-after 2");
  const Arguments without = tiny_run("train", "--batch 4 --resume" + saved);
  expect_refusal(without, "was made with --pipeline, with which a model has a head matrix");
  const json resumed = trained("stages=4,chunks=4,checkpoint=never", saved + " --resume");
  EXPECT_EQ(resumed.at("weights_xxh3"), trained(pipeline, " --steps 4").at("weights_xxh3"));
}

void refused(const std::string& more, const std::string& text) {
  expect_refusal(tiny_run("train", "--steps 1 --batch 4 " + more), text);
}

TEST(TrainPipeline, RefusesWhatCannotRun) {
  refused("--pipeline 2", "--pipeline has '2', which is no KEY=VALUE: give stages=N,chunks=N");
  refused("--pipeline chunks=4", "--pipeline lacks stages");
  refused("--pipeline stages=2", "--pipeline lacks chunks");
  refused("--pipeline stages=5,chunks=4",
          "--pipeline has 5 stages, and the model has 4 layers, the embedding and its blocks: give "
          "at most 4 stages, or more --layers");
  refused("--pipeline stages=2,chunks=3",
          "--pipeline has 3 micro-batches (chunks), and --batch 4 makes 2, of 2 and fewer for the "
          "last: give a --batch that is a multiple of the chunks");
  refused("--pipeline stages=2,chunks=8", "8 micro-batches (chunks), and --batch 4 makes 4");
  refused("--pipeline stages=2,chunks=4,balance=2+1",
          "--pipeline balance is 2+1, 3 layers in 2 stages, and the model has 4 layers, the "
          "embedding and its blocks, in 2 stages: give as many numbers as stages");
  refused("--pipeline stages=2,chunks=4,balance=2", "2 layers in 1 stages");
  refused("--pipeline stages=2,chunks=4,balance=cost",
          "--pipeline balance is 'cost': choose time, bytes, or the layers of each stage");
  refused("--pipeline stages=4,chunks=2,schedule=dualpipev", "micro_batches is 2");
  refused("--pipeline stages=2,chunks=4,checkpoint=never --determinism values",
          "--determinism has no effect with --pipeline checkpoint=never");
}

TEST(TrainPipeline, RefusesWhatItCannotBeCombinedWith) {
  const std::string pipeline = "--pipeline stages=2,chunks=4 ";
  refused(pipeline + "--budget 80%", "--budget cannot be combined with --pipeline");
  refused(pipeline + "--strategy sqrt", "--strategy cannot be combined with --pipeline");
  refused("--strategy pipeline:stages=2:chunks=4", "give it as --pipeline stages=2,chunks=4");
  refused(pipeline + "--reentrant", "--reentrant cannot be combined with --pipeline");
  refused(pipeline + "--trace-out t.json", "--trace-out cannot be combined with --pipeline");
  refused(pipeline + "--heuristic largest", "--heuristic has no effect without a budget");
  refused(pipeline + "--method every-block",
          "--method every-block cannot be combined with --pipeline");
}

TEST(TrainPipeline, TrainsBertAndVitAsWell) {
  const TemporaryFolder folder;
  write_file(folder / "pictures.csv", table_of_pictures(40));
  std::string text;
  for (int i = 0; i < 900; ++i) text += "line " + std::to_string(i * i % 97) + " of a text\n";
  write_file(folder / "text.txt", text);
  for (const std::string model : {"bert --context 32", "vit --patch 1"}) {
    const auto weights = [&](const std::string& pipeline) {
      Arguments line = words(
          "train --json --steps 2 --layers 3 --width 32 --heads 2 --device cpu "
          "--threads 1 --batch 4 --model " +
          model + " --pipeline " + pipeline);
      line.insert(line.end(), {"--log", folder / "log.jsonl", "--data",
                               folder / (model.starts_with("vit") ? "pictures.csv" : "text.txt")});
      const Finished done = run_here(line);
      EXPECT_EQ(done.exit_code, 0) << model << done.err;
      return json::parse(done.out, nullptr, false).at("weights_xxh3").get<std::string>();
    };
    const std::string plain = weights("stages=1,chunks=4,checkpoint=never");
    EXPECT_EQ(weights("stages=2,chunks=4,balance=2+2"), plain) << model;
    const auto lines = lines_of(folder / "log.jsonl");
    EXPECT_EQ(lines[0].at("options").at("method"), "pipeline,stages=2,chunks=4,balance=2+2");
    for (const char* seconds : {"forward_seconds", "backward_seconds", "recompute_seconds"}) {
      EXPECT_GT(lines[1].at(seconds), 0) << seconds;
    }
  }
}

}  // namespace
}  // namespace reprise::app
