// The files of an experiment: what is read, what is skipped, what is refused and with which words.
#include <gmock/gmock.h>

#include <cmath>

#include "apps/cli/experiment/findings_runs.h"
#include "tests/cli/findings_files.h"

namespace reprise::app {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string reading_refusal(const TemporaryFolder& folder) {
  return refusal_of([&] { read_runs(folder.path()); });
}

TEST(FindingsRuns, AreReadAsTheyWereWritten) {
  const TemporaryFolder folder;
  write_settings(folder);
  nlohmann::json lossy = made_step(1, 12.5, 3.5);
  lossy.update({{"gradient_error", 0.25}, {"compressed_from", 800}, {"compressed_to", 200}});
  nlohmann::json broken = made_pgac_step(2, "01");
  broken["loss"] = nullptr;
  nlohmann::json header = made_header("pgac:lossy", 7, 2);
  header["exact"] = false;
  write_lines(folder, path_of_run("pgac:lossy", 7),
              {header, lossy, broken, made_end({{"accuracy", 0.5}, {"energy_joules", 12}})});

  const Runs found = read_runs(folder.path());
  EXPECT_EQ(found.settings["machine"], "a CPU");
  EXPECT_EQ(found.cut, 0U);
  ASSERT_EQ(found.runs.size(), 1U);
  const RunFile& run = found.runs[0];
  EXPECT_EQ(run.model, "gpt2");
  EXPECT_EQ(run.method, "pgac:lossy");
  EXPECT_EQ(run.seed, 7);
  EXPECT_EQ(run.units, "tokens");
  EXPECT_EQ(run.budget, Bytes(4000));
  EXPECT_EQ(run.live, Bytes(500));
  EXPECT_FALSE(run.is_exact);
  EXPECT_THAT(run.layers, ElementsAre("block0", "block1"));
  ASSERT_EQ(run.steps.size(), 2U);
  EXPECT_EQ(run.steps[0].loss, 4);
  EXPECT_EQ(run.steps[0].milliseconds, 12.5);
  EXPECT_EQ(run.steps[0].recompute_milliseconds, 3.5);
  EXPECT_EQ(run.steps[0].peak, Bytes(3001));
  EXPECT_EQ(run.steps[0].units, 100);
  EXPECT_EQ(run.steps[0].gradient_error, 0.25);
  EXPECT_EQ(run.steps[0].compressed_from, Bytes(800));
  EXPECT_EQ(run.steps[0].compressed_to, Bytes(200));
  EXPECT_THAT(run.steps[0].mask, IsEmpty());
  EXPECT_TRUE(std::isnan(run.steps[1].loss));
  EXPECT_THAT(run.steps[1].scores, ElementsAre(1, 0.5));
  EXPECT_TRUE(std::isnan(run.steps[1].averages[1]));
  EXPECT_EQ(run.steps[1].gamma, 1);
  EXPECT_EQ(run.steps[1].threshold, 0.75);
  EXPECT_EQ(run.steps[1].mask, "01");
  EXPECT_EQ(run.validation_loss, 2);
  EXPECT_TRUE(std::isnan(run.perplexity));
  EXPECT_EQ(run.accuracy, 0.5);
  EXPECT_EQ(run.joules, 12);
}

TEST(FindingsRuns, ComeInTheOrderOfTheSettingsThenByNameAndSeed) {
  const TemporaryFolder folder;
  write_settings(folder);
  for (const char* method : {"another", "pgac:influence", "none", "pgac:influence,q=0.25"}) {
    write_run(folder, method, 10, {1});
    write_run(folder, method, 9, {1});
  }
  const Runs found = read_runs(folder.path());
  EXPECT_THAT(found.models(), ElementsAre("gpt2"));
  EXPECT_THAT(found.methods("gpt2"),
              ElementsAre("none", "pgac:influence", "another", "pgac:influence,q=0.25"));
  EXPECT_EQ(found.runs[0].seed, 9);
  EXPECT_EQ(found.runs[1].seed, 10);
  EXPECT_TRUE(found.runs.back().is_ablation());
  EXPECT_EQ(found.runs.back().base_method(), "pgac:influence");
}

TEST(FindingsRuns, ThatWereCutAreCountedAndSkipped) {
  const TemporaryFolder folder;
  write_settings(folder);
  write_run(folder, "none", 1, {1, 2});
  write_lines(folder, path_of_run("none", 2), {made_header("none", 2, 2), made_step(1, 1)});
  write_lines(folder, path_of_run("none", 3), {});
  // Cut in the middle of its last line.
  write_run(folder, "none", 4, {1, 2});
  const std::string whole = contents(folder / path_of_run("none", 4));
  write_file(folder / path_of_run("none", 4), whole.substr(0, whole.size() - 5));
  // Not yet in its place.
  write_file(folder / "runs/gpt2/none/.partial.1.5.jsonl", "{");
  write_file(folder / "runs/gpt2/none/notes.txt", "{");
  const Runs found = read_runs(folder.path());
  EXPECT_EQ(found.runs.size(), 1U);
  EXPECT_EQ(found.cut, 3U);
}

TEST(FindingsRuns, ThatFailedMayHaveFewerSteps) {
  const TemporaryFolder folder;
  write_settings(folder);
  const nlohmann::json end = made_end({{"validation_loss", nullptr}, {"failure", "too small"}});
  write_lines(folder, path_of_run("dtr", 1), {made_header("dtr", 1, 5), end});
  const Runs found = read_runs(folder.path());
  EXPECT_EQ(found.runs.at(0).failure, "too small");
  EXPECT_THAT(found.of("gpt2", "dtr"), IsEmpty());
  EXPECT_THAT(found.methods("gpt2"), ElementsAre("dtr"));
}

TEST(FindingsRuns, AreRefusedWithFileLineFieldAndReason) {
  struct Case {
    std::size_t line;
    const char* field;
    nlohmann::json value;
    const char* text;
  };
  const Case cases[] = {
      {1, "kind", "step", "1: kind: is 'step', and the first line's must be 'run'"},
      {1, "seed", 2, "1: seed: is '2', and the file lies at '1'"},
      {1, "seed", -1, "1: seed: is -1, and must be a whole number from 0 on"},
      {1, "method", "dtr", "1: method: is 'dtr', and the file lies at 'pgac=influence'"},
      {1, "model", 3, "1: model: is 3, and must be a text"},
      {1, "exact", 1, "1: exact: is 1, and must be true or false"},
      {1, "layers", {"block0", 1}, "1: layers: has 1 in it, and may only have texts"},
      {1, "budget_bytes", 1.5, "1: budget_bytes: is 1.5, and must be a whole number from 0 on"},
      {2, "kind", "stop", "2: kind: is 'stop', and must be 'step' or 'end'"},
      {2, "step", 2, "2: step: is 2, and step 1 of 2 was expected"},
      {2, "loss", "low", "2: loss: is \"low\", and must be a number or null"},
      {2, "milliseconds", -3, "2: milliseconds: is -3, and must not be below zero"},
      {2, "peak_bytes", nullptr, "2: peak_bytes: is null, and must be a whole number from 0 on"},
      {2, "scores", {1}, "2: scores: must be a list of 2 numbers, one a layer"},
      {2, "averages", {1, true}, "2: averages: has true in it, and may only have numbers and null"},
      {2, "mask", "1x", "2: mask: is '1x', and must be 2 characters 0 or 1, one a layer"},
      {3, "mask", "111", "3: mask: is '111', and must be 2 characters 0 or 1, one a layer"},
      {4, "accuracy", -0.5, "4: accuracy: is -0.5, and must not be below zero"},
      {4, "failure", nullptr, "4: failure: is null, and must be a text"}};
  for (const Case& each : cases) {
    const TemporaryFolder folder;
    write_settings(folder);
    std::vector<nlohmann::json> lines = {made_header("pgac:influence", 1, 2),
                                         made_pgac_step(1, "11"), made_pgac_step(2, "10"),
                                         made_end()};
    write_lines(folder, path_of_run("pgac:influence", 1), lines);
    EXPECT_EQ(reading_refusal(folder), "");
    lines[each.line - 1][each.field] = each.value;
    write_lines(folder, path_of_run("pgac:influence", 1), lines);
    EXPECT_EQ(reading_refusal(folder), folder / "runs/gpt2/pgac=influence/1.jsonl:" + each.text);
    lines[each.line - 1].erase(each.field);
    write_lines(folder, path_of_run("pgac:influence", 1), lines);
    // A step without a mask is of another method.
    if (std::string(each.field) != "mask" && each.line != 2) {
      EXPECT_THAT(reading_refusal(folder), HasSubstr(": is missing")) << each.field;
    }
  }
}

TEST(FindingsRuns, AreRefusedWhereLinesAreTooManyOrTooFew) {
  const TemporaryFolder folder;
  write_settings(folder);
  const auto with = [&](const std::vector<nlohmann::json>& lines) {
    write_lines(folder, path_of_run("none", 1), lines);
    return reading_refusal(folder);
  };
  const nlohmann::json header = made_header("none", 1, 2);
  EXPECT_THAT(with({header, made_step(1, 1), made_end()}),
              HasSubstr("1.jsonl:3: failure: is empty, and of 2 steps there are 1"));
  EXPECT_THAT(with({made_header("none", 1, 1), made_step(1, 1), made_step(2, 1), made_end()}),
              HasSubstr("1.jsonl:3: step: is 2, and step 2 of 1 was expected"));
  EXPECT_THAT(with({header, made_step(1, 1), made_step(2, 1), made_end(), made_end()}),
              HasSubstr("1.jsonl:5: kind: comes after the end of the run"));
  EXPECT_THAT(with({header, nlohmann::json(3), made_end()}),
              HasSubstr("1.jsonl:2: the line is no JSON object"));
}

TEST(FindingsRuns, NeedSettings) {
  const TemporaryFolder folder;
  EXPECT_THAT(reading_refusal(folder), HasSubstr("experiment.json; give the folder that an"));
  write_settings(folder);
  EXPECT_THAT(reading_refusal(folder), HasSubstr(folder / "runs: No such file or directory"));
  write_file(folder / "experiment.json", R"({"command": "c", "machine": 1})");
  EXPECT_THAT(reading_refusal(folder),
              HasSubstr("experiment.json:1: machine: is 1, and must be a text"));
  write_file(folder / "experiment.json",
             R"({"command": "c", "machine": "m", "date": "d", "models": [], "methods": [],
                 "seeds": [1.5]})");
  EXPECT_THAT(reading_refusal(folder),
              HasSubstr("seeds: is [1.5], and must be a list of whole numbers"));
}

}  // namespace
}  // namespace reprise::app
