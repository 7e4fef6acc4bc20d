// Files take their place in one step or not at all, and damage to a sealed one is recognised.
#include <gmock/gmock.h>
#include <reprise/error.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <thread>

#include "apps/cli/io/atomic_file.h"
#include "tests/cli/file_size_limit.h"
#include "tests/cli/program.h"

namespace reprise::app {
namespace {

using testing::HasSubstr;

TEST(AtomicFile, TakesItsPlaceInOneStepOrNotAtAll) {
  const TemporaryFolder folder;
  write_file(folder / "f", "before");
  std::filesystem::create_symlink("f", folder / "link");
  std::filesystem::create_symlink("yet to come", folder / "dangling");
  {
    AtomicFile unfinished(folder / "link", "--option");
    unfinished.write("half");
    EXPECT_EQ(unfinished.written(), folder / (".partial." + std::to_string(getpid()) + ".f"));
  }
  EXPECT_EQ(contents(folder / "f"), "before");
  EXPECT_FALSE(is_begun(folder, "f"));
  for (const char* name : {"link", "dangling"}) {
    AtomicFile whole(folder / name, "--option");
    whole.write("after");
    whole.take_place();
    whole.write(", and more");
    EXPECT_TRUE(std::filesystem::is_symlink(folder / name));
    EXPECT_EQ(contents(folder / name), "after, and more");
  }
  EXPECT_EQ(contents(folder / "f"), "after, and more");
  EXPECT_EQ(contents(folder / "yet to come"), "after, and more");
}

// The link may be an attack, and a file of the name is what a killed run with the same id has left.
TEST(AtomicFile, WritesThroughNothingThatHasItsTemporaryName) {
  const TemporaryFolder folder;
  write_file(folder / "mine", "kept");
  std::filesystem::create_symlink("mine", folder / (".partial." + std::to_string(getpid()) + ".f"));
  AtomicFile file(folder / "f", "--option");
  file.write("result");
  file.take_place();
  EXPECT_FALSE(std::filesystem::is_symlink(folder / "f"));
  EXPECT_EQ(contents(folder / "f"), "result");
  EXPECT_EQ(contents(folder / "mine"), "kept");
}

TEST(AtomicFile, KeepsThePermissionsOfWhatItReplaces) {
  using std::filesystem::perms;
  const TemporaryFolder folder;
  const auto of = [](const std::filesystem::path& path) {
    return std::filesystem::status(path).permissions();
  };
  write_file(folder / "ordinary", "");
  AtomicFile fresh(folder / "fresh", "--option");
  fresh.take_place();
  EXPECT_EQ(of(folder / "fresh"), of(folder / "ordinary"));
  for (const perms before : {perms{0600}, perms{0664}, perms{0440}}) {
    write_file(folder / "f", "before");
    std::filesystem::permissions(folder / "f", before);
    AtomicFile file(folder / "f", "--option");
    EXPECT_EQ(of(file.written()) & ~(before | perms{0600}), perms::none);
    file.take_place();
    EXPECT_EQ(of(folder / "f"), before);
    std::filesystem::remove(folder / "f");
  }
}

TEST(AtomicFile, SaysWhereItCannotBeWritten) {
  const TemporaryFolder folder;
  EXPECT_EQ(refusal_of<Error>([&] { AtomicFile(folder / "none/f", "--option"); }),
            "cannot write " + folder / "none/f" +
                " (No such file or directory); choose another file with --option");
  EXPECT_THAT(refusal_of<Error>([&] { AtomicFile(folder / std::string(255, 'f'), "--option"); }),
              HasSubstr("File name too long"));
  std::filesystem::create_directory(folder / "d");
  EXPECT_THAT(refusal_of<Error>([&] { AtomicFile(folder / "d", "--option"); }),
              HasSubstr("Is a directory"));
  for (const char* open : {"/dev/stdout", "/dev/fd/1", "/proc/self/fd/2", "/dev/full"}) {
    EXPECT_EQ(AtomicFile(open, "--option").written(), open);
  }
  AtomicFile full("/dev/full", "--option");
  EXPECT_THAT(refusal_of<Error>([&] { full.write("text"); }),
              HasSubstr("cannot write to /dev/full: No space left on device"));
}

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

}  // namespace
}  // namespace reprise::app
