// The pieces that the commands are made of: files that are whole, data, schedule, figures, the live
// line.
#include <gmock/gmock.h>
#include <reprise/error.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "apps/cli/io/figures.h"
#include "apps/cli/io/progress.h"
#include "apps/cli/io/sealed_file.h"
#include "apps/cli/training/batches.h"
#include "apps/cli/training/metrics.h"
#include "apps/cli/training/schedule.h"
#include "apps/cli/training/text_data.h"
#include "tests/cli/program.h"

namespace reprise::app {
namespace {

using testing::HasSubstr;

// A write beyond the limit fails, as on a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit = {bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_ = {};
  void (*handler_)(int);
};

TEST(SealedFile, GivesBackWhatWasWritten) {
  const TemporaryFolder folder;
  const std::string bytes("a\0b\n", 4);
  write_sealed(folder / "f", bytes);
  EXPECT_EQ(read_sealed(folder / "f"), bytes);
  write_sealed(folder / "f", "");
  EXPECT_EQ(read_sealed(folder / "f"), "");
  EXPECT_FALSE(std::filesystem::exists(folder / "f.partial"));
}

TEST(SealedFile, NoticesEveryFlippedBitAndEveryCut) {
  const TemporaryFolder folder;
  write_sealed(folder / "f", "contents");
  const std::string whole = contents(folder / "f");
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string flipped = whole;
    flipped[i] ^= 4;
    write_file(folder / "f", flipped);
    EXPECT_THAT(refusal_of<Error>([&] { read_sealed(folder / "f"); }), HasSubstr("damaged")) << i;
    write_file(folder / "f", whole.substr(0, i));
    EXPECT_THAT(refusal_of<Error>([&] { read_sealed(folder / "f"); }), HasSubstr("damaged")) << i;
  }
  write_file(folder / "f", whole + "x");
  EXPECT_THAT(refusal_of<Error>([&] { read_sealed(folder / "f"); }),
              HasSubstr("holds 9 bytes instead of 8"));
}

TEST(SealedFile, StaysAsItWasWhenWritingFails) {
  const TemporaryFolder folder;
  write_sealed(folder / "f", "before");
  std::filesystem::create_directory(folder / "f.partial");
  EXPECT_THAT(refusal_of<Error>([&] { write_sealed(folder / "f", "after"); }),
              HasSubstr("cannot open " + folder / "f.partial"));
  EXPECT_EQ(read_sealed(folder / "f"), "before");
}

TEST(SealedFile, LeavesNothingBesideItWhenTheDiskIsFull) {
  const TemporaryFolder folder;
  write_sealed(folder / "f", "before");
  {
    const FileSizeLimit limit(4096);
    EXPECT_THAT(refusal_of<Error>([&] { write_sealed(folder / "f", std::string(100000, 'a')); }),
                HasSubstr("cannot write " + folder / "f.partial"));
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "f.partial"));
  EXPECT_EQ(read_sealed(folder / "f"), "before");
}

TEST(SealedFile, LeavesNothingBesideItWhenItCannotBeReplaced) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "f");
  EXPECT_THAT(refusal_of<Error>([&] { write_sealed(folder / "f", "contents"); }),
              HasSubstr("cannot rename to " + folder / "f"));
  EXPECT_FALSE(std::filesystem::exists(folder / "f.partial"));
}

TEST(SealedFile, IsWholeAfterAKillInTheMiddleOfWriting) {
  const TemporaryFolder folder;
  const std::string file = folder / "f";
  write_sealed(file, std::string(1 << 22, 'a'));
  int cut_short = 0;
  for (int round = 0; round < 20; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      for (char c = 'a';; c = c == 'z' ? 'a' : static_cast<char>(c + 1)) {
        write_sealed(file, std::string(1 << 22, c));
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5 + 3 * round));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    cut_short += std::filesystem::exists(file + ".partial");
    const std::string found = read_sealed(file);
    ASSERT_EQ(found.size(), std::size_t{1} << 22);
    EXPECT_EQ(found, std::string(found.size(), found[0]));
  }
  EXPECT_GT(cut_short, 0) << "no kill fell into the writing";
}

TEST(TextData, TakesFoldersInOrderAndLeavesOutWhatIsNoText) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "sub/build");
  std::filesystem::create_directories(folder / ".hidden");
  write_file(folder / "b.txt", "second ");
  write_file(folder / "a.txt", "first ");
  write_file(folder / "sub/c.txt", "third!!");
  write_file(folder / "sub/build/d.txt", "generated");
  write_file(folder / ".hidden/e.txt", "hidden");
  write_file(folder / "IMAGE", std::string("P\0NG", 4));
  const TextData data = load_text({folder.path()});
  EXPECT_EQ(data.training + data.validation, "first second third!!");
  EXPECT_EQ(data.validation, "!!");
  EXPECT_EQ(data.files, 3u);
  EXPECT_NE(data.fingerprint, load_text({folder / "a.txt"}).fingerprint);
}

