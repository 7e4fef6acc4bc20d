// `reprise train --budget`: every form of a budget, what it leaves as it is, what is told of it,
// and how it ends where a step cannot be run in it.
#include <gmock/gmock.h>
#include <reprise/error.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/reprise/asked_budget.h"
#include "tests/apps/program.h"

namespace reprise::app {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// Activations of some hundred kilobytes, far more than the weights.
constexpr const char* kDeep = "--layers 6 --context 64 --batch 8 --dropout 0.1 ";

json result_of(const std::string& more) {
  const Finished result = run_here(tiny_run("train", kDeep + ("--json " + more)));
  EXPECT_EQ(result.exit_code, 0) << more << result.err;
  return json::parse(result.out, nullptr, false);
}

void expect_refusal(const std::string& more, const std::string& text) {
  const Finished result = run_here(tiny_run("train", more));
  EXPECT_EQ(result.exit_code, 2) << more;
  EXPECT_EQ(result.out, "") << more;
  EXPECT_THAT(result.err, AllOf(testing::StartsWith("reprise train: "), HasSubstr(text))) << more;
  EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
}

// For both runs, and for the one under the budget alone.
struct Variant {
  const char* both = "";
  const char* under = "";
};

class Budget : public testing::TestWithParam<Variant> {};

TEST_P(Budget, LeavesTheTrainingAsItIs) {
  const std::string common = std::string("--steps 3 ") + GetParam().both;
  const json plain = result_of(common);
  const json under = result_of(common + " --budget 60% " + GetParam().under);
  EXPECT_EQ(under.at("weights_xxh3"), plain.at("weights_xxh3"));
  EXPECT_EQ(under.at("validation_loss"), plain.at("validation_loss"));
  EXPECT_FALSE(plain.contains("budget"));
  const json& budget = under.at("budget");
  EXPECT_LE(budget.at("peak_bytes"), budget.at("bytes"));
  EXPECT_EQ(budget.at("steps"), 3);
  EXPECT_EQ(budget.at("asked"), "60%");
  EXPECT_NEAR(budget.at("bytes").get<double>(), 0.6 * budget.at("plain_peak_bytes").get<double>(),
              1);
}

INSTANTIATE_TEST_SUITE_P(
    Train, Budget,
    testing::Values(Variant{}, Variant{"--accumulate 2"}, Variant{"--dtype bf16"},
                    Variant{"--attention unfused"}, Variant{"--strategy sqrt"},
                    Variant{"--strategy sqrt --reentrant"}, Variant{"--verify 2"},
                    Variant{"--strategy sqrt --determinism values"},
                    Variant{"", "--determinism values"}, Variant{"", "--heuristic lru"}));

TEST(TrainBudget, DropsAndReplaysOnlyUnderPressure) {
  const TemporaryFolder folder;
  const json tight = result_of("--steps 2 --budget 50% --metrics " + folder / "m");
  EXPECT_GT(tight.at("budget").at("dropped"), 0);
  EXPECT_GT(tight.at("budget").at("dropped_bytes"), 0);
  EXPECT_GT(tight.at("budget").at("replayed"), 0);
  EXPECT_GT(tight.at("budget").at("replay_seconds"), 0);
  EXPECT_GT(tight.at("budget").at("operators"), 100);
  std::istringstream lines(contents(folder / "m"));
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_GT(json::parse(line).at("dropped"), 0);
    EXPECT_GT(json::parse(line).at("replay_ms"), 0);
  }
  EXPECT_EQ(count, 2);
  const json wide = result_of("--steps 2 --budget 1GB");
  EXPECT_EQ(wide.at("budget").at("dropped"), 0);
  EXPECT_EQ(wide.at("budget").at("bytes"), 1'000'000'000);
  EXPECT_FALSE(wide.at("budget").contains("plain_peak_bytes"));
}

TEST(TrainBudget, TheSharesWholeIsThePeakOfASteadyPlainStep) {
  const json plain = result_of("--steps 3");
  const json under = result_of("--steps 3 --budget 100%");
  EXPECT_NEAR(under.at("budget").at("plain_peak_bytes").get<double>(),
              plain.at("peak_bytes").get<double>(), 0.02 * plain.at("peak_bytes").get<double>());
}

TEST(TrainBudget, BytesAboveAreAboveWeightsAndMoments) {
  const json under = result_of("--steps 3 --budget +4MB");
  const json& budget = under.at("budget");
  EXPECT_EQ(budget.at("bytes").get<std::int64_t>(),
            budget.at("live_before_step_bytes").get<std::int64_t>() + 4'000'000);
  EXPECT_LE(budget.at("peak_bytes"), budget.at("bytes"));
}

TEST(TrainBudget, IsToldInTheTables) {
  const Finished result =
      run_here(tiny_run("train", kDeep + std::string("--steps 2 --budget 50%")));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr(": 50% of the plain step's "), HasSubstr("heuristic h_up"),
                    HasSubstr(" held: a step drops "), HasSubstr("operators again in")));
}

