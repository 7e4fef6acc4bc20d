// `reprise train --budget`: every form of a budget, what it leaves as it is, what is told of it,
// and how it ends where a step cannot be run in it.
#include <gmock/gmock.h>
#include <reprise/error.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/cli/training/asked_budget.h"
#include "tests/cli/program.h"

namespace reprise::app {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

json json_of_deep_training(const std::string& more) {
  const Finished result = run_here(tiny_run("train", kDeep + ("--json " + more)));
  EXPECT_EQ(result.exit_code, 0) << more << result.err;
  return json::parse(result.out, nullptr, false);
}

// The options of both runs, and of the one under the budget alone.
struct Variant {
  const char* both = "";
  const char* under = "";
};

class Budget : public testing::TestWithParam<Variant> {};

TEST_P(Budget, LeavesTheTrainingAsItIs) {
  const std::string common = std::string("--steps 3 ") + GetParam().both;
  const json plain = json_of_deep_training(common);
  const json under = json_of_deep_training(common + " --budget 60% " + GetParam().under);
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
  const json tight = json_of_deep_training("--steps 2 --budget 50% --metrics " + folder / "m");
  const json& step = tight.at("budget").at("per_step");
  for (const char* key : {"dropped", "dropped_bytes", "replayed", "replay_ms"}) {
    EXPECT_GT(step.at(key), 0) << key;
  }
  EXPECT_GT(step.at("operators"), 100);
  std::istringstream lines(contents(folder / "m"));
  int count = 0;
  double dropped = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_GT(json::parse(line).at("dropped"), 0);
    EXPECT_GT(json::parse(line).at("replay_ms"), 0);
    dropped += json::parse(line).at("dropped").get<double>();
  }
  EXPECT_EQ(count, 2);
  EXPECT_DOUBLE_EQ(step.at("dropped").get<double>(), dropped / 2);
  const json wide = json_of_deep_training("--steps 2 --budget 1GB");
  EXPECT_EQ(wide.at("budget").at("per_step").at("dropped"), 0);
  EXPECT_EQ(wide.at("budget").at("bytes"), 1'000'000'000);
  EXPECT_FALSE(wide.at("budget").contains("plain_peak_bytes"));
}

TEST(TrainBudget, TheSharesWholeIsThePeakOfASteadyPlainStep) {
  const json plain = json_of_deep_training("--steps 3");
  const json under = json_of_deep_training("--steps 3 --budget 100%");
  EXPECT_NEAR(under.at("budget").at("plain_peak_bytes").get<double>(),
              plain.at("peak_bytes").get<double>(), 0.02 * plain.at("peak_bytes").get<double>());
}

// Where the optimizer's update, not the activations, decides the peak.
TEST(TrainBudget, TheSharesWholeHoldsTheOptimizersUpdate) {
  const std::string heavy = "--width 128 --layers 1 --context 8 --batch 1 --steps 3 ";
  const json plain = json_of_deep_training(heavy);
  const json under = json_of_deep_training(heavy + "--budget 100%");
  EXPECT_NEAR(under.at("budget").at("plain_peak_bytes").get<double>(),
              plain.at("peak_bytes").get<double>(), 0.02 * plain.at("peak_bytes").get<double>());
}

// compare's steps have gradients before them and no moments: activations get the same room.
TEST(TrainBudget, AShareIsTheSameForEveryCommand) {
  for (const std::string share : {"70%", "50%"}) {
    const json train = json_of_deep_training("--steps 2 --budget " + share).at("budget");
    const Finished run =
        run_here(tiny_run("compare", kDeep + ("--json --steps 1 --strategies budget:" + share)));
    ASSERT_EQ(run.exit_code, 0) << run.err;
    const json compare = json::parse(run.out);
    const json& row = compare.at("strategies").at(1);
    const auto bytes = [](const json& from, const char* key) { return from.at(key).get<double>(); };
    EXPECT_NEAR(bytes(row, "training_budget_bytes"), bytes(train, "bytes"), 5e3);
    EXPECT_NEAR(bytes(row, "budget_bytes") - bytes(compare, "live_before_step_bytes"),
                bytes(train, "bytes") - bytes(train, "live_before_step_bytes"), 5e3);
  }
}

TEST(TrainBudget, ParksInAStoreWhatIsDearToMakeAgain) {
  const TemporaryFolder folder;
  // Wide matrices, and nothing that becomes bits: what goes takes longer to compute than the store
  // is taken to need before it has shown what it needs.
  const std::string wide =
      "--width 512 --heads 8 --layers 1 --context 128 --batch 16 --dropout 0 --steps 2 ";
  const std::string park = "--budget 75% --park disk=" + folder.path().string();
  const json parked = json_of_deep_training(wide + park + " --metrics " + folder / "m");
  EXPECT_EQ(parked.at("weights_xxh3"), json_of_deep_training(wide).at("weights_xxh3"));
  const json& step = parked.at("budget").at("per_step");
  for (const char* key : {"parked", "parked_bytes", "transfer_ms"}) EXPECT_GT(step.at(key), 0);
  const std::vector<json> lines = lines_of(folder / "m");
  EXPECT_TRUE(std::ranges::any_of(lines, [](const json& line) {
    return line.value("parked_bytes", 0.0) > 0;
  })) << "each step chooses by what computing and transfers took so far";
  EXPECT_THAT(run_here(tiny_run("train", wide + park)).out, HasSubstr(", parks "));
  EXPECT_EQ(run_here(tiny_run("compare", wide +
                                             std::string("--steps 1 --strategies budget:75% "
                                                         "--park disk=") +
                                             folder.path().string()))
                .exit_code,
            0);
}

TEST(TrainBudget, TellsWhatIsPacked) {
  const TemporaryFolder folder;
  const json packed = json_of_deep_training("--steps 3 --budget 60% --metrics " + folder / "m");
  const json& step = packed.at("budget").at("per_step");
  for (const char* key : {"packed", "packed_bytes", "pack_ms"}) {
    EXPECT_GT(step.at(key), 0);
    EXPECT_GT(lines_of(folder / "m").back().at(key), 0);
  }
  EXPECT_THAT(run_here(tiny_run("train", kDeep + std::string("--steps 2 --budget 60%"))).out,
              HasSubstr(", packs "));
}

TEST(TrainBudget, RefusesStoresThatAreNone) {
  expect_training_refusal(
      "--budget 80% --park host",
      "--park is 'host': on the CPU that is memory that the budget counts, so that "
      "parking there would free nothing; give disk=DIR");
  expect_training_refusal("--budget 80% --park memory", "would free nothing");
  expect_training_refusal("--budget 80% --park disk=",
                          "--park is 'disk=': give disk=DIR, a folder");
  expect_training_refusal("--budget 80% --park tape", "--park is 'tape': give disk=DIR, a folder");
  expect_training_refusal("--budget 80% --park disk=/nowhere", "--park is 'disk=/nowhere': ");
  expect_training_refusal("--park disk=/tmp",
                          "--park has no effect without a budget: add --budget");
}

TEST(TrainBudget, BytesAboveAreAboveWeightsAndMoments) {
  const json under = json_of_deep_training("--steps 3 --budget +4MB");
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
                                HasSubstr("would have fitted, and this operator or later ones may"),
                                HasSubstr(" bytes) this allocation "),
                                HasSubstr("(`reprise frontier` with the same model finds the "
                                          "least that a step needs)"),
                                Not(HasSubstr("frame #"))));
  EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
}