TEST(TextData, TakesProseAndSourceCodeFromFoldersButAnyTextThatIsNamed) {
  const TemporaryFolder folder;
  for (const char* name : {"LICENSE", "a.MD", "b.cpp"}) write_file(folder / name, "text");
  for (const char* name : {"m.jsonl", "n.log", "o.csv", "p.json", "q.partial"}) {
    write_file(folder / name, "measured");
  }
  const TextData found = load_text({folder.path()});
  EXPECT_EQ(found.training + found.validation, "texttexttext");
  const TextData named = load_text({folder / "o.csv"});
  EXPECT_EQ(named.training + named.validation, "measured");
}

TEST(TextData, TakesOfFilesWithoutAnExtensionProseAndScriptsButNoFixtures) {
  const TemporaryFolder folder;
  for (const char* name : {"Makefile", "README", "copyright"}) write_file(folder / name, "text ");
  write_file(folder / "fuzz", "#!/bin/sh");
  std::filesystem::create_directories(folder / "a.b");
  for (const char* name : {"chain_empty", "003618c1e9b37bde", "a.b/golden"}) {
    write_file(folder / name, R"({"format": "reprise chain"})");
  }
  const TextData data = load_text({folder.path()});
  EXPECT_EQ(data.training + data.validation, "text text text #!/bin/sh");
}

TEST(TextData, LeavesOutOfFoldersWhatTheRunWrites) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "saved/deep");
  write_file(folder / "a.txt", "kept");
  write_file(folder / "metrics.txt", "written");
  write_file(folder / "saved/deep/b.txt", "written");
  const auto text = [&](const std::vector<std::string>& paths, const std::string& saved) {
    const TextData data = load_text(paths, {folder / "./metrics.txt", saved, ""});
    return data.training + data.validation;
  };
  EXPECT_EQ(text({folder.path()}, folder / "saved/../saved"), "kept");
  EXPECT_EQ(text({folder / "metrics.txt"}, folder / "saved"), "written");
  // Where data and checkpoints share a folder, its text stays data.
  EXPECT_EQ(text({folder.path()}, folder.path()), "keptwritten");
}

TEST(MetricsFile, KeepsEarlierStepsAndNothingElse) {
  const TemporaryFolder folder;
  const std::string file = folder / "m";
  write_file(file, "{\"step\": 1}\n{\"step\": 2}\n{\"st");
  std::filesystem::create_symlink(file, folder / "link");
  MetricsFile(folder / "link", 2).write({{"step", 2}});
  EXPECT_EQ(contents(file), "{\"step\": 1}\n{\"step\":2}\n");
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_FALSE(is_begun(folder, "m"));
  MetricsFile(file, 1).write({{"step", 1}});
  EXPECT_EQ(contents(file), "{\"step\":1}\n");
}

TEST(MetricsFile, GrowsWithEveryLine) {
  const TemporaryFolder folder;
  MetricsFile metrics(folder / "m", 1);
  for (int step : {1, 2, 3}) {
    metrics.write({{"step", step}});
    EXPECT_EQ(std::ranges::count(contents(folder / "m"), '\n'), step);
  }
}

TEST(MetricsFile, ARunThatNeverBeginsLosesNothing) {
  const TemporaryFolder folder;
  const std::string lines = "{\"step\": 1}\n{\"step\": 2}\n";
  write_file(folder / "m", lines);
  for (const std::int64_t first_step : {1, 2}) {
    {
      const MetricsFile unused(folder / "m", first_step);
    }
    EXPECT_EQ(contents(folder / "m"), lines);
    EXPECT_FALSE(is_begun(folder, "m"));
  }
}

TEST(MetricsFile, RefusesAFileThatHoldsAnythingElse) {
  const TemporaryFolder folder;
  const std::string file = folder / "m";
  for (const std::string line :
       {"a text\n", "a text", "{\"loss\": 1}\n", "{\"step\": \"two\"}\n", "{\"a\": 1}", "{\n"}) {
    write_file(file, "{\"step\": 1}\n" + line);
    for (const std::int64_t first_step : {1, 2}) {
      EXPECT_THAT(refusal_of<Error>([&] { MetricsFile(file, first_step); }),
                  HasSubstr(file + " is no file of metrics, for line 2 is none"))
          << line;
    }
    EXPECT_EQ(contents(file), "{\"step\": 1}\n" + line);
  }
}

TEST(MetricsFile, LosesNoLineWhenTheDiskIsFull) {
  const TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 1000; ++i) lines += "{\"step\": 1}\n";
  write_file(folder / "m", lines);
  {
    const FileSizeLimit limit(4096);
    EXPECT_THAT(refusal_of<Error>([&] { MetricsFile(folder / "m", 2); }),
                HasSubstr("choose another file with --metrics"));
  }
  EXPECT_EQ(contents(folder / "m"), lines);
}

