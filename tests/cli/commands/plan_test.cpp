// `reprise plan`: chains from files and of a model, its table, its JSON, its files, and what it
// says to wrong input.
#include <gmock/gmock.h>
#include <reprise/planners.h>

#include <nlohmann/json.hpp>

#include "tests/cli/program.h"
#include "tests/plan/chain/chains.h"

namespace reprise::app {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

class Plan : public testing::Test {
 protected:
  // 240 bytes of what is kept, and gradients.
  Plan() { write_file(chain, plan::uniform_chain(8).json()); }

  Finished run(const std::string& more) const {
    Arguments arguments = {"plan", chain};
    for (const std::string& each : words(more)) arguments.push_back(each);
    return run_here(arguments);
  }
  void expect_refusal_of(const std::string& more, const std::string& text) const {
    Arguments arguments = {"plan", chain};
    for (const std::string& each : words(more)) arguments.push_back(each);
    expect_refusal(arguments, text);
  }

  TemporaryFolder folder;
  std::string chain = folder / "chain.json";
};

TEST_F(Plan, TellsWhatEveryPlannerMakesOfABudget) {
  const Finished finished = run("--planner rotor,sqrt --budget 100%,50%,120 --json");
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  const json result = json::parse(finished.out);
  const Chain of = plan::uniform_chain(8);
  const Bytes plain = evaluate(of, planners::keep_all(of)).peak;
  EXPECT_EQ(result.at("plain_peak_bytes"), plain.count);
  EXPECT_EQ(Chain::parse(result.at("chain").dump()), of);
  std::vector<std::int64_t> budgets;
  for (const json& row : result.at("plans")) budgets.push_back(row.at("budget_bytes"));
  const std::int64_t half = plain.count / 2;
  EXPECT_THAT(budgets, ElementsAre(plain.count, half, 120, plain.count, half, 120));
  const json& row = result.at("plans").at(1);
  EXPECT_EQ(row.at("planner"), "rotor");
  const reprise::Schedule schedule = planners::rotor(of, Bytes(half));
  const ScheduleCost cost = evaluate(of, schedule);
  EXPECT_EQ(reprise::Schedule::parse(row.at("schedule").dump()), schedule);
  EXPECT_EQ(row.at("peak_bytes"), cost.peak.count);
  EXPECT_EQ(row.at("forwards"), cost.forwards);
  EXPECT_DOUBLE_EQ(row.at("seconds"), cost.time.count());
  EXPECT_DOUBLE_EQ(row.at("slowdown"), cost.time.count() / 24);
}

TEST_F(Plan, SaysWhereNothingFits) {
  const Finished some = run("--planner every_stage,rotor --budget 70");
  EXPECT_EQ(some.exit_code, 0) << "one of them fits";
  EXPECT_THAT(some.out, HasSubstr("does not fit"));
  const Finished none = run("--budget 10,20");
  EXPECT_EQ(none.exit_code, 4);
  EXPECT_THAT(none.out, HasSubstr("does not fit"));
  EXPECT_THAT(none.err, HasSubstr("reprise plan: rotor: the budget is 20 B (20 bytes), but the "
                                  "chain needs at least 70 B"));
  const json row = json::parse(run("--budget 10 --json").out).at("plans").at(0);
  EXPECT_EQ(row.at("fits"), false);
  EXPECT_FALSE(row.contains("schedule"));
}

TEST_F(Plan, DrawsAndWritesASchedule) {
  const std::string picture_file = folder / "plan.svg", schedule_file = folder / "plan.json";
  const Finished finished =
      run("--budget 60% --picture " + picture_file + " --schedule-out " + schedule_file);
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  const Chain of = plan::uniform_chain(8);
  const reprise::Schedule schedule = reprise::Schedule::read(schedule_file);
  EXPECT_LE(evaluate(of, schedule).peak.count,
            evaluate(of, planners::keep_all(of)).peak.count * 6 / 10);
  EXPECT_EQ(contents(picture_file), picture_svg(of, schedule));
  EXPECT_THAT(finished.out, HasSubstr(picture(of, schedule)));
}

TEST_F(Plan, MeasuresTheBlocksOfAModel) {
  const std::string measured = folder / "measured.json";
  const Finished finished =
      run_here(words("plan --layers 3 --width 16 --heads 2 --context 8 --batch 2 --threads 1 "
                     "--planner keep_all,rotor --budget 100% --json --chain-out " +
                     measured));
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  const Chain of = Chain::read(measured);
  ASSERT_EQ(of.stages.size(), 3);
  EXPECT_EQ(of.stages[1].name, "block 1");
  // Batch, context and width in floats.
  EXPECT_EQ(of.stages[1].output, Bytes(2 * 8 * 16 * 4));
  EXPECT_GT(of.stages[1].forward.count(), 0);
  const json result = json::parse(finished.out);
  EXPECT_EQ(Chain::parse(result.at("chain").dump()), of);
  EXPECT_DOUBLE_EQ(result.at("plans").at(1).at("slowdown"), 1);
}

// Three values of 10 kB in a row; the first is read again at the end.
std::string step_trace() {
  std::string text;
  const auto call = [&](const std::string& name, const std::string& arguments, int nanoseconds) {
    text += R"({"INSTRUCTION":"CALL","NAME":"op","ARGS":[)" + arguments + R"(],"RESULT":[")" +
            name + R"("],"TIME":")" + std::to_string(nanoseconds) + "\"}\n" +
            R"({"INSTRUCTION":"MEMORY","NAME":")" + name + R"(","MEMORY":"10000"})" + "\n" +
            R"({"INSTRUCTION":"ALIAS","NAME":")" + name + R"(","ALIAS":"-1"})" + "\n";
  };
  call("a", "", 1000);
  call("b", R"("a")", 2000);
  call("c", R"("b")", 2000);
  call("d", R"("c","a")", 5000);
  for (const char* name : {"a", "b", "c"}) {
    text += std::string(R"({"INSTRUCTION":"RELEASE","NAME":")") + name + "\"}\n";
  }
  return text;
}

