// `reprise compare --planners` and `--fill-budget`: predictions beside what is measured, batches
// that fill a budget, and what is refused.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/cli/program.h"

namespace reprise::app {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

json compared(const std::string& more) {
  const Finished run = run_here(tiny_run("compare", kDeep + ("--steps 1 --json " + more)));
  EXPECT_EQ(run.exit_code, 0) << run.err;
  return run.out.empty() ? json() : json::parse(run.out);
}

TEST(ComparePlanners, PredictsWhatIsThenMeasured) {
  const json result = compared("--planners keep_all,every_stage,sqrt,rotor --budget 100%,60%,1%");
  const json& rows = result.at("planners");
  ASSERT_EQ(rows.size(), 6u) << "rotor alone takes budgets";
  for (const json& row : rows) {
    if (!row.at("fits").get<bool>()) continue;
    const json& measured = row.at("measured");
    EXPECT_TRUE(measured.at("gradients_equal").get<bool>()) << row;
    const double peak = measured.at("activation_bytes");
    EXPECT_NEAR(row.at("predicted_peak_bytes").get<double>(), peak, 0.05 * peak) << row;
    EXPECT_GT(measured.at("ratio_to_none"), 0);
    EXPECT_GE(measured.at("highest_ratio"), measured.at("lowest_ratio"));
  }
  EXPECT_EQ(rows[0].at("predicted_ratio"), 1);
  EXPECT_FALSE(rows[1].contains("budget_bytes"));
  EXPECT_GT(rows[1].at("predicted_ratio"), 1.05);
  EXPECT_LT(rows[1].at("predicted_peak_bytes"), rows[0].at("predicted_peak_bytes"));
  EXPECT_EQ(rows[3].at("predicted_ratio"), 1) << "all fits";
  EXPECT_LE(rows[4].at("predicted_peak_bytes"), rows[4].at("budget_bytes"));
  EXPECT_FALSE(rows[5].at("fits").get<bool>());
  EXPECT_FALSE(rows[5].contains("measured"));
  EXPECT_THAT(rows[5].at("failure").get<std::string>(), HasSubstr("rotor"));
  // The step's own figures, on the same scale.
  const double plain = result.at("plain").at("activation_bytes");
  EXPECT_NEAR(result.at("plain_predicted_peak_bytes").get<double>(), plain, 0.05 * plain);
}

TEST(ComparePlanners, PredictsOfTheRecordedStep) {
  const json result = compared("--planners hindsight --budget 100%,70% --seconds 0.3");
  const json& rows = result.at("planners");
  ASSERT_EQ(rows.size(), 2u);
  for (const json& row : rows) {
    ASSERT_TRUE(row.at("fits").get<bool>()) << row;
    EXPECT_FALSE(row.contains("measured")) << "it cannot be run yet";
    EXPECT_LE(row.at("predicted_peak_bytes"), row.at("budget_bytes"));
  }
  EXPECT_GT(rows[1].at("predicted_ratio"), 1);
}

TEST(ComparePlanners, ShowsATableAndDrawsAPicture) {
  const TemporaryFolder folder;
  const Finished run = run_here(tiny_run(
      "compare",
      kDeep + ("--steps 1 --planners rotor,revolve --budget 70%,40% --svg " + folder / "p.svg")));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("plain step"), HasSubstr("predicted"), HasSubstr("revolve"),
                             HasSubstr("same gradients")));
  EXPECT_THAT(
      contents(folder / "p.svg"),
      AllOf(HasSubstr("<svg xmlns="), HasSubstr("rotor 70%, predicted"),
            HasSubstr("filled: measured, hollow: predicted"), HasSubstr("stroke-dasharray")));
}

TEST(ComparePlanners, SaysWhereNothingFits) {
  const Finished run =
      run_here(tiny_run("compare", kDeep + std::string("--steps 1 --planners rotor --budget 1kB")));
  EXPECT_EQ(run.exit_code, 4);
  EXPECT_THAT(run.err, HasSubstr("reprise compare: rotor 1kB: "));
}

TEST(ComparePlanners, RefusesWhatHasNoEffect) {
  const auto refused = [](const std::string& more, const std::string& text) {
    expect_refusal(tiny_run("compare", more), text);
  };
  refused("--planners rotor --strategies sqrt", "--strategies has no effect with --planners");
  refused("--planners rotor --fill-budget", "--fill-budget has no effect with --planners");
  refused("--planners rotor --reentrant", "--reentrant has no effect with --planners");
  refused("--planners best", "\"best\" is not a planner");
  refused("--planners rotor --budget +4MB", "--budget is '+4MB'");
  refused("--budget 50%", "--budget needs --planners or --fill-budget: add one of them");
  refused("--svg p.svg", "--svg needs --planners");
  refused("--seconds 3", "--seconds needs --planners");
  refused("--fill-budget", "--fill-budget needs one budget");
  refused("--fill-budget --budget 1GB,2GB", "--fill-budget needs one budget");
  refused("--fill-budget --budget many", "--budget is 'many'");
  refused("--fill-budget --budget 900000GB",
          "--budget 900000GB comes to 900.0 TB, and this machine");
  refused("--fill-budget --budget 1GB --strategies budget:80%",
          "with --fill-budget every strategy has the bytes of --budget");
}

TEST(FillBudget, FindsTheLargestBatchOfEveryStrategy) {
  const json result = compared("--fill-budget --budget +3MB --strategies every-block,sqrt");
  const json& rows = result.at("strategies");
  ASSERT_EQ(rows.size(), 3u);
  const double limit = result.at("budget_bytes");
  for (const json& row : rows) {
    EXPECT_TRUE(row.at("fits").get<bool>());
    EXPECT_LE(row.at("peak_bytes").get<double>(), limit) << row;
    // One more would not have fitted: a sequence takes as much as those before, on average.
    const double each = 3e6 / (row.at("batch").get<double>() + 1);
    EXPECT_GT(row.at("peak_bytes").get<double>(), limit - 1.2 * each) << row;
    EXPECT_GT(row.at("samples_per_second"), 0);
  }
  EXPECT_EQ(rows[0].at("ratio_to_first"), 1);
  EXPECT_GT(rows[1].at("batch"), rows[0].at("batch"));
}

TEST(FillBudget, ShowsATableAndSaysWhereNothingFits) {
  const Finished run = run_here(tiny_run(
      "compare", kDeep + std::string("--steps 1 --fill-budget --budget 120% --strategies sqrt")));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("samples/s"), HasSubstr("of the first"), HasSubstr("sqrt")));
  const Finished small =
      run_here(tiny_run("compare", kDeep + std::string("--steps 1 --fill-budget --budget +1kB")));
  EXPECT_EQ(small.exit_code, 4);
  EXPECT_THAT(small.err, HasSubstr("no step of one sequence fits in"));
}

}  // namespace
}  // namespace reprise::app
