// `reprise plan`: chains from files and of a model, its table, its JSON, its files, and what it
// says to wrong input.
#include <gmock/gmock.h>
#include <reprise/plan.h>

#include <nlohmann/json.hpp>

#include "tests/apps/program.h"
#include "tests/plan/chains.h"

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
  const Bytes plain = check(of, planners::keep_all(of)).peak;
  EXPECT_EQ(result.at("plain_peak_bytes"), plain.count);
  EXPECT_EQ(Chain::parse(result.at("chain").dump()), of);
  std::vector<std::int64_t> budgets;
  for (const json& row : result.at("plans")) budgets.push_back(row.at("budget_bytes"));
  const std::int64_t half = plain.count / 2;
  EXPECT_THAT(budgets, ElementsAre(plain.count, half, 120, plain.count, half, 120));
  const json& row = result.at("plans").at(1);
  EXPECT_EQ(row.at("planner"), "rotor");
  const Schedule schedule = planners::rotor(of, Bytes(half));
  const ScheduleCost cost = check(of, schedule);
  EXPECT_EQ(Schedule::parse(row.at("schedule").dump()), schedule);
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
                                  "chain needs at least 60 B"));
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
  const Schedule schedule = Schedule::read(schedule_file);
  EXPECT_LE(check(of, schedule).peak.count, check(of, planners::keep_all(of)).peak.count * 6 / 10);
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

TEST_F(Plan, RefusesWhatHasNoEffect) {
  expect_refusal_of("--layers 3", "--layers has no effect with CHAIN, which has its figures");
  expect_refusal_of("--threads 2", "--device and --threads have no effect with CHAIN");
  expect_refusal_of("--chain-out " + folder / "other",
                    "--chain-out is for a chain that is measured");
  expect_refusal_of("--picture " + folder / "plan.svg",
                    "--picture is of one schedule: give one --planner and one --budget");
}

TEST_F(Plan, RefusesFilesThatWouldReplaceEachOther) {
  const std::string one = folder / "one";
  expect_refusal_of("--budget 60% --picture " + one + " --schedule-out " + one,
                    "--schedule-out is '" + one + "', which --picture is already: give another");
  expect_refusal_of("--budget 60% --schedule-out " + folder.path().string() + "/./chain.json",
                    "which CHAIN is already");
  EXPECT_EQ(Chain::read(chain), plan::uniform_chain(8));
}

TEST_F(Plan, RefusesPlannersAndBudgetsThatAreNone) {
  expect_refusal_of("--planner rotors", "\"rotors\" is not a planner: choose one of keep_all");
  expect_refusal_of("--planner uniform:0", "\"uniform:0\" is not a planner");
  expect_refusal_of("--planner uniform:9",
                    "uniform: segments is 9, but must be between 1 and the number of stages, 8");
  expect_refusal_of("--budget much", "--budget is 'much': give a share of the plain peak");
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