TEST_F(Plan, PlansARecordedStepWithHindsight) {
  const std::string trace = folder / "step.jsonl";
  write_file(trace, step_trace());
  const Finished finished =
      run_here({"plan", trace, "--budget", "30kB,20kB", "--moves", "1000", "--json"});
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  const json result = json::parse(finished.out);
  EXPECT_EQ(result.at("operators"), 4);
  EXPECT_DOUBLE_EQ(result.at("base_seconds"), 10e-6);
  const json &whole = result.at("plans").at(0), &none = result.at("plans").at(1);
  EXPECT_EQ(whole.at("planner"), "hindsight");
  EXPECT_EQ(whole.at("slowdown"), 1);
  EXPECT_EQ(whole.at("peak_bytes"), 30'000);
  EXPECT_EQ(whole.at("runs"), json::array());
  EXPECT_EQ(none.at("fits"), false) << "the last operator reads two values and makes one";
  const Finished table = run_here({"plan", trace, "--moves", "10"});
  EXPECT_THAT(table.out, HasSubstr("hindsight"));
  const Finished small = run_here({"plan", trace, "--moves", "10", "--budget", "9kB"});
  EXPECT_EQ(small.exit_code, 4);
  EXPECT_THAT(small.err, HasSubstr("reprise plan: hindsight: no plan was found for 9.0 KB"));
}

// The same with a result that takes long to make, as a document.
constexpr const char* kStepDocument = R"({"format": "reprise step", "version": 1, "operators": [
  {"seconds": 5e-3, "outputs": [{"bytes": 1000}]},
  {"seconds": 1e-6, "inputs": [0], "outputs": [{"bytes": 3000}]},
  {"seconds": 1e-6, "inputs": [1], "outputs": [{"bytes": 3000}]},
  {"seconds": 1e-6, "inputs": [2, 0], "outputs": [{"bytes": 1}]}], "results": [3]})";

TEST_F(Plan, PlansAStepOfADocumentWithAStore) {
  const std::string step = folder / "step.json";
  write_file(step, kStepDocument);
  const std::vector<std::string> plan = {"plan", step,      "--planner", "hindsight", "--budget",
                                         "6kB",  "--moves", "500",       "--json"};
  const Finished without = run_here(plan);
  ASSERT_EQ(without.exit_code, 0) << without.err;
  const json again = json::parse(without.out).at("plans").at(0);
  EXPECT_EQ(again.at("runs"), json::parse("[[0, 3]]"));
  EXPECT_EQ(again.at("loads"), json::array());
  std::vector<std::string> stored = plan;
  stored.insert(stored.end(), {"--store-bandwidth", "1e9"});
  const Finished with = run_here(stored);
  ASSERT_EQ(with.exit_code, 0) << with.err;
  const json loaded = json::parse(with.out).at("plans").at(0);
  EXPECT_EQ(loaded.at("runs"), json::array());
  EXPECT_EQ(loaded.at("loads"), json::parse("[[0, 3]]"));
  EXPECT_DOUBLE_EQ(loaded.at("transfer_seconds"), 2e-6);
  stored.pop_back();
  stored.pop_back();
  stored.pop_back();
  const Finished table = run_here(stored);
  EXPECT_THAT(table.out, HasSubstr("loaded"));
  write_file(step, std::string(kStepDocument) + "}");
  expect_refusal({"plan", step}, "step.json:5: ");
}

