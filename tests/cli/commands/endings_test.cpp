// How a run ends when something around it gives way: the disk under the metrics, the reader of its
// output, the terminal. What was computed is saved, and the exit code does not claim success.
#include <gmock/gmock.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string>
#include <thread>

#include "tests/cli/program.h"

namespace reprise::app {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Through a shell, for its redirections. stdout is lost or not asked for.
Finished run_in_shell(const std::string& command) {
  const TemporaryFolder folder;
  const int status = std::system(("(" + command + ") 2>" + folder / "err").c_str());
  return {WEXITSTATUS(status), "", contents(folder / "err")};
}

std::string line_of(const Arguments& arguments) {
  std::string line = REPRISE_CLI;
  for (const std::string& argument : arguments) line += " " + argument;
  return line;
}

TEST(Endings, FailingMetricsCostNoStep) {
  const TemporaryFolder folder;
  const std::string common = "--steps 2 --checkpoint-dir " + folder / "c";
  const Finished result = run_here(tiny_run("train", common + " --metrics /dev/full"));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("cannot write to /dev/full: No space left on device"),
                                HasSubstr("step 1 is saved to " + folder / "c/training.reprise"),
                                HasSubstr("another file with --metrics")));
  EXPECT_EQ(run_here(tiny_run("train", common + " --resume")).exit_code, 0);
  EXPECT_THAT(run_here(tiny_run("train", "--steps 2 --metrics /dev/full")).err,
              HasSubstr("nothing was saved, for there is no --checkpoint-dir"));
}

TEST(Endings, AFailedSaveTellsWhatIsLeft) {
  const TemporaryFolder folder;
  const std::string common = "--checkpoint-dir " + folder / "c ";
  ASSERT_EQ(run_here(tiny_run("train", common + "--steps 1")).exit_code, 0);
  std::filesystem::create_directory(folder / "c/training.reprise.partial");
  const Finished result = run_here(tiny_run("train", common + "--steps 2 --resume"));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("the previous checkpoint is intact"),
                                HasSubstr("free space or choose another --checkpoint-dir")));
}

TEST(Endings, ALostResultIsNoSuccess) {
  for (const std::string command : {" info --json", " --help", " --version"}) {
    for (const auto& [redirection, reason] : {std::pair(" >/dev/full", "No space left on device"),
                                              std::pair(" >&-", "Bad file descriptor")}) {
      const Finished result = run_in_shell(REPRISE_CLI + command + redirection);
      EXPECT_EQ(result.exit_code, 1) << command << redirection;
      EXPECT_THAT(result.err, HasSubstr(std::string("cannot write to standard output: ") + reason));
    }
  }
}

TEST(Endings, AClosedPipeEndsTheRunSavedAndWithAnError) {
  const TemporaryFolder folder;
  const std::string train =
      line_of(tiny_run("train", "--steps 1 --checkpoint-dir " + folder / "c"));
  const Finished result = run_in_shell("{ " + train + "; echo code $? >&2; } | true");
  EXPECT_THAT(result.err, AllOf(HasSubstr("Broken pipe"), HasSubstr("code 1")));
  EXPECT_TRUE(std::filesystem::exists(folder / "c/training.reprise"));
}

TEST(Endings, ErrorsThatCannotBeToldKeepTheirExitCode) {
  const TemporaryFolder folder;
  for (const char* redirection : {" 2>/dev/full", " 2>&-", " 0<&- 2>&-"}) {
    const std::string command = REPRISE_CLI + std::string(" train --layers 0") + redirection;
    EXPECT_EQ(run_in_shell(command).exit_code, 2) << redirection;
  }
}

// What a file of results held before the run stays, and nothing lies beside it.
TEST(Endings, ARunThatFailsDestroysNoResults) {
  const TemporaryFolder folder;
  const std::string line = "{\"step\":1}\n";
  for (const std::string trace : {"t.json", "t.jsonl.gz", "t.log"}) {
    for (const bool are_there : {false, true}) {
      if (are_there) {
        write_file(folder / trace, "earlier");
        write_file(folder / "m", line);
      }
      const Finished result =
          run_here(tiny_run("train",
                            "--context 64 --batch 8 --steps 2 --budget +50kB --trace-step 1 "
                            "--trace-out " +
                                folder / trace + " --metrics " + folder / "m"));
      EXPECT_EQ(result.exit_code, 4) << result.err;
      EXPECT_EQ(contents(folder / trace), are_there ? "earlier" : "");
      EXPECT_EQ(contents(folder / "m"), are_there ? line : "");
      const auto left = std::distance(std::filesystem::directory_iterator(folder.path()), {});
      EXPECT_EQ(left, are_there ? 2 : 0) << trace;
    }
    std::filesystem::remove(folder / trace);
    std::filesystem::remove(folder / "m");
  }
}

