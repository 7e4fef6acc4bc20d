// Files of results: they take their place in one step, and come into nobody's way before.
#include <gmock/gmock.h>
#include <reprise/error.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "apps/cli/io/new_file.h"
#include "tests/cli/program.h"

namespace reprise::app {
namespace {

using testing::HasSubstr;

TEST(NewFile, TakesItsPlaceInOneStepOrNotAtAll) {
  const TemporaryFolder folder;
  write_file(folder / "f", "before");
  std::filesystem::create_symlink("f", folder / "link");
  std::filesystem::create_symlink("yet to come", folder / "dangling");
  {
    NewFile unfinished(folder / "link", "--option");
    unfinished.write("half");
    EXPECT_EQ(unfinished.written(), place_beside(folder / "f"));
    EXPECT_EQ(unfinished.written(), folder / (".partial." + std::to_string(getpid()) + ".f"));
  }
  EXPECT_EQ(contents(folder / "f"), "before");
  EXPECT_FALSE(is_begun(folder, "f"));
  for (const char* name : {"link", "dangling"}) {
    NewFile whole(folder / name, "--option");
    whole.write("after");
    whole.take_place();
    whole.write(", and more");
    EXPECT_TRUE(std::filesystem::is_symlink(folder / name));
    EXPECT_EQ(contents(folder / name), "after, and more");
  }
  EXPECT_EQ(contents(folder / "f"), "after, and more");
  EXPECT_EQ(contents(folder / "yet to come"), "after, and more");
}

TEST(NewFile, IsBegunApartFromAllOthers) {
  const TemporaryFolder folder;
  write_file(folder / "mine", "kept");
  std::filesystem::create_symlink("mine", place_beside(folder / "f"));
  NewFile one(folder / "f", "--option"), other(folder / "f", "--option");
  for (NewFile* file : {&one, &other}) {
    file->write(file == &one ? "one" : "other");
    EXPECT_FALSE(std::filesystem::is_symlink(file->written()));
    EXPECT_TRUE(file->written().string().ends_with(".f"));
  }
  one.take_place();
  EXPECT_EQ(contents(folder / "f"), "one");
  other.take_place();
  one.write(" after");
  EXPECT_EQ(contents(folder / "f"), "other");
  EXPECT_EQ(contents(folder / "mine"), "kept");
}

TEST(NewFile, KeepsThePermissionsOfWhatItReplaces) {
  using std::filesystem::perms;
  const TemporaryFolder folder;
  const auto of = [](const std::filesystem::path& path) {
    return std::filesystem::status(path).permissions();
  };
  write_file(folder / "ordinary", "");
  NewFile fresh(folder / "fresh", "--option");
  fresh.take_place();
  EXPECT_EQ(of(folder / "fresh"), of(folder / "ordinary"));
  for (const perms before : {perms{0600}, perms{0664}, perms{0440}}) {
    write_file(folder / "f", "before");
    std::filesystem::permissions(folder / "f", before);
    NewFile file(folder / "f", "--option");
    EXPECT_EQ(of(file.written()) & ~(before | perms{0600}), perms::none);
    file.take_place();
    EXPECT_EQ(of(folder / "f"), before);
    std::filesystem::remove(folder / "f");
  }
}

TEST(NewFile, SaysWhereItCannotBeWritten) {
  const TemporaryFolder folder;
  EXPECT_EQ(refusal_of<Error>([&] { NewFile(folder / "none/f", "--option"); }),
            "cannot write " + folder / "none/f" +
                " (No such file or directory); choose another file with --option");
  const std::string longest = folder / std::string(255, 'f');
  write_file(longest, "before");
  EXPECT_EQ(refusal_of<Error>([&] { NewFile(longest, "--option"); }),
            "cannot write " + longest + " (" + place_beside(longest).string() +
                ": File name too long); choose another file with --option");
  std::filesystem::create_directory(folder / "d");
  EXPECT_THAT(refusal_of<Error>([&] { NewFile(folder / "d", "--option"); }),
              HasSubstr("Is a directory"));
  for (const char* open : {"/dev/stdout", "/dev/fd/1", "/proc/self/fd/2", "/dev/full"}) {
    EXPECT_EQ(NewFile(open, "--option").written(), open);
  }
  NewFile full("/dev/full", "--option");
  EXPECT_THAT(refusal_of<Error>([&] { full.write("text"); }),
              HasSubstr("cannot write to /dev/full: No space left on device"));
}

}  // namespace
}  // namespace reprise::app
