// What the program says to wrong input: one line that names it and the remedy, on stderr, exit code
// 2; and its help, version and info.
#include <gmock/gmock.h>
#include <reprise/error.h>

#include <algorithm>
#include <new>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "apps/reprise/commands.h"
#include "tests/apps/program.h"

namespace reprise::app {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

void expect_refusal(const Arguments& arguments, const std::string& text) {
  const Finished result = run_here(arguments);
  const std::string all = testing::PrintToString(arguments);
  EXPECT_EQ(result.exit_code, 2) << all;
  EXPECT_EQ(result.out, "") << all;
  EXPECT_THAT(result.err, AllOf(StartsWith("reprise"), HasSubstr(text))) << all;
  EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
}

TEST(CommandLine, RefusesWordsItDoesNotKnow) {
  expect_refusal({}, "A subcommand is required (see `reprise --help`)");
  expect_refusal(words("fly"), "unknown command fly (see `reprise --help`)");
  expect_refusal(words("train --strat sqrt"), "unknown option --strat; did you mean --strategy?");
  expect_refusal(words("train --layrs 3"), "unknown option --layrs; did you mean --layers?");
  expect_refusal(words("compare --xyzzy"), "unknown option --xyzzy (see `reprise compare --help`)");
  expect_refusal(words("info extra"), "unknown argument extra");
}

TEST(CommandLine, RefusesValuesThatAreNotNumbers) {
  expect_refusal(words("train --layers many"), "--layers = many");
  expect_refusal(words("train --layers"), "--layers: 1 required N missing");
}

TEST(CommandLine, RefusesImpossibleSizes) {
  expect_refusal(words("train --heads 3"), "3 heads do not divide width 256");
  expect_refusal(words("train --layers 0"), "layers is 0; it must be at least 1");
  expect_refusal(words("train --seed -1"), "--seed -1: must be at least 0");
  expect_refusal(words("train --batch 0"), "--batch 0: must be at least 1");
  expect_refusal(words("train --steps 0"), "--steps 0: must be at least 1");
  expect_refusal(words("train --accumulate 0"), "--accumulate 0: must be at least 1");
  expect_refusal(words("train --warmup -1"), "--warmup -1: must be at least 0");
  expect_refusal(words("train --lr nan"), "--lr nan: must be at least 0");
  expect_refusal(words("train --clip -1"), "--clip -1: must be at least 0");
  expect_refusal(words("train --weight-decay -1"), "--weight-decay -1: must be at least 0");
  expect_refusal(words("train --threads -1"), "--threads -1: must be at least 0");
  expect_refusal(words("train --dropout 1"), "dropout is 1; it must be at least 0 and below 1");
  expect_refusal(words("compare --steps 0"), "--steps 0: must be at least 1");
}

TEST(CommandLine, RefusesUnknownChoicesAndListsTheKnown) {
  expect_refusal(words("train --model bert"), "unknown model 'bert'; choose one of gpt");
  expect_refusal(words("train --attention slow"),
                 "unknown attention 'slow'; choose one of fused, unfused");
  expect_refusal(words("train --dtype f8"), "unknown dtype 'f8'; choose one of f32, bf16");
  expect_refusal(words("train --device moon"), "unknown device 'moon'; choose auto or one of cpu");
  expect_refusal(words("train --device cuda:99"),
                 "device 'cuda:99' is not available here; choose auto");
  expect_refusal(words("train --strategy all"),
                 "choose one of none, every-block, segments:K, sqrt");
  expect_refusal(words("compare --strategies none,all"), "unknown strategy 'all'");
  expect_refusal(words("compare --strategies segments:9"),
                 "more segments than the model has layers (8)");
}

TEST(CommandLine, RefusesDataThatCannotBeTrainedOn) {
  const TemporaryFolder folder;
  expect_refusal({"train", "--data", folder / "none.txt"},
                 "no such file or folder: " + folder / "none.txt");
  expect_refusal({"train", "--data", REPRISE_CLI}, "is a binary file; give text files with --data");
  expect_refusal({"train", "--data", folder.path()}, "no text in " + folder.path().string());
  write_file(folder / "short.txt", std::string(1000, 'a'));
  expect_refusal(
      {"train", "--data", folder / "short.txt"},
      "context 128 is longer than the data: 900 bytes to train on and 100 to validate on, and "
      "both need at least 129; give more --data or a shorter --context");
}

TEST(CommandLine, RefusesPlacesItCannotWriteTo) {
  const TemporaryFolder folder;
  write_file(folder / "file", "x");
  expect_refusal(tiny_run("train", "--checkpoint-dir " + folder / "file/sub"),
                 "cannot write to folder " + folder / "file/sub");
  expect_refusal(tiny_run("train", "--metrics " + folder / "none/run.jsonl"),
                 "cannot write " + folder / "none/run.jsonl" + " (No such file or directory)");
  for (const char* option : {"--resume", "--checkpoint-every 5", "--stop-after 5"}) {
    expect_refusal(tiny_run("train", option), "needs a folder: add --checkpoint-dir DIR");
  }
}

TEST(CommandLine, TakesTheLastOfAnOptionGivenTwice) {
  expect_refusal(words("train --heads 8 --heads 3"), "3 heads do not divide width 256");
}

std::pair<int, std::string> report_of(const Chosen& chosen) {
  testing::internal::CaptureStderr();
  const int exit_code = run_and_report("reprise train", chosen);
  return {exit_code, testing::internal::GetCapturedStderr()};
}

TEST(CommandLine, ReportsAFailureInOneLineWithoutAStackTrace) {
  EXPECT_THAT(report_of([]() -> int { TORCH_CHECK(false, "sizes differ\nsecond line"); }),
              testing::Pair(1, "reprise train: sizes differ\n"));
  EXPECT_THAT(report_of([]() -> int { throw std::runtime_error("no more disk"); }),
              testing::Pair(1, "reprise train: no more disk\n"));
  EXPECT_THAT(report_of([]() -> int { throw UsageError("not so"); }),
              testing::Pair(2, "reprise train: not so\n"));
}

TEST(CommandLine, KnowsTheRemedyForALackOfMemory) {
  const char* remedy = "; try a smaller --batch, or --strategy sqrt\n";
  EXPECT_THAT(
      report_of([]() -> int { TORCH_CHECK(false, "can't allocate memory: 8 bytes"); }),
      testing::Pair(1, "reprise train: can't allocate memory: 8 bytes" + std::string(remedy)));
  EXPECT_THAT(report_of([]() -> int { throw std::bad_alloc(); }),
              testing::Pair(1, "reprise train: cannot allocate memory" + std::string(remedy)));
}

TEST(CommandLine, HelpsWithEveryCommand) {
  EXPECT_THAT(run_here({"--help"}).out,
              AllOf(HasSubstr("train"), HasSubstr("compare"), HasSubstr("info")));
  for (const char* command : {"train", "compare"}) {
    const Finished result = run_here({command, "--help"});
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_THAT(result.out,
                AllOf(HasSubstr("--layers N=8"), HasSubstr("from-input"), HasSubstr("--json")));
  }
  EXPECT_EQ(run_here({"info", "--help"}).exit_code, 0);
}

TEST(CommandLine, NamesItsVersions) {
  const Finished result = run_here({"--version"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, testing::MatchesRegex("reprise [0-9.]+ \\(LibTorch [0-9.]+\\)\n"));
}

TEST(Info, TellsWhatTheMachineOffers) {
  const auto info = nlohmann::json::parse(run_here({"info", "--json"}).out);
  EXPECT_TRUE(info.at("cpu_allocations_counted").get<bool>());
  EXPECT_EQ(info.at("devices").at(0), "cpu");
  EXPECT_EQ(info.at("generators").at(0), "cpu");
  EXPECT_GE(info.at("threads").get<int>(), 1);
  EXPECT_GT(info.at("memory_bytes").get<std::int64_t>(), 1 << 28);
  EXPECT_THAT(run_here({"info"}).out, AllOf(HasSubstr("LibTorch"), HasSubstr("yes, every tensor")));
}

TEST(Program, RunsAsAProcessToo) {
  EXPECT_EQ(Process({"--version"}).wait().exit_code, 0);
  const Finished result = Process({"train", "--heads", "3"}).wait();
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("3 heads do not divide width 256"));
}

}  // namespace
}  // namespace reprise::app