TEST(TrainBudget, RefusesWhatIsNoBudget) {
  for (const std::string wrong :
       {"", "many", "0", "-1MB", "0%", "1001%", "nan%", "5 x", "50%%", "+", "+0", "8000000000GB"}) {
    const Finished result = run_here({"train", "--device", "cpu", "--budget", wrong});
    EXPECT_EQ(result.exit_code, 2) << wrong;
    EXPECT_THAT(result.err, HasSubstr("--budget is '" + wrong + "': give all bytes (400MB, 8GiB"));
  }
  expect_training_refusal("--budget 20kB", "--budget is '20kB', which is 20.0 KB, and ");
  expect_training_refusal("--budget 20kB", "are live before the step already");
  expect_training_refusal("--budget 1%", "live before the step already");
}

TEST(TrainBudget, RefusesOptionsThatWouldHaveNoEffect) {
  expect_training_refusal("--heuristic lru",
                          "--heuristic has no effect without a budget: add --budget");
  expect_training_refusal("--budget 80% --heuristic h_drt",
                          "--heuristic is 'h_drt': choose one of h_dtr");
  expect_training_refusal("--budget 80% --determinism none", "--determinism has no effect");
  expect_training_refusal("--budget 80% --reentrant", "--reentrant has no effect");
}

TEST(TrainBudget, GoesOnFromACheckpointUnderAnotherBudget) {
  const TemporaryFolder folder;
  const std::string common = "--steps 4 --checkpoint-dir " + folder / "c";
  json_of_deep_training(common + " --stop-after 2 --budget 70%");
  const json resumed = json_of_deep_training(common + " --resume --budget 50%");
  EXPECT_EQ(resumed.at("weights_xxh3"), json_of_deep_training("--steps 4").at("weights_xxh3"));
  EXPECT_LE(resumed.at("peak_bytes"), resumed.at("budget").at("bytes"));
}

TEST(TrainBudget, FindsTheLeastInWhichAStepRuns) {
  const json run = json_of_deep_training("--steps 3 --budget least");
  const json plain = json_of_deep_training("--steps 3");
  EXPECT_EQ(run.at("weights_xxh3"), plain.at("weights_xxh3"));
  const json& budget = run.at("budget");
  EXPECT_EQ(budget.at("asked"), "least");
  EXPECT_LE(run.at("peak_bytes"), budget.at("bytes"));
  EXPECT_LT(budget.at("bytes").get<double>(), 0.9 * plain.at("peak_bytes").get<double>());
  EXPECT_GT(budget.at("per_step").at("replayed"), 0);
}

TEST(AskedBudget, ComesToBytes) {
  const auto limit = [](const char* text) {
    return AskedBudget::parse("--budget", text).limit(Bytes(1000), Bytes(50'000)).count;
  };
  EXPECT_EQ(limit("80%"), 40'000);
  EXPECT_EQ(limit("12.5%"), 6'250);
  EXPECT_EQ(limit("0.8"), 40'000);
  EXPECT_EQ(limit("4kB"), 4'000);
  EXPECT_EQ(limit("1 KiB"), 1'024);
  EXPECT_EQ(limit("+4kB"), 5'000);
  EXPECT_THROW(limit("1kB"), UsageError);
  EXPECT_EQ(limit("least"), 50'000);
  EXPECT_THROW(AskedBudget::parse("--budget", "least").limit(Bytes(1000), Bytes(900)), UsageError);
  EXPECT_EQ(AskedBudget::parse_planned("--budget", "0.5").of_peak(Bytes(50'000)), Bytes(25'000));
  for (const char* text : {"+4kB", "least"}) {
    EXPECT_THROW(AskedBudget::parse_planned("--budget", text), UsageError) << text;
  }
}

}  // namespace
}  // namespace reprise::app
