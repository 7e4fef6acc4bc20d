// Training as a user sees it: it learns, stops and goes on bit for bit, survives Ctrl-C, and is
// quiet where nobody looks.
#include <gmock/gmock.h>

#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "tests/cli/program.h"

namespace reprise::app {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::vector<double> losses_of(const std::string& file) {
  std::vector<double> losses;
  for (const json& line : lines_of(file)) losses.push_back(line.at("loss"));
  return losses;
}

json json_of_run(const Arguments& arguments) {
  const Finished result = run_here(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return json::parse(result.out, nullptr, false);
}

// Waits until a running process has written so many steps.
void await_steps(const std::string& metrics, std::size_t steps) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  const auto lines = [&] { return std::ranges::count(contents(metrics), '\n'); };
  while (static_cast<std::size_t>(lines()) < steps && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

TEST(Train, LowersTheLossAndTellsTheFigures) {
  const TemporaryFolder folder;
  const json result = json_of_run(tiny_run(
      "train", "--steps 60 --lr 0.01 --batch 8 --json --sample --metrics " + folder / "m.jsonl"));
  const auto steps = lines_of(folder / "m.jsonl");
  ASSERT_EQ(steps.size(), 60u);
  EXPECT_LT(result.at("loss"), steps[0].at("loss").get<double>() - 1);
  EXPECT_LT(result.at("validation_loss"), 4.5);
  EXPECT_EQ(result.at("options").at("batch"), 8);
  EXPECT_EQ(result.at("step"), 60);
  EXPECT_TRUE(result.at("sample").is_string());
  for (const char* key : {"ms", "tokens_per_s", "lr", "gradient_norm", "peak_bytes"}) {
    EXPECT_GT(steps[30].at(key).get<double>(), 0) << key;
  }
}

class Resume : public testing::TestWithParam<const char*> {};

TEST_P(Resume, ContinuesBitForBit) {
  const TemporaryFolder folder;
  const std::string common = std::string("--steps 6 --json ") + GetParam();
  const json whole = json_of_run(tiny_run("train", common + " --metrics " + folder / "whole"));
  const std::string part =
      common + " --checkpoint-dir " + folder / "c" + " --metrics " + folder / "parts";
  EXPECT_EQ(json_of_run(tiny_run("train", part + " --stop-after 3")).at("step"), 3);
  const json resumed = json_of_run(tiny_run("train", part + " --resume"));
  EXPECT_EQ(resumed.at("weights_xxh3"), whole.at("weights_xxh3"));
  EXPECT_EQ(resumed.at("validation_loss"), whole.at("validation_loss"));
  EXPECT_EQ(losses_of(folder / "parts"), losses_of(folder / "whole"));
}

INSTANTIATE_TEST_SUITE_P(Train, Resume,
                         testing::Values("", "--strategy sqrt --accumulate 2", "--dtype bf16",
                                         "--strategy every-block --reentrant"));

TEST(Train, ResumesWhereItsOwnFilesLieInTheDataFolder) {
  const TemporaryFolder folder;
  write_file(folder / "text.txt", "some text beside that of the tests");
  for (const std::string metrics : {"run.jsonl", "run.txt"}) {
    const std::string saved = folder / "saved";
    const std::string common = "--steps 4 --json --data " + folder.path().string() + " --metrics " +
                               folder / metrics + " --checkpoint-dir " + saved;
    EXPECT_EQ(json_of_run(tiny_run("train", common + " --stop-after 2")).at("step"), 2);
    write_file(saved + "/notes.txt", "about this run");
    EXPECT_EQ(json_of_run(tiny_run("train", common + " --resume")).at("step"), 4);
    std::filesystem::remove_all(saved);
  }
}

TEST(Train, AnotherSeedIsAnotherRun) {
  const auto weights = [](const char* more) {
    return json_of_run(tiny_run("train", std::string("--steps 2 --json ") + more))
        .at("weights_xxh3");
  };
  EXPECT_EQ(weights("--seed 5"), weights("--seed 5"));
  EXPECT_NE(weights("--seed 5"), weights("--seed 6"));
}

TEST(Train, StrategiesTrainTheSameWeights) {
  const auto weights = [](const std::string& more) {
    return json_of_run(tiny_run("train", "--steps 3 --json " + more)).at("weights_xxh3");
  };
  const auto expected = weights("--strategy none");
  for (const char* strategy :
       {"every-block", "sqrt", "segments:2", "from-input", "sqrt --reentrant"}) {
    EXPECT_EQ(weights(std::string("--strategy ") + strategy), expected) << strategy;
  }
}

TEST(Train, AccumulationSplitsAStepIntoBatches) {
  const TemporaryFolder folder;
  const std::string common = "--steps 1 --dropout 0 --json --metrics " + folder / "m";
  json_of_run(tiny_run("train", common + " --batch 4"));
  const json whole = lines_of(folder / "m").at(0);
  json_of_run(tiny_run("train", common + " --batch 2 --accumulate 2"));
  const json parts = lines_of(folder / "m").at(0);
  EXPECT_NEAR(parts.at("loss").get<double>(), whole.at("loss").get<double>(), 1e-5);
  EXPECT_NEAR(parts.at("gradient_norm").get<double>(), whole.at("gradient_norm").get<double>(),
              1e-4);
}

TEST(Train, RefusesToOverwriteOrToContinueAnotherRun) {
  const TemporaryFolder folder;
  const std::string common = "--steps 2 --checkpoint-dir " + folder / "c ";
  const auto refusal = [&](const std::string& more) {
    const Finished result = run_here(tiny_run("train", common + more));
    EXPECT_EQ(result.exit_code, 2) << result.out;
    return result.err;
  };
  EXPECT_THAT(refusal("--resume"), HasSubstr("nothing to resume: there is no " + folder / "c"));
  EXPECT_FALSE(std::filesystem::exists(folder / "c"));
  EXPECT_EQ(run_here(tiny_run("train", common)).exit_code, 0);
  EXPECT_THAT(refusal(""), HasSubstr("exists already; add --resume to go on from it"));
  EXPECT_THAT(refusal("--resume"), HasSubstr("has done 2 steps already; give more --steps"));
  EXPECT_THAT(refusal("--resume --steps 4 --width 32"),
              AllOf(HasSubstr("--width 32 does not continue"), HasSubstr("made with --width 16")));
  EXPECT_THAT(refusal("--resume --steps 4 --seed 9"), HasSubstr("--seed 9 does not continue"));
  EXPECT_THAT(refusal("--resume --steps 4 --data " REPRISE_CLI), HasSubstr("binary"));
  EXPECT_THAT(refusal("--resume --steps 4 --data " REPRISE_SOURCE_DIR "/tests/models"),
              HasSubstr("the data differs from what"));
}

TEST(Train, ADamagedCheckpointIsAClearError) {
  const TemporaryFolder folder;
  const std::string common = "--steps 2 --checkpoint-dir " + folder / "c ";
  ASSERT_EQ(run_here(tiny_run("train", common)).exit_code, 0);
  const std::string file = folder / "c/training.reprise", whole = contents(file);
  const auto refusal = [&](const std::string& bytes) {
    write_file(file, bytes);
    const Finished result = run_here(tiny_run("train", common + "--steps 4 --resume"));
    EXPECT_EQ(result.exit_code, 2) << result.out;
    return result.err;
  };
  std::string flipped = whole;
  flipped[whole.size() / 2] ^= 1;
  EXPECT_THAT(refusal(flipped), HasSubstr("is damaged: its bytes do not match their checksum"));
  EXPECT_THAT(refusal(whole.substr(0, whole.size() / 2)), HasSubstr("is damaged: it holds"));
  EXPECT_THAT(refusal(""), HasSubstr("is not a file of reprise"));
  write_file(file, whole);
  EXPECT_EQ(run_here(tiny_run("train", common + "--steps 4 --resume")).exit_code, 0);
}

TEST(Train, CtrlCSavesAndExits130) {
  const TemporaryFolder folder;
  const std::string more =
      "--steps 100000 --checkpoint-dir " + folder / "c" + " --metrics " + folder / "m";
  Process process(tiny_run("train", more));
  await_steps(folder / "m", 3);
  process.send(SIGINT);
  const Finished result = process.wait();
  EXPECT_EQ(result.exit_code, 130);
  const auto done = lines_of(folder / "m").size();
  EXPECT_THAT(result.err,
              HasSubstr("interrupted after step " + std::to_string(done) + "; saved to " +
                        folder / "c/training.reprise" + "; add --resume to go on"));
  const json resumed =
      json_of_run(tiny_run("train", "--json --resume --steps " + std::to_string(done + 2) +
                                        " --checkpoint-dir " + folder / "c"));
  EXPECT_EQ(resumed.at("step"), done + 2);
}

TEST(Train, AnInterruptionWithoutAFolderSaysThatNothingWasSaved) {
  const TemporaryFolder folder;
  Process process(tiny_run("train", "--steps 100000 --metrics " + folder / "m"));
  await_steps(folder / "m", 1);
  process.send(SIGTERM);
  const Finished result = process.wait();
  EXPECT_EQ(result.exit_code, 143);
  EXPECT_THAT(result.err, HasSubstr("nothing was saved, for there is no --checkpoint-dir"));
}

TEST(Train, AKilledRunNeverLeavesABrokenCheckpoint) {
  const TemporaryFolder folder;
  const std::string common = "--checkpoint-every 1 --checkpoint-dir " + folder / "c" +
                             " --metrics " + folder / "m" + " --steps 100000 ";
  std::int64_t done = 0;
  for (int kill = 0; kill < 5; ++kill) {
    Process process(tiny_run("train", common + (kill > 0 ? "--resume" : "")));
    await_steps(folder / "m", static_cast<std::size_t>(done) + 2);
    // Saving is most of what such a small run does; vary where in it the blow falls.
    std::this_thread::sleep_for(std::chrono::microseconds(700 * kill));
    process.send(SIGKILL);
    EXPECT_EQ(process.wait().exit_code, -SIGKILL);
    const json resumed = json_of_run(tiny_run("train", common + "--json --resume --stop-after 1"));
    EXPECT_GT(resumed.at("step"), done);
    done = resumed.at("step");
  }
}

TEST(Train, TheMetricsOfAResumedRunHaveEveryStepOnce) {
  const TemporaryFolder folder;
  const std::string common =
      "--steps 6 --metrics " + folder / "m" + " --checkpoint-dir " + folder / "c ";
  ASSERT_EQ(run_here(tiny_run("train", common + "--stop-after 3")).exit_code, 0);
  // A killed run leaves this: steps after the last save, and half a line.
  std::string longer = contents(folder / "m");
  longer += "{\"step\": 4, \"loss\": 0}\n{\"step\": 5, \"lo";
  write_file(folder / "m", longer);
  ASSERT_EQ(run_here(tiny_run("train", common + "--resume")).exit_code, 0);
  std::vector<int> steps;
  for (const json& line : lines_of(folder / "m")) steps.push_back(line.at("step"));
  EXPECT_EQ(steps, (std::vector{1, 2, 3, 4, 5, 6}));
}

TEST(Train, ShowsALiveLineOnATerminalAlone) {
  const Finished quiet = Process(tiny_run("train", "--steps 3")).wait();
  EXPECT_EQ(quiet.err, "");
  EXPECT_THAT(quiet.out, AllOf(HasSubstr("model"), HasSubstr("ms/step"), Not(HasSubstr("\r"))));
  const Finished live = Process(tiny_run("train", "--steps 3"), Terminal::kOfAll).wait();
  EXPECT_EQ(live.exit_code, 0);
  EXPECT_THAT(live.out, AllOf(HasSubstr("\rstep 1/3   loss "), HasSubstr("\r\x1b[K")));
}

// Decay beyond one turns every step into a growth.
const std::string kDiverging =
    "--steps 60 --lr 10 --weight-decay 10 --clip 0 --warmup 0 --checkpoint-dir ";

TEST(Train, ADivergingRunStopsWithAdvice) {
  const TemporaryFolder folder;
  const Finished result = run_here(tiny_run("train", kDiverging + folder / "c"));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("the loss is "), HasSubstr("try a smaller --lr")));
}

TEST(Train, WhatTheLastStepHasRuinedIsNotSaved) {
  const TemporaryFolder folder;
  const std::string err = run_here(tiny_run("train", kDiverging + folder / "c")).err;
  const auto at = err.find("at step ");
  ASSERT_NE(at, std::string::npos) << err;
  const int last = std::stoi(err.substr(at + 8)) - 1;
  const Finished result = run_here(
      tiny_run("train", kDiverging + folder / "d" + " --stop-after " + std::to_string(last)));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("after step " + std::to_string(last)),
                                HasSubstr("not saved; try a smaller --lr")));
  EXPECT_FALSE(std::filesystem::exists(folder / "d/training.reprise"));
}

}  // namespace
}  // namespace reprise::app