// The signal comes as soon as the program handles SIGTERM, the 15th bit. A shell's background ignores
// SIGINT.
TEST(Endings, ASignalBeforeThereIsAResultIsTold) {
  for (const char* command : {" train", " frontier"}) {
    const Finished result = run_in_shell(
        REPRISE_CLI + std::string(command) +
        " & while ! grep -q 'SigCgt:.*[4-7c-f]...$' /proc/$!/status; do :; done; kill $!; wait $!");
    EXPECT_EQ(result.exit_code, 143) << command;
    EXPECT_THAT(result.err, HasSubstr("interrupted before ")) << command;
  }
}

TEST(Endings, ASignalBeforeTheFirstStepIsTold) {
  const TemporaryFolder folder;
  write_file(folder / "m", "{\"step\":1}\n");
  // A plain step of a second or so, for the share, while the handler is there already.
  Process process(tiny_run("train", "--steps 5 --accumulate 1000 --budget 90% --metrics " +
                                        folder / "m" + " --checkpoint-dir " + folder / "c"));
  for (int i = 0; i < 3000 && !std::filesystem::exists(folder / "c"); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  process.send(SIGINT);
  const Finished result = process.wait();
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_EQ(result.err, "reprise train: interrupted before its first step\n");
  EXPECT_EQ(contents(folder / "m"), "{\"step\":1}\n");
}

// The signals that a process notes, of /proc's line; none once it has ended.
std::optional<std::uint64_t> noted_signals(const std::string& pid) {
  std::istringstream status(contents("/proc/" + pid + "/status"));
  std::string line;
  while (std::getline(status, line)) {
    if (line.starts_with("State:\tZ") || line.starts_with("State:\tX")) break;
    if (line.starts_with("SigCgt:")) return std::stoull(line.substr(7), nullptr, 16);
  }
  return std::nullopt;
}

// Between its result and its end. Where the process was too fast to be watched, another is.
bool is_seen_to_end_unprepared() {
  std::FILE* const process = popen("echo $$; exec " REPRISE_CLI " --version", "r");
  char pid[64] = "", result[256] = "";
  if (process == nullptr || std::fgets(pid, sizeof pid, process) == nullptr ||
      std::fgets(result, sizeof result, process) == nullptr) {
    ADD_FAILURE() << "no result";
    return true;
  }
  constexpr std::uint64_t kHandled = 1U << (SIGINT - 1) | 1U << (SIGTERM - 1) | 1U << (SIGHUP - 1);
  const std::string number = std::to_string(std::stol(pid));
  bool is_seen = false;
  for (auto noted = noted_signals(number); noted && !is_seen; noted = noted_signals(number)) {
    is_seen = (*noted & kHandled) == 0;
  }
  EXPECT_EQ(pclose(process), 0);
  return is_seen;
}

// It would say that there was none.
TEST(Endings, ASignalAfterTheResultIsNotAnswered) {
  bool is_seen = false;
  for (int i = 0; i < 20 && !is_seen; ++i) is_seen = is_seen_to_end_unprepared();
  EXPECT_TRUE(is_seen);
}

// A step that takes about a second, and a signal in its middle.
Finished interrupt_long_step(int signal, const std::string& steps) {
  const TemporaryFolder folder;
  const std::string more = " --accumulate 1000 --metrics " + folder / "m";
  Process process(tiny_run("train", "--steps " + steps + more));
  for (int i = 0; i < 3000 && !is_begun(folder, "m"); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  process.send(signal);
  return process.wait();
}

TEST(Endings, ASignalDuringTheLastStepFindsTheRunComplete) {
  const Finished result = interrupt_long_step(SIGINT, "1");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("weights"));
}

TEST(Endings, AClosedTerminalIsATermination) {
  const Finished result = interrupt_long_step(SIGHUP, "1000");
  EXPECT_EQ(result.exit_code, 129);
  EXPECT_THAT(result.err, HasSubstr("interrupted after step 1"));
}

TEST(Endings, ASignalThatWasIgnoredAtTheStartStaysIgnored) {
  const auto before = std::signal(SIGINT, SIG_IGN);
  const Finished result = interrupt_long_step(SIGINT, "2");
  std::signal(SIGINT, before);
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

}  // namespace
}  // namespace reprise::app