TEST(TrainBudget, OneThatIsTooSmallEndsWithItsTextAndACodeOfItsOwn) {
  const Finished result =
      run_here(tiny_run("train", kDeep + std::string("--steps 2 --budget +100kB")));
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, AllOf(testing::StartsWith("reprise train: memory budget of "),
                                HasSubstr(" asks for "),
                                HasSubstr("this operator could have run; raise the budget"),
                                Not(HasSubstr("frame #"))));
  EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
}

TEST(TrainBudget, RefusesWhatIsNoBudget) {
  for (const std::string wrong :
       {"many", "0", "-1MB", "0%", "1001%", "nan%", "5 x", "50%%", "+", "+0", "8000000000GB"}) {
    const Finished result = run_here({"train", "--device", "cpu", "--budget=" + wrong});
    EXPECT_EQ(result.exit_code, 2) << wrong;
    EXPECT_THAT(result.err, HasSubstr("--budget is '" + wrong + "': give all bytes (400MB, 8GiB"));
  }
  expect_refusal("--budget 20kB", "--budget is '20kB', which is 20.0 KB, and ");
  expect_refusal("--budget 20kB", "are live before the step already");
  expect_refusal("--budget 1%", "live before the step already");
}

TEST(TrainBudget, RefusesOptionsThatWouldHaveNoEffect) {
  expect_refusal("--heuristic lru", "--heuristic has no effect without a budget: add --budget");
  expect_refusal("--budget 80% --heuristic h_drt", "--heuristic is 'h_drt': choose one of h_dtr");
  expect_refusal("--budget 80% --determinism none", "--determinism has no effect");
  expect_refusal("--budget 80% --reentrant", "--reentrant has no effect");
}

TEST(TrainBudget, GoesOnFromACheckpointUnderAnotherBudget) {
  const TemporaryFolder folder;
  const std::string common = "--steps 4 --checkpoint-dir " + folder / "c";
  result_of(common + " --stop-after 2 --budget 70%");
  const json resumed = result_of(common + " --resume --budget 50%");
  EXPECT_EQ(resumed.at("weights_xxh3"), result_of("--steps 4").at("weights_xxh3"));
  EXPECT_LE(resumed.at("peak_bytes"), resumed.at("budget").at("bytes"));
}

TEST(AskedBudget, ComesToBytes) {
  const auto limit = [](const char* text) {
    return AskedBudget::parse("--budget", text).limit(Bytes(1000), Bytes(50'000)).count;
  };
  EXPECT_EQ(limit("80%"), 40'000);
  EXPECT_EQ(limit("12.5%"), 6'250);
  EXPECT_EQ(limit("4kB"), 4'000);
  EXPECT_EQ(limit("1 KiB"), 1'024);
  EXPECT_EQ(limit("+4kB"), 5'000);
  EXPECT_THROW(limit("1kB"), UsageError);
}

}  // namespace
}  // namespace reprise::app
