// Byte budgets and traces of `reprise` on an accelerator.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <reprise/step_trace.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "apps/cli/commands/commands.h"
#include "tests/fake_device/tape_testing.h"

namespace reprise {
namespace {

using namespace testing_support;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

struct Result {
  int exit_code;
  std::string out, err;
};

Result run(const std::string& command, const std::string& more) {
  std::istringstream stream(command +
                            " --layers 3 --width 32 --heads 2 --context 16 --batch 8 "
                            "--attention unfused --device fake:0 --threads 1 " +
                            more);
  std::vector<std::string> words{std::istream_iterator<std::string>(stream), {}};
  words.insert(words.begin(), "reprise");
  // LibTorch's seed does not reach devices that a program brings.
  fake_generator(0).drawn = 0;
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const int exit_code = app::run_command_line(static_cast<int>(argv.size()), argv.data());
  std::fflush(stdout);
  return {exit_code, ::testing::internal::GetCapturedStdout(),
          ::testing::internal::GetCapturedStderr()};
}

class OnDevice : public OnFakeDevice {
 protected:
  OnDevice() {
    folder_ = (std::filesystem::temp_directory_path() / "reprise-test-XXXXXX").string();
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    std::ofstream(path("text.txt")) << std::string(20'000, 'a') << std::string(20'000, 'b');
  }
  ~OnDevice() override { std::filesystem::remove_all(folder_); }
  void TearDown() override {
    at::globalContext().setDeterministicAlgorithms(false, false);
    OnFakeDevice::TearDown();
  }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  Result train(const std::string& more) const {
    return run("train", "--data " + path("text.txt") + " --lr 1e-3 " + more);
  }
  json result_of(const std::string& more) const {
    const Result result = train("--json " + more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.exit_code == 0 ? json::parse(result.out) : json();
  }

 private:
  std::string folder_;
};

TEST_F(OnDevice, TrainKeepsItsBudgetWithThePlainRunsWeights) {
  const json plain = result_of("--dropout 0.1 --steps 4");
  const json under = result_of("--dropout 0.1 --steps 4 --budget 70%");
  EXPECT_EQ(under.at("weights_xxh3"), plain.at("weights_xxh3"));
  const json& budget = under.at("budget");
  EXPECT_GT(budget.at("per_step").at("dropped"), 0);
  EXPECT_GT(budget.at("per_step").at("replayed"), 0);
  EXPECT_GT(budget.at("per_step").at("replay_ms"), 0);
  EXPECT_GE(under.at("reserved_bytes"), under.at("budget").at("live_before_step_bytes"));
  EXPECT_THAT(train("--steps 2 --budget 70%").out,
              AllOf(HasSubstr("reserved by the device's allocator"), HasSubstr("held: a step")));
}

TEST_F(OnDevice, FromTheSecondStepOnThePeakIsWithinTheBudget) {
  const json under = result_of("--steps 4 --budget 70% --metrics " + path("m.jsonl"));
  std::ifstream metrics(path("m.jsonl"));
  std::int64_t step = 0;
  for (std::string line; std::getline(metrics, line);) {
    if (++step == 1) continue;
    EXPECT_LE(json::parse(line).at("peak_bytes"), under.at("budget").at("bytes"))
        << "step " << step;
  }
  EXPECT_EQ(step, 4);
}

TEST_F(OnDevice, VerifiedStepsAndTheLeastBudgetWork) {
  const json verified = result_of("--steps 4 --budget 70% --verify 2");
  EXPECT_EQ(verified.at("verification").at("gradients_equal"), true);
  const json least = result_of("--steps 3 --budget least");
  EXPECT_LT(least.at("budget").at("bytes"), verified.at("budget").at("bytes"));
}

TEST_F(OnDevice, ABudgetThatTheDeviceCannotHoldIsRefused) {
  FakeMemory::set_capacity(64 << 20);
  const Result result = train("--steps 1 --budget 100MB");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("--budget 100MB comes to 100.0 MB, and fake:0 has 67.1 MB "
                              "(67108864 bytes) for this process"),
                    HasSubstr("give at most that")));
  EXPECT_EQ(train("--steps 1 --budget 60MB").exit_code, 0);
}

TEST_F(OnDevice, ValuesAreParkedInTheHostsMemoryWhereThatIsAsked) {
  EXPECT_EQ(train("--steps 2 --budget 70% --park host").exit_code, 0);
  const Result result = train("--steps 2 --budget 70% --park tape");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("--park is 'tape': give host, disk=DIR"));
}

TEST_F(OnDevice, ATraceForChromeLiesOnTheDevicesClock) {
  ASSERT_EQ(train("--steps 4 --budget 70% --trace-out " + path("step.json")).exit_code, 0);
  std::ifstream file(path("step.json"));
  const json trace = json::parse(file);
  double end = 0, work = 0, step = 0;
  std::int64_t operators = 0, replays = 0, drops = 0;
  for (const json& event : trace.at("traceEvents")) {
    const std::string kind = event.value("cat", "");
    if (kind == "step") step = event.at("dur");
    if (kind == "drop") ++drops;
    if (kind != "operator" && kind != "replay") continue;
    ++(kind == "operator" ? operators : replays);
    const double begin = event.at("ts"), seconds = event.at("dur");
    // Kernels of one stream run one after the other. Times are in microseconds.
    EXPECT_GE(begin, end - 1e-6);
    end = begin + seconds;
    work += seconds;
  }
  EXPECT_GT(operators, 100);
  EXPECT_GT(replays, 0);
  EXPECT_GT(drops, 0);
  EXPECT_GT(work, operators) << "most kernels take more than a microsecond";
  EXPECT_LE(work, step + 1e-3);
}

TEST_F(OnDevice, ATraceForSimulationsNeedsNoBudget) {
  ASSERT_EQ(train("--steps 2 --trace-out " + path("step.jsonl")).exit_code, 0);
  const StepTrace trace = StepTrace::read(path("step.jsonl"));
  EXPECT_GT(trace.base().count(), 100e-6);
  EXPECT_EQ(trace.simulate({.budget = trace.plain_peak()}).evictions, 0);
}

TEST_F(OnDevice, CompareAndFrontierMeasureBudgets) {
  // Rounds are compared, and no seed reaches the device's draws.
  const std::string data = "--json --dropout 0 --steps 2 --data " + path("text.txt");
  const Result compared = run("compare", data + " --strategies budget:70%,every-block");
  ASSERT_EQ(compared.exit_code, 0) << compared.err;
  EXPECT_THAT(compared.out, HasSubstr("budget:70%"));
  const Result frontier = run("frontier", data + " --budgets 80%");
  ASSERT_EQ(frontier.exit_code, 0) << frontier.err;
}

}  // namespace
}  // namespace reprise
