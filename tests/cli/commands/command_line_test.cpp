// The program answers wrong input with one line that names the input and the remedy, on stderr, and
// exit code 2. Its help, version and info are tested here too.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <reprise/error.h>

#include <algorithm>
#include <filesystem>
#include <new>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "apps/cli/commands/commands.h"
#include "tests/cli/program.h"

namespace reprise::app {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

TEST(CommandLine, RefusesWordsItDoesNotKnow) {
  expect_refusal({}, "A subcommand is required (see `reprise --help`)");
  expect_refusal(words("fly"), "unknown command fly (see `reprise --help`)");
  expect_refusal(words("train --strat sqrt"), "unknown option --strat; did you mean --strategy?");
  expect_refusal(words("train --layrs 3"), "unknown option --layrs; did you mean --layers?");
  expect_refusal(words("compare --xyzzy"), "unknown option --xyzzy (see `reprise compare --help`)");
  expect_refusal(words("info extra"), "unknown argument extra");
}

TEST(CommandLine, RefusesValuesThatAreNotNumbers) {
  for (const char* text : {"many", "", "5x", " 5", "0x10", "1e3", "+5", "99999999999999999999"}) {
    expect_refusal({"train", "--layers", text}, std::string("--layers is '") + text +
                                                    "': give a whole number between 1 and 65536");
  }
  expect_refusal({"train", "--layers="}, "--layers: 1 required N missing");
  for (const char* text : {"nan", "inf", "1e999", "0x1p-3", "0.1,", ""}) {
    expect_refusal({"train", "--lr", text},
                   std::string("--lr is '") + text + "': give a number between 1e-12 and 10");
  }
  expect_refusal(words("train --layers"), "--layers: 1 required N missing");
}

TEST(CommandLine, RefusesNumbersOutOfTheirBounds) {
  expect_refusal(words("train --heads 3"),
                 "--heads 3 does not divide --width 256: choose a --width");
  expect_refusal(words("train --layers 0"), "--layers is '0': give a whole number between 1 and");
  expect_refusal(words("train --layers 65537"), "--layers is '65537'");
  for (const char* option : {"width", "heads", "context", "batch", "accumulate"}) {
    for (const char* value : {"0", "1048577", "9223372036854775807"}) {
      expect_refusal(
          {"train", std::string("--") + option, value},
          fmt::format("--{} is '{}': give a whole number between 1 and 1048576", option, value));
    }
  }
  expect_refusal(words("train --seed -1"), "--seed is '-1': give a whole number between 0 and");
  expect_refusal(words("train --seed 9223372036854775808"), "--seed is '9223372036854775808'");
  expect_refusal(words("train --steps 0"), "--steps is '0'");
  expect_refusal(words("train --warmup 9223372036854775807"), "--warmup is '9223372036854775807'");
  expect_refusal(words("train --lr 0"), "--lr is '0': give a number between 1e-12 and 10");
  expect_refusal(words("train --lr 11"), "--lr is '11'");
  expect_refusal(words("train --clip -1"), "--clip is '-1': give a number between 0 and 1000000");
  expect_refusal(words("train --weight-decay 10.5"), "--weight-decay is '10.5'");
  expect_refusal(words("train --threads -1"), "--threads is '-1'");
  expect_refusal(words("train --threads 10000000"), "--threads is '10000000'");
  expect_refusal(words("train --dropout 1"), "--dropout is '1': give a number between 0 and 0.999");
  expect_refusal(words("compare --steps 0"), "--steps is '0'");
  for (const char* value : {"-1", "1000000000001", "often"}) {
    expect_refusal(
        {"train", "--verify", value},
        fmt::format("--verify is '{}': give a whole number between 0 and 1000000000000", value));
  }
  expect_refusal(words("compare --verify 1"), "unknown option --verify");
}

TEST(CommandLine, RefusesWhatTheMachineHasNoMemoryFor) {
  expect_refusal(words("train --device cpu --layers 65536 --width 1048576"),
                 "--layers 65536 of --width 1048576 with --context 128 make");
  expect_refusal(words("compare --device cpu --batch 1048576 --context 1048576"),
                 "choose a smaller --batch, --context or --width");
  expect_refusal(words("train --device cpu --attention unfused --context 1000000"),
                 "--batch 8 of --context 1000000 at --width 256 needs at least");
  // Little by itself, but every layer's activations at once.
  expect_refusal(words("train --device cpu --strategy sqrt --verify 10 --layers 65536 --width 8 "
                       "--heads 1 --batch 4096 --context 256"),
                 "--verify 10 runs steps of strategy none, which need at least");
}

TEST(CommandLine, RefusesOptionsThatWouldHaveNoEffect) {
  expect_refusal(words("train --reentrant"), "--reentrant has no effect with strategy none");
  expect_refusal(words("compare --reentrant --strategies none"), "--reentrant has no effect");
  expect_refusal(words("train --determinism values"),
                 "--determinism has no effect with strategy none, which recomputes nothing: leave "
                 "it out or choose a strategy such as sqrt");
  expect_refusal(words("compare --determinism none --strategies none"), "--determinism has no");
  expect_refusal(words("train --stop-after 101 --checkpoint-dir unused"),
                 "--stop-after 101 is beyond --steps 100");
  expect_refusal(words("train --json=5"),
                 "--json takes no value: write --json alone (see `reprise train --help`)");
}

TEST(CommandLine, RefusesEmptyPaths) {
  for (const char* option : {"--metrics", "--checkpoint-dir", "--data"}) {
    expect_refusal({"train", option, ""}, std::string(option) + " is empty: give a path");
    // CLI11 takes the next word for the value.
    expect_refusal({"train", std::string(option) + "=", "--json"},
                   std::string(option) + " is '--json', which looks like an option: give a path");
  }
  expect_refusal({"compare", "--strategies", ""}, "unknown strategy ''");
}

TEST(CommandLine, RefusesUnknownChoicesAndListsTheKnown) {
  expect_refusal(words("compare --model bert"), "--model is 'bert': give gpt");
  expect_refusal(words("train --model lstm"), "--model is 'lstm': choose one of gpt, bert, vit");
  expect_refusal(words("train --attention slow"),
                 "--attention is 'slow': choose one of fused, unfused");
  expect_refusal(words("train --determinism all"),
                 "--determinism is 'all': choose one of none, default, values");
  expect_refusal(words("train --dtype f8"), "--dtype is 'f8': choose one of f32, bf16");
  expect_refusal(words("train --device moon"), "--device is 'moon': give auto, cpu");
  for (const std::string name : {"cuda:99", "cpu:5"}) {
    expect_refusal({"train", "--device", name},
                   "--device " + name + " is not available here: give auto");
  }
  expect_refusal(words("train --strategy all"),
                 "choose one of none, every-block, segments:K, sqrt");
  expect_refusal(words("compare --strategies none,all"), "unknown strategy 'all'");
  expect_refusal(words("compare --strategies all"), "offload:host, budget:B");
  expect_refusal(words("compare --strategies budget"), "choose one of budget:B");
  expect_refusal(words("train --strategy budget:70%"),
                 "--strategy is 'budget:70%': give it as --budget 70%");
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
      "--context 128 is longer than the part of the data kept for validation, a tenth: 100 of 1000 "
      "bytes, where 129 are needed; give --data of at least 1290 bytes, or a shorter --context");
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
  expect_refusal(words("train --heads 8 --heads 3"), "--heads 3 does not divide");
  expect_refusal(words("train --layers 3 --layers abc"), "--layers is 'abc'");
  EXPECT_EQ(run_here(tiny_run("train", "--layers abc --layers 1 --steps 1")).exit_code, 0);
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
  const std::string remedy =
      "; choose a smaller --batch, --context or --width, or --strategy sqrt\n";
  EXPECT_THAT(report_of([]() -> int {
                TORCH_CHECK(false,
                            "can't allocate memory: you tried to allocate 8 bytes. Error code 12");
              }),
              testing::Pair(1, "reprise train: out of memory: tried to allocate 8 bytes" + remedy));
  EXPECT_THAT(report_of([]() -> int { throw std::bad_alloc(); }),
              testing::Pair(1, "reprise train: cannot allocate memory" + remedy));
}

