// Markdown as GitHub reads it, and as people read it in an editor.
#include <gmock/gmock.h>
#include <reprise/report.h>

#include "tests/refusal.h"

namespace reprise {
namespace {

using testing::HasSubstr;

TEST(Markdown, PadsColumnsToTheirWidestCell) {
  const Table table{{"method", "ms"}, {}, {{"none", "41.2"}, {"pgac:cost", "9"}}};
  EXPECT_EQ(markdown(table),
            "| method    |   ms |\n"
            "| --------- | ---: |\n"
            "| none      | 41.2 |\n"
            "| pgac:cost |    9 |\n");
}

TEST(Markdown, AlignsAsItIsTold) {
  const Table table{
      {"a", "b"}, {Table::Align::kRight, Table::Align::kLeft}, {{"1", "one"}, {"22", "two"}}};
  EXPECT_EQ(markdown(table),
            "|   a | b   |\n"
            "| --: | --- |\n"
            "|   1 | one |\n"
            "|  22 | two |\n");
}

TEST(Markdown, CountsCharactersNotBytes) {
  const Table table{{"größe", "×"}, {}, {{"s̄", "1"}}};
  EXPECT_EQ(markdown(table),
            "| größe |   × |\n"
            "| ----- | --: |\n"
            "| s̄    |   1 |\n");
}

TEST(Markdown, KeepsWhatIsInACellInIt) {
  const Table table{{"a"}, {}, {{"x|y"}, {"two\nlines"}, {R"(x\|y)"}}};
  const std::string text = markdown(table);
  EXPECT_THAT(text, HasSubstr("| x\\|y "));
  EXPECT_THAT(text, HasSubstr("| two lines |"));
  // GitHub reads an escaped backslash and an escaped bar.
  EXPECT_THAT(text, HasSubstr(R"(| x\\\|y )"));
}

TEST(Markdown, WithoutRowsIsItsHeader) {
  EXPECT_EQ(markdown(Table{{"a"}, {}, {}}), "| a   |\n| --- |\n");
}

TEST(Markdown, RefusesCellsWithoutAColumn) {
  EXPECT_THAT(refusal_of([] { markdown(Table{}); }), HasSubstr("a table without columns"));
  EXPECT_THAT(refusal_of([] {
                markdown(Table{{"a", "b"}, {}, {{"1", "2"}, {"1"}}});
              }),
              HasSubstr("row 2 has 1 cell(s), and the table 2 column(s)"));
  EXPECT_THAT(refusal_of([] {
                markdown(Table{{"a", "b"}, {Table::Align::kLeft}, {}});
              }),
              HasSubstr("the alignment has 1 cell(s)"));
}

}  // namespace
}  // namespace reprise
