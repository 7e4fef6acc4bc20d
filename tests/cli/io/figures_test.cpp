// The forms of printed figures, tables and the live line.
#include <gmock/gmock.h>

#include "apps/cli/io/figures.h"
#include "apps/cli/io/progress.h"

namespace reprise::app {
namespace {

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
  TextTable table({"name", "ms"});
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
