// Paths that cannot be what the options ask for: devices, loops, places where one output would fall
// on another or on the data. All are refused before anything is written.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>

#include "tests/cli/program.h"

namespace reprise::app {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const std::string kSteps = "--steps 1 ";

TEST(Places, MetricsNeverFallOnTheDataOrTheCheckpoint) {
  const TemporaryFolder folder;
  const std::string text(2000, 'a'), data = folder / "mine.txt";
  write_file(data, text);
  fs::create_hard_link(data, folder / "hard");
  fs::create_symlink(data, folder / "link");
  for (const std::string name : {"mine.txt", "hard", "link", "./mine.txt"}) {
    expect_training_refusal(kSteps + "--data " + data + " --metrics " + folder / name,
                            "--metrics would write over");
  }
  // Inside a folder of data, only what is no file of metrics is in danger.
  expect_training_refusal(kSteps + "--data " + folder.path().string() + " --metrics " + data,
                          "no file of metrics");
  const std::string saved = " --checkpoint-dir " + folder / "new/c";
  for (const std::string name :
       {"new/c/training.reprise", "new/../new/c/training.reprise", "new/c"}) {
    expect_training_refusal(kSteps + "--metrics " + folder / name + saved,
                            "of --checkpoint-dir: choose another path");
  }
  EXPECT_FALSE(fs::exists(folder / "new"));
  EXPECT_EQ(contents(data), text);
}

TEST(Places, DataMustBeFilesOrFolders) {
  const TemporaryFolder folder;
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  fs::create_symlink("loop", folder / "loop");
  expect_training_refusal(kSteps + "--data " + folder / "pipe",
                          "pipe is not a regular file; give text files");
  expect_training_refusal(kSteps + "--data /dev/zero", "/dev/zero is not a regular file");
  expect_training_refusal(kSteps + "--data /proc/self/mem",
                          "cannot read /proc/self/mem: Input/output error");
  expect_training_refusal(kSteps + "--data " + folder / "loop",
                          "loop: Too many levels of symbolic links");
}

TEST(Places, LoopsInsideAFolderOfDataArePassedOver) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "d");
  fs::create_symlink("self", folder / "d/self");
  fs::create_directory_symlink(folder.path(), folder / "d/up");
  write_file(folder / "d/a.txt", std::string(2000, 'a'));
  const Finished result =
      run_here(tiny_run("train", kSteps + "--data " + folder.path().string() + " --json"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST(Places, ACheckpointMustBeAFileInAFolder) {
  const TemporaryFolder folder;
  fs::create_symlink("loop", folder / "loop");
  fs::create_directories(folder / "a/training.reprise");
  fs::create_directory(folder / "b");
  fs::create_symlink("training.reprise", folder / "b/training.reprise");
  const std::string option = "--checkpoint-dir ";
  expect_training_refusal(kSteps + option + folder / "loop", "Too many levels of symbolic links");
  expect_training_refusal(kSteps + option + folder / std::string(300, 'x'), "File name too long");
  for (const std::string more : {"", " --resume"}) {
    expect_training_refusal(kSteps + option + folder / "a" + more,
                            "a/training.reprise is not a regular file; remove");
    expect_training_refusal(kSteps + option + folder / "b" + more,
                            "b/training.reprise: Too many levels");
  }
}

}  // namespace
}  // namespace reprise::app
