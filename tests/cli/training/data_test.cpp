// The data of a run, its learning rate, and its file of metrics.
#include <gmock/gmock.h>
#include <reprise/error.h>

#include <nlohmann/json.hpp>
#include <set>

#include "apps/cli/training/batches.h"
#include "apps/cli/training/learning_rate.h"
#include "apps/cli/training/metrics.h"
#include "apps/cli/training/text_data.h"
#include "tests/cli/file_size_limit.h"
#include "tests/cli/program.h"

namespace reprise::app {
namespace {

using testing::HasSubstr;

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

TEST(LearningRate, RisesThenFallsToATenth) {
  const LearningRate rate{.peak = 1.0, .warmup = 4, .steps = 101};
  EXPECT_DOUBLE_EQ(rate.at_step(0), 0.2);
  EXPECT_DOUBLE_EQ(rate.at_step(3), 0.8);
  EXPECT_DOUBLE_EQ(rate.at_step(4), 1.0);
  EXPECT_NEAR(rate.at_step(52), 0.55, 1e-12);
  EXPECT_NEAR(rate.at_step(100), 0.1, 1e-12);
  EXPECT_NEAR(rate.at_step(500), 0.1, 1e-12);
  for (int step = 5; step <= 100; ++step) {
    EXPECT_LT(rate.at_step(step), rate.at_step(step - 1));
  }
  EXPECT_DOUBLE_EQ((LearningRate{.peak = 1.0, .warmup = 0, .steps = 1}).at_step(0), 1.0);
}

}  // namespace
}  // namespace reprise::app
