// What the fuzzer (scripts/fuzz) has found to take different ways through the readers of text: none
// of it may do more than be refused.
#include "tests/plan/hostile_text.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "plan/text_file.h"

namespace reprise::plan {
namespace {

TEST(HostileText, OfTheCorpusIsReadOrRefused) {
  const std::filesystem::path corpus =
      std::filesystem::path(REPRISE_SOURCE_DIR) / "tests/plan/corpus";
  int count = 0;
  for (const auto& file : std::filesystem::directory_iterator(corpus)) {
    SCOPED_TRACE(file.path().string());
    EXPECT_NO_THROW(read_hostile(read_text_file(file.path(), "the corpus")));
    ++count;
  }
  EXPECT_GT(count, 10);
}

}  // namespace
}  // namespace reprise::plan