TEST(CommandLine, EscapesWhatWouldBreakItsLine) {
  EXPECT_THAT(report_of([]() -> int { throw UsageError("no a\nb\x1b[2J"); }),
              testing::Pair(2, "reprise train: no a\\nb\\x1b[2J\n"));
  expect_refusal({"train", "--data", "a\nb"}, "no such file or folder: a\\nb;");
  expect_refusal({"train", "--bo\ngus"}, "unknown option --bo\\ngus");
}

TEST(CommandLine, TakesSeveralPathsAfterOneOptionOrEachAfterItsOwn) {
  const TemporaryFolder folder;
  write_file(folder / "a", std::string(2000, 'a'));
  write_file(folder / "b", std::string(2000, 'b'));
  const auto trained = [](const Arguments& more) {
    Arguments all =
        words("train --layers 1 --width 8 --heads 2 --context 8 --device cpu --steps 1");
    all.insert(all.end(), more.begin(), more.end());
    return run_here(all).out;
  };
  EXPECT_THAT(trained({"--data", folder / "a", folder / "b"}), HasSubstr("2 files of"));
  EXPECT_THAT(trained({"--data=" + folder / "a", "--data", folder / "b"}), HasSubstr("2 files of"));
}

TEST(CommandLine, HelpsWithEveryCommand) {
  EXPECT_THAT(run_here({"--help"}).out,
              AllOf(HasSubstr("train"), HasSubstr("compare"), HasSubstr("info")));
  for (const char* command : {"train", "compare"}) {
    const Finished result = run_here({command, "--help"});
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_THAT(result.out, AllOf(HasSubstr("--layers N=8"), HasSubstr("from-input"),
                                  HasSubstr("--json"), HasSubstr("--determinism KIND=default")));
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
  EXPECT_THAT(result.err, HasSubstr("--heads 3 does not divide --width 256"));
}

}  // namespace
}  // namespace reprise::app
