// The fuzzer (scripts/fuzz) has found texts that take different ways through the readers of text.
// The readers may refuse these texts, but do nothing worse.
#include "tests/plan/io/hostile_text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <vector>

#include "plan/io/text_file.h"

namespace reprise::plan {
namespace {

struct ArchivedFile {
  std::string name, text;
};

// The regular files of a ustar archive. Each file is a header of one block, then the text, which is
// padded to whole blocks.
std::vector<ArchivedFile> files_of(const std::string& archive) {
  constexpr std::size_t kBlock = 512, kSizeAt = 124, kSizeDigits = 11, kTypeAt = 156;
  std::vector<ArchivedFile> files;
  for (std::size_t at = 0; at + kBlock <= archive.size() && archive[at] != '\0';) {
    const char* header = archive.data() + at;
    std::size_t size = 0;
    std::from_chars(header + kSizeAt, header + kSizeAt + kSizeDigits, size, 8);
    at += kBlock;
    if (header[kTypeAt] == '0') files.push_back({header, archive.substr(at, size)});
    at += (size + kBlock - 1) / kBlock * kBlock;
  }
  return files;
}

TEST(HostileText, OfTheCorpusIsReadOrRefused) {
  const std::vector<ArchivedFile> corpus =
      files_of(read_text_file(REPRISE_SOURCE_DIR "/tests/plan/corpus.tar.gz", "the corpus"));
  ASSERT_GT(corpus.size(), 900u);
  const auto chain = std::ranges::find(corpus, "./chain_of_one", &ArchivedFile::name);
  ASSERT_NE(chain, corpus.end());
  EXPECT_EQ(Chain::parse(chain->text).stages.size(), 1u);
  for (const auto& [name, text] : corpus) {
    SCOPED_TRACE(name);
    EXPECT_NO_THROW(read_hostile(text));
  }
}

}  // namespace
}  // namespace reprise::plan
