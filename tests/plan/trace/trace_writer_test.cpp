// What is written is read back as the same trace, and what could not be written is told.
#include "plan/trace/trace_writer.h"

#include <gmock/gmock.h>

#include <fstream>
#include <sstream>

#include "plan/trace/trace.h"
#include "tests/plan/trace/testing.h"

namespace reprise::plan {
namespace {

using testing::HasSubstr;

void write_step(TraceWriter& writer) {
  writer.constant(99, 1);
  writer.start();
  writer.constant(1, 40);
  const TraceWriter::Result results[] = {{.id = 2, .bytes = 8},
                                         {.id = 3, .bytes = 40, .view_of = 0}};
  const TraceWriter::Id one[] = {1}, two[] = {1, 2};
  writer.call("aten::mm", one, results, 1500);
  writer.call("aten::_assert_async", two, {}, 5);
  const std::size_t written[] = {1};
  writer.mutate("aten::add_.Tensor", two, written, 70);
  writer.copy(4, 2);
  writer.copy_from(3, 2);
  writer.release(4);
  writer.close();
}

std::string contents(const std::filesystem::path& file) {
  std::stringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

TEST(TraceWriter, WritesWhatIsReadBack) {
  const TemporaryFolder folder;
  for (const char* name : {"step.jsonl", "step.jsonl.gz"}) {
    TraceWriter writer(folder / name);
    write_step(writer);
    const Trace trace = read_trace(folder / name);
    EXPECT_EQ(trace.lines, 15);
    ASSERT_EQ(trace.operators.size(), 4U);
    EXPECT_EQ(trace.values.size(), 3U);
    EXPECT_EQ(trace.tensors.size(), 4U);
    EXPECT_TRUE(trace.tensors[2].is_view);
    EXPECT_EQ(trace.operators[3].nanoseconds, 70);
    EXPECT_THAT(trace.names, testing::ElementsAre("constant", "aten::mm", "aten::_assert_async",
                                                  "aten::add_.Tensor"));
  }
}

TEST(TraceWriter, CompressesByTheNameOfTheFile) {
  const TemporaryFolder folder;
  for (const char* name : {"step.jsonl", "step.jsonl.gz"}) {
    TraceWriter writer(folder / name);
    write_step(writer);
  }
  EXPECT_THAT(contents(folder / "step.jsonl"),
              testing::StartsWith("{\"INSTRUCTION\":\"CONSTANT\""));
  EXPECT_THAT(contents(folder / "step.jsonl.gz"), testing::StartsWith("\x1f\x8b"));
}

TEST(TraceWriter, ClosesByItself) {
  const TemporaryFolder folder;
  { TraceWriter(folder / "step").constant(1, 4); }
  EXPECT_EQ(read_trace(folder / "step").values[0].bytes, 4);
}

TEST(TraceWriter, WritesNamesThatJsonWouldEscapeSoThatTheyCanBeRead) {
  const TemporaryFolder folder;
  {
    TraceWriter writer(folder / "step");
    writer.call("a\"b\\c\nd", {}, {}, 1);
  }
  EXPECT_EQ(read_trace(folder / "step").names[0], "a_b_c_d");
}

TEST(TraceWriter, SaysWhyItCannotBegin) {
  const TemporaryFolder folder;
  EXPECT_THAT(refusal_of([&] { TraceWriter(folder / "none/step"); }),
              AllOf(HasSubstr("none/step: No such file or directory"), HasSubstr("a folder that")));
}

TEST(TraceWriter, SaysAtTheEndWhatCouldNotBeWritten) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "needs /dev/full";
  TraceWriter writer("/dev/full");
  for (int i = 0; i < 10'000; ++i) writer.release(1);
  try {
    writer.close();
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("/dev/full is not complete: No space left"),
                                    HasSubstr("more room")));
  }
}

}  // namespace
}  // namespace reprise::plan