TEST(TextData, IsThisRepositoryIfNothingIsNamed) {
  const TextData data = load_text({});
  EXPECT_GT(data.files, 20u);
  EXPECT_THAT(data.training + data.validation,
              HasSubstr("Is this very sentence part of the data?"));
}

TEST(Batches, AreAFunctionOfSeedAndNumber) {
  EXPECT_EQ(random_starts(1, 7, 4, 1000, 16), random_starts(1, 7, 4, 1000, 16));
  EXPECT_NE(random_starts(1, 7, 4, 1000, 16), random_starts(1, 8, 4, 1000, 16));
  EXPECT_NE(random_starts(1, 7, 4, 1000, 16), random_starts(2, 7, 4, 1000, 16));
}

TEST(Batches, ReachEveryPlaceAndNoFurther) {
  std::set<std::size_t> seen;
  for (int i = 0; i < 200; ++i) {
    for (const std::size_t start : random_starts(3, i, 4, 20, 16)) seen.insert(start);
  }
  EXPECT_EQ(seen, (std::set<std::size_t>{0, 1, 2, 3}));
  EXPECT_EQ(even_starts(2, 20, 16), (std::vector<std::size_t>{0, 2}));
  EXPECT_EQ(even_starts(9, 20, 16), (std::vector<std::size_t>{0, 1, 2, 3}));
}

TEST(Batches, TargetsAreTheTokensThatFollow) {
  const Batch batch = cut("abcdef\xff", {0, 3}, 3, c10::kCPU);
  EXPECT_TRUE(torch::equal(batch.tokens, torch::tensor({{97, 98, 99}, {100, 101, 102}})));
  EXPECT_TRUE(torch::equal(batch.targets, torch::tensor({{98, 99, 100}, {101, 102, 255}})));
}

TEST(Schedule, RisesThenFallsToATenth) {
  const Schedule schedule{.peak = 1.0, .warmup = 4, .steps = 101};
  EXPECT_DOUBLE_EQ(schedule.learning_rate(0), 0.2);
  EXPECT_DOUBLE_EQ(schedule.learning_rate(3), 0.8);
  EXPECT_DOUBLE_EQ(schedule.learning_rate(4), 1.0);
  EXPECT_NEAR(schedule.learning_rate(52), 0.55, 1e-12);
  EXPECT_NEAR(schedule.learning_rate(100), 0.1, 1e-12);
  EXPECT_NEAR(schedule.learning_rate(500), 0.1, 1e-12);
  for (int step = 5; step <= 100; ++step) {
    EXPECT_LT(schedule.learning_rate(step), schedule.learning_rate(step - 1));
  }
  EXPECT_DOUBLE_EQ((Schedule{.peak = 1.0, .warmup = 0, .steps = 1}).learning_rate(0), 1.0);
}

TEST(Figures, AreShortAndRounded) {
  EXPECT_EQ(format_count(640), "640");
  EXPECT_EQ(format_count(12345), "12.3 k");
  EXPECT_EQ(format_count(6.42e6), "6.42 M");
  EXPECT_EQ(format_duration(0.84), "0.8 s");
  EXPECT_EQ(format_duration(59.4), "59 s");
  EXPECT_EQ(format_duration(192), "3 min 12 s");
  EXPECT_EQ(format_duration(7500), "2 h 05 min");
  EXPECT_EQ(format_milliseconds(1.237), "1.24");
  EXPECT_EQ(format_milliseconds(41.23), "41.2");
  EXPECT_EQ(format_milliseconds(412.3), "412");
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
}

TEST(Figures, TextIsMadeSafeToPrint) {
  EXPECT_EQ(escape("a\tb\n"), "a\\tb\\n");
  EXPECT_EQ(escape("caf\u00e9 \u2026"), "caf\u00e9 \u2026");
  EXPECT_EQ(escape("\x1b[2J\x7f"), "\\x1b[2J\\x7f");
  EXPECT_EQ(escape("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(escape("\xe2\x82"), "\\xe2\\x82");
}

TEST(Figures, TablesLineUp) {
  Table table({"name", "ms"});
  table.add({"x", "1.00×"});
  table.add({"longer", "12"});
  EXPECT_EQ(table.text(), "name        ms\nx        1.00×\nlonger      12\n");
}

TEST(Progress, LeavesOutWhatDoesNotFit) {
  const ProgressFigures figures{.step = 7,
                                .steps = 100,
                                .loss = 2.5,
                                .milliseconds_per_step = 41.2,
                                .tokens_per_second = 12345,
                                .peak = MB(20.4),
                                .seconds_left = 9.5};
  const auto parts = progress_parts(figures);
  EXPECT_EQ(
      fit_into(parts, 100),
      "step   7/100   loss 2.5000   9.5 s left   41.2 ms/step   12.3 k tokens/s   peak 20.4 MB");
  EXPECT_EQ(fit_into(parts, 40), "step   7/100   loss 2.5000   9.5 s left");
  EXPECT_EQ(fit_into(parts, 5), "");
}

}  // namespace
}  // namespace reprise::app
