// `reprise train --trace-out`: a trace that Chrome shows, and one that `reprise simulate` reads.
#include <gmock/gmock.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/cli/program.h"

namespace reprise::app {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

json train(const std::string& more) {
  const Finished result = run_here(tiny_run("train", kDeep + ("--json " + more)));
  EXPECT_EQ(result.exit_code, 0) << more << result.err;
  return json::parse(result.out, nullptr, false);
}

json simulate(const std::string& trace, const std::string& more = "") {
  Arguments arguments = {"simulate", trace, "--json"};
  for (const std::string& word : words(more)) arguments.push_back(word);
  const Finished result = run_here(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return json::parse(result.out, nullptr, false);
}

std::map<std::string, int> kinds_of(const json& trace) {
  std::map<std::string, int> kinds;
  for (const json& event : trace.at("traceEvents")) ++kinds[event.value("cat", event.at("ph"))];
  return kinds;
}

TEST(TraceOut, ChromeIsShownOperatorsDropsReplaysAndTheBytesAlive) {
  const TemporaryFolder folder;
  const json result = train("--steps 2 --budget 50% --trace-out " + folder / "step.json");
  EXPECT_EQ(result.at("trace").at("step"), 2);
  const json trace = json::parse(contents(folder / "step.json"));
  const auto kinds = kinds_of(trace);
  EXPECT_GT(kinds.at("operator"), 100);
  EXPECT_GT(kinds.at("drop"), 0);
  EXPECT_GT(kinds.at("replay"), 0);
  EXPECT_GT(kinds.at("restore"), 0);
  EXPECT_EQ(kinds.at("step"), 1);
  double end = 0;
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "M") continue;
    EXPECT_GE(event.at("ts").get<double>(), 0) << event;
    if (event.at("ph") == "C") {
      EXPECT_LE(event.at("args").at("bytes"), result.at("budget").at("bytes")) << event;
      EXPECT_GE(event.at("ts").get<double>(), end);
      end = event.at("ts");
    } else if (event.at("ph") == "X") {
      EXPECT_GE(event.at("dur").get<double>(), 0) << event;
    }
  }
}

TEST(TraceOut, WithoutABudgetNothingIsDropped) {
  const TemporaryFolder folder;
  const json traced = train("--steps 2 --trace-step 1 --trace-out " + folder / "step.json");
  EXPECT_EQ(traced.at("trace").at("step"), 1);
  EXPECT_FALSE(traced.contains("budget"));
  const auto kinds = kinds_of(json::parse(contents(folder / "step.json")));
  EXPECT_EQ(kinds.count("drop") + kinds.count("replay"), 0u);
  EXPECT_EQ(traced.at("weights_xxh3"), train("--steps 2").at("weights_xxh3"));
}

TEST(TraceOut, SimulateReadsTheStepsOwnTrace) {
  const TemporaryFolder folder;
  for (const char* name : {"step.jsonl", "step.log", "step.jsonl.gz"}) {
    const json run = train("--steps 2 --trace-out " + folder / name);
    const json whole = simulate(folder / name, "--budget 100%");
    EXPECT_EQ(whole.at("simulations").at(0).at("outcome"), "fits");
    EXPECT_EQ(whole.at("simulations").at(0).at("recomputations"), 0);
    EXPECT_GT(whole.at("base_seconds"), 0);
    // What the step's own peak was, but for temporaries inside operators and what is written in
    // place beside its old value.
    EXPECT_NEAR(whole.at("plain_peak_bytes").get<double>(), run.at("peak_bytes").get<double>(),
                0.1 * run.at("peak_bytes").get<double>());
  }
  const json half = simulate(folder / "step.log", "--budget 60% --index").at("simulations").at(0);
  EXPECT_EQ(half.at("outcome"), "fits");
  EXPECT_GT(half.at("evictions"), 0);
}

TEST(TraceOut, ABudgetsStepIsTheSameProgram) {
  const TemporaryFolder folder;
  train("--steps 2 --trace-out " + folder / "plain.log");
  train("--steps 2 --budget 50% --trace-out " + folder / "tight.log");
  const json plain = simulate(folder / "plain.log"), tight = simulate(folder / "tight.log");
  for (const char* key : {"operators", "plain_peak_bytes", "constant_bytes", "floor_bytes"}) {
    EXPECT_EQ(plain.at(key), tight.at(key)) << key;
  }
}

TEST(TraceOut, RefusesWhatCannotBeTraced) {
  const TemporaryFolder folder;
  expect_training_refusal("--trace-out step.txt",
                          "--trace-out is 'step.txt': end the name in .json");
  expect_training_refusal("--trace-step 3", "--trace-step needs a file: add --trace-out FILE");
  expect_training_refusal("--steps 3 --trace-step 4 --trace-out x.json",
                          "--trace-step 4 is beyond --steps 3");
  for (const char* name : {"none/step.json", "none/step.log"}) {
    expect_training_refusal("--trace-out " + folder / name, "cannot write ");
  }
  expect_training_refusal("--metrics " + folder / "m.json" + " --trace-out " + folder / "m.json",
                          "--trace-out would write over");
  train("--steps 4 --stop-after 2 --checkpoint-dir " + folder / "c");
  expect_training_refusal(kDeep + ("--steps 4 --resume --checkpoint-dir " + folder / "c" +
                                   " --trace-step 2 --trace-out " + folder / "t.json"),
                          "--trace-step 2 is none of this call, whose steps are 3 to 4");
}

TEST(TraceOut, AFullDiskCostsNoStep) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink("/dev/full", folder / "full.json");
  std::filesystem::create_symlink("/dev/full", folder / "full.log");
  for (const char* name : {"full.json", "full.log"}) {
    const std::string saved = folder / name + std::string(".saved");
    const Finished result = run_here(
        tiny_run("train", "--steps 2 --checkpoint-dir " + saved + " --trace-out " + folder / name));
    EXPECT_EQ(result.exit_code, 1) << name;
    EXPECT_THAT(result.err, AllOf(HasSubstr("is not complete: No space left on device"),
                                  HasSubstr("step 2 is saved to "), HasSubstr("with --trace-out")));
  }
}

}  // namespace
}  // namespace reprise::app