TEST_F(Plan, PlansAChainWithAStore) {
  const Finished run = run_here({"plan", chain, "--planner", "rotor,rotor_offload", "--budget",
                                 "50%", "--store-bandwidth", "1e15", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json plans = json::parse(run.out).at("plans");
  EXPECT_EQ(plans.at(0).at("transfer_seconds"), 0);
  EXPECT_GT(plans.at(1).at("transfer_seconds"), 0);
  EXPECT_LT(plans.at(1).at("seconds"), plans.at(0).at("seconds"));
  expect_refusal_of("--planner rotor_offload",
                    "--planner rotor_offload needs the rate of a store: add --store-bandwidth");
  expect_refusal_of("--store-bandwidth 1e9", "--store-bandwidth has no effect on these planners");
}

TEST_F(Plan, RefusesOfAStepWhatIsOfChains) {
  const std::string trace = folder / "step.jsonl";
  write_file(trace, step_trace());
  expect_refusal({"plan", trace, "--planner", "rotor"},
                 "--planner is 'rotor', which plans no step's trace: choose hindsight or ilp");
  expect_refusal({"plan", trace, "--picture", folder / "p"},
                 "--picture and --schedule-out are for chains");
  expect_refusal({"plan", trace, "--layers", "3"}, "--layers has no effect with FILE");
  expect_refusal_of("--moves 5", "--seconds and --moves are for hindsight");
  expect_refusal_of("--planner hindsight",
                    "--planner is 'hindsight', which plans a recorded step: name its trace");
  write_file(trace, step_trace() + "{\"INSTRUCTION\":\"FREE\"}\n");
  expect_refusal({"plan", trace}, "step.jsonl:16: the INSTRUCTION \"FREE\" is not known");
}

TEST_F(Plan, RefusesWhatHasNoEffect) {
  expect_refusal_of("--layers 3", "--layers has no effect with FILE, which has its figures");
  expect_refusal_of("--threads 2", "--device and --threads have no effect with FILE");
  expect_refusal_of("--chain-out " + folder / "other",
                    "--chain-out is for a chain that is measured");
  expect_refusal_of("--picture " + folder / "plan.svg",
                    "--picture holds one schedule: give one --planner and one --budget");
}

TEST_F(Plan, RefusesFilesThatWouldReplaceEachOther) {
  const std::string one = folder / "one";
  expect_refusal_of("--budget 60% --picture " + one + " --schedule-out " + one,
                    "--picture would write over " + one + " of --schedule-out");
  expect_refusal_of("--budget 60% --schedule-out " + folder.path().string() + "/./chain.json",
                    "chain.json of FILE: choose another path for --schedule-out");
  EXPECT_EQ(Chain::read(chain), plan::uniform_chain(8));
}

TEST_F(Plan, RefusesPlannersAndBudgetsThatAreNone) {
  expect_refusal_of("--planner rotors", "\"rotors\" is not a planner: choose one of keep_all");
  expect_refusal_of("--planner uniform:0", "\"uniform:0\" is not a planner");
  expect_refusal_of("--planner uniform:9",
                    "uniform: segments is 9, but must be between 1 and the number of stages, 8");
  expect_refusal_of("--budget much",
                    "--budget is 'much': give a share of the plain peak (0.5 or 50%");
  // Before anything is measured.
  expect_refusal(words("plan --budget much"), "--budget is 'much'");
}

TEST_F(Plan, RefusesChainsThatItCannotRead) {
  write_file(chain, "{\"format\": \"reprise chain\",\n\"version\": 3}");
  expect_refusal_of("", "chain.json:2: version: is 3; this reprise reads version 1");
  expect_refusal({"plan", folder.path().string()}, "it is a folder or a device; give a file");
  expect_refusal({"plan", folder / "none"}, "none: No such file or directory");
}

}  // namespace
}  // namespace reprise::app
