// Reading operator logs: every event, files of both kinds, and each way to be malformed with its
// line number and reason.
#include "plan/trace/trace.h"

#include <gmock/gmock.h>
#include <rapidcheck.h>

#include <fstream>

#include "plan/trace/trace_writer.h"
#include "tests/plan/trace/testing.h"

namespace reprise::plan {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* kConstant = R"({"INSTRUCTION":"CONSTANT","NAME":"w"}
{"INSTRUCTION":"MEMORY","NAME":"w","MEMORY":"40"}
)";
constexpr const char* kCall =
    R"({"ARGS":["w"],"INSTRUCTION":"CALL","NAME":"mm","RESULT":["a","b"],"TIME":"1500"}
{"INSTRUCTION":"MEMORY","MEMORY":"8","NAME":"a"}
{"ALIAS":"-1","INSTRUCTION":"ALIAS","NAME":"a"}
{"INSTRUCTION":"MEMORY","MEMORY":"40","NAME":"b"}
{"ALIAS":"0","INSTRUCTION":"ALIAS","NAME":"b"}
)";

std::string text(std::initializer_list<std::string> parts) {
  std::string all;
  for (const std::string& part : parts) all += part;
  return all;
}

Trace parse(std::initializer_list<std::string> parts) { return parse_trace(text(parts), "log"); }

// The text without the place; the line is checked.
std::string refusal(std::initializer_list<std::string> parts, int line) {
  const std::string error = refusal_of([&] { parse(parts); });
  const std::string place = "log:" + std::to_string(line) + ": ";
  EXPECT_THAT(error, StartsWith(place));
  return error.substr(std::min(place.size(), error.size()));
}

std::vector<std::pair<Trace::Do, Trace::Index>> events(const Trace& trace) {
  std::vector<std::pair<Trace::Do, Trace::Index>> all;
  for (const Trace::Event& each : trace.events) all.emplace_back(each.what, each.subject);
  return all;
}

TEST(Trace, ReadsCallsWithTheirResultsAndViews) {
  const Trace trace = parse({kConstant, kCall});
  ASSERT_EQ(trace.operators.size(), 2U);
  EXPECT_TRUE(trace.operators[0].is_constant);
  EXPECT_EQ(trace.operators[1].nanoseconds, 1500);
  EXPECT_EQ(trace.operators[1].bytes, 8);
  EXPECT_EQ(trace.operators[1].arguments.size(), 1U);
  EXPECT_EQ(trace.operators[1].results.size(), 2U);
  EXPECT_EQ(trace.names[trace.operators[1].name], "mm");
  ASSERT_EQ(trace.values.size(), 2U);
  EXPECT_EQ(trace.values[0].bytes, 40);
  EXPECT_EQ(trace.values[1].bytes, 8);
  ASSERT_EQ(trace.tensors.size(), 3U);
  EXPECT_TRUE(trace.tensors[2].is_view);
  EXPECT_EQ(trace.tensors[2].value, 0U);
  EXPECT_EQ(trace.lines, 7);
  EXPECT_EQ(trace.nanoseconds(), 1500);
}

TEST(Trace, KeepsConstantsAtOnceAndWhatIsHeldAtTheEnd) {
  using enum Trace::Do;
  const Trace trace = parse({kConstant, kCall, R"({"INSTRUCTION":"RELEASE","NAME":"b"})"});
  EXPECT_THAT(events(trace), testing::ElementsAre(std::pair(kRun, 0), std::pair(kKeep, 0),
                                                  std::pair(kRun, 1), std::pair(kRelease, 2),
                                                  std::pair(kKeep, 0), std::pair(kKeep, 1)));
}

TEST(Trace, CopiesHoldTheSameTensor) {
  using enum Trace::Do;
  const Trace trace = parse({kConstant, R"({"INSTRUCTION":"COPY","DST":"v","SRC":"w"})", "\n",
                             R"({"INSTRUCTION":"RELEASE","NAME":"w"})"});
  EXPECT_THAT(events(trace), testing::ElementsAre(std::pair(kRun, 0), std::pair(kKeep, 0),
                                                  std::pair(kHold, 0), std::pair(kRelease, 0),
                                                  std::pair(kKeep, 0), std::pair(kKeep, 0)));
}

TEST(Trace, CopyFromLetsGoOfTheOldTensor) {
  using enum Trace::Do;
  const Trace trace =
      parse({kConstant, kCall, R"({"INSTRUCTION":"COPY_FROM","DST":"a","SRC":"w"})"});
  const auto all = events(trace);
  EXPECT_EQ(all[3], std::pair(kHold, Trace::Index{0}));
  EXPECT_EQ(all[4], std::pair(kRelease, Trace::Index{1}));
}

TEST(Trace, AWriteGivesTheNameANewValueOfTheSameSize) {
  const Trace trace =
      parse({kConstant, kCall,
             R"({"ARGS":["w","a"],"INSTRUCTION":"MUTATE","MUTATE":[1],"NAME":"add_","TIME":"70"})",
             "\n", R"({"INSTRUCTION":"COPY","DST":"c","SRC":"a"})"});
  ASSERT_EQ(trace.values.size(), 3U);
  EXPECT_EQ(trace.values[2].bytes, 8);
  EXPECT_EQ(trace.operators[2].nanoseconds, 70);
  using enum Trace::Do;
  const auto all = events(trace);
  EXPECT_EQ(all[3], std::pair(kRun, Trace::Index{2}));
  EXPECT_EQ(all[4], std::pair(kRelease, Trace::Index{1}));
  EXPECT_EQ(all[5], std::pair(kHold, Trace::Index{3}));
}

TEST(Trace, BeginsAtTheStart) {
  const Trace trace = parse({kConstant, R"({"INSTRUCTION":"ANNOTATE","ANNOTATION":"START"})", "\n",
                             kConstant, R"({"INSTRUCTION":"ANNOTATE","ANNOTATION":"BACKWARD"})"});
  EXPECT_EQ(trace.operators.size(), 1U);
}

TEST(Trace, PassesOverReleasesOfWhatItDoesNotKnow) {
  EXPECT_EQ(parse({R"({"INSTRUCTION":"RELEASE","NAME":"old"})", "\n", kConstant}).events.size(),
            3U);
}

TEST(Trace, ReadsNumbersSpacesEmptyLinesAndFieldsItDoesNotKnow) {
  const Trace trace =
      parse({"\r\n  {\"INSTRUCTION\" : \"CONSTANT\", \"NAME\":\"w\", \"shape\":[2, 4], "
             "\"grad\":true, \"none\":null, \"x\":-1.5e3, \"l\":[]}\r\n\n",
             R"({"INSTRUCTION":"MEMORY","NAME":"w","MEMORY":40})"});
  EXPECT_EQ(trace.values[0].bytes, 40);
}

TEST(Trace, ReadsFilesCompressedOrNot) {
  const TemporaryFolder folder;
  std::ofstream(folder / "plain") << kConstant << kCall;
  EXPECT_EQ(read_trace(folder / "plain").lines, 7);
  { TraceWriter(folder / "packed.gz").constant(1, 40); }
  EXPECT_EQ(read_trace(folder / "packed.gz").lines, 2);
}

TEST(Trace, SaysWhyAFileCannotBeRead) {
  const TemporaryFolder folder;
  EXPECT_THAT(refusal_of([&] { read_trace(folder / "none"); }),
              HasSubstr("none: No such file or directory"));
  EXPECT_THAT(refusal_of([&] { read_trace(folder / ""); }), HasSubstr("it is a folder"));
  EXPECT_THAT(refusal_of([] { read_trace("/dev/zero"); }), HasSubstr("or a device; give a file"));
  {
    TraceWriter writer(folder / "cut.gz");
    for (TraceWriter::Id i = 0; i < 1000; ++i) writer.release(i * i * 7919);
  }
  const auto size = std::filesystem::file_size(folder / "cut.gz");
  std::filesystem::copy(folder / "cut.gz", folder / "broken.gz");
  std::filesystem::resize_file(folder / "cut.gz", size / 2);
  EXPECT_THAT(refusal_of([&] { read_trace(folder / "cut.gz"); }), HasSubstr("ends early"));
  std::fstream broken(folder / "broken.gz", std::ios::in | std::ios::out | std::ios::binary);
  broken.seekp(static_cast<std::streamoff>(size / 2)).write("\xff\xff\xff\xff\xff\xff\xff\xff", 8);
  broken.close();
  EXPECT_THAT(refusal_of([&] { read_trace(folder / "broken.gz"); }), HasSubstr("damaged"));
}

TEST(Trace, RefusesLinesThatAreNoFlatObject) {
  EXPECT_EQ(refusal({kConstant, "mm w a\n"}, 3),
            "not a JSON object: expected '{' at column 1, found 'm'");
  EXPECT_EQ(refusal({R"({"INSTRUCTION":"RELEASE")"}, 1),
            "not a JSON object: expected '}' at column 25, found the line's end");
  EXPECT_THAT(refusal({R"({"INSTRUCTION":"RELEASE)"}, 1), HasSubstr("a string is not closed"));
  EXPECT_THAT(refusal({R"({"INSTRUCTION":{"a":1}})"}, 1), HasSubstr("at column 16"));
  EXPECT_THAT(refusal({R"({"INSTRUCTION" "RELEASE"})"}, 1), HasSubstr("expected ':'"));
  EXPECT_THAT(refusal({R"({"NAME":["a" "b"]})"}, 1), HasSubstr("expected ']'"));
  EXPECT_THAT(refusal({R"({"NAME":"a\"b"})"}, 1), HasSubstr("escapes"));
  EXPECT_THAT(refusal({R"({"NAME":"a"} {})"}, 1), HasSubstr("more on the line"));
}

TEST(Trace, RefusesEventsItDoesNotKnow) {
  EXPECT_THAT(refusal({"\n{\"INSTRUCTION\":\"FREE\",\"NAME\":\"w\"}"}, 2),
              AllOf(HasSubstr("\"FREE\" is not known"), HasSubstr("ANNOTATE, CONSTANT")));
  EXPECT_EQ(refusal({R"({"NAME":"w"})"}, 1), "the field INSTRUCTION is missing");
}

TEST(Trace, RefusesFieldsThatAreMissingOrOfAnotherKind) {
  EXPECT_EQ(refusal({R"({"INSTRUCTION":"CONSTANT"})"}, 1), "the field NAME is missing");
  EXPECT_EQ(refusal({R"({"INSTRUCTION":"CONSTANT","NAME":["w"]})"}, 1),
            "NAME must be one value, not a list");
  EXPECT_EQ(refusal({R"({"INSTRUCTION":"CALL","NAME":"f","ARGS":"w","RESULT":[],"TIME":1})"}, 1),
            "ARGS must be a list");
}

TEST(Trace, RefusesNumbersThatAreNone) {
  for (const char* wrong : {"\"1.5\"", "\"\"", "-1", "true", "\" 5\"", "99999999999999999999"}) {
    EXPECT_THAT(
        refusal({R"({"INSTRUCTION":"CALL","NAME":"f","ARGS":[],"RESULT":[],"TIME":)", wrong, "}"},
                1),
        AllOf(StartsWith("TIME is \""), HasSubstr("a whole number of at least 0")));
  }
}

TEST(Trace, RefusesSizesThatDoNotFollowTheirCall) {
  EXPECT_EQ(refusal({R"({"INSTRUCTION":"CONSTANT","NAME":"w"})", "\n",
                     R"({"INSTRUCTION":"RELEASE","NAME":"w"})"},
                    2),
            "expected the MEMORY of \"w\" here");
  EXPECT_EQ(refusal({R"({"INSTRUCTION":"CONSTANT","NAME":"w"})", "\n",
                     R"({"INSTRUCTION":"MEMORY","NAME":"v","MEMORY":"1"})"},
                    2),
            "expected the MEMORY of \"w\" here");
  const std::string call = kCall;
  const std::size_t second_line = call.find('\n') + 1;
  EXPECT_EQ(refusal({kConstant, call.substr(0, call.find('\n', second_line) + 1), kConstant}, 5),
            "expected the ALIAS of \"a\" here");
  EXPECT_THAT(refusal({kConstant, call.substr(0, second_line)}, 3),
              HasSubstr("the trace ends where the MEMORY of \"a\" should follow"));
  EXPECT_THAT(refusal({R"({"INSTRUCTION":"MEMORY","NAME":"w","MEMORY":"1"})"}, 1),
              HasSubstr("belongs after the CONSTANT or CALL"));
}

TEST(Trace, RefusesNamesThatAreUnknownTakenOrReleased) {
  EXPECT_EQ(refusal({R"({"INSTRUCTION":"COPY","DST":"v","SRC":"w"})"}, 1),
            "\"w\" was not made before this event");
  EXPECT_THAT(refusal({kConstant, kConstant}, 4), HasSubstr("\"w\" was made before"));
  EXPECT_EQ(refusal({kConstant, R"({"INSTRUCTION":"COPY","DST":"w","SRC":"w"})"}, 3),
            "\"w\" was made before: every tensor needs a new name");
  const std::string release = "{\"INSTRUCTION\":\"RELEASE\",\"NAME\":\"w\"}\n";
  EXPECT_EQ(refusal({kConstant, release, release}, 4), "\"w\" was released before this event");
  EXPECT_EQ(refusal({kConstant, release, R"({"INSTRUCTION":"COPY","DST":"v","SRC":"w"})"}, 4),
            "\"w\" was released before this event");
}

TEST(Trace, RefusesArgumentsThatTheOperatorDoesNotHave) {
  std::string call = kCall;
  call.replace(call.find("\"ALIAS\":\"0\""), 11, "\"ALIAS\":\"1\"");
  EXPECT_THAT(refusal({kConstant, call}, 7),
              HasSubstr("\"b\" is a view of argument 1, but \"mm\" has 1"));
  const auto mutate = [](const std::string& which) {
    return R"({"ARGS":["w","w"],"INSTRUCTION":"MUTATE","MUTATE":[)" + which +
           R"(],"NAME":"f","TIME":1})";
  };
  EXPECT_THAT(refusal({kConstant, mutate("2")}, 3),
              HasSubstr("writes to argument 2, but it has 2"));
  EXPECT_THAT(refusal({kConstant, mutate("0,1")}, 3), HasSubstr("written to twice"));
}

TEST(Trace, RefusesSumsThatOverflow) {
  const std::string huge = R"({"INSTRUCTION":"MEMORY","NAME":"w","MEMORY":"9000000000000000000"})";
  EXPECT_THAT(refusal({R"({"INSTRUCTION":"CONSTANT","NAME":"w"})", "\n", huge}, 2),
              HasSubstr("bytes of the trace add up to more than"));
  EXPECT_THAT(refusal({R"({"INSTRUCTION":"CALL","NAME":"f","ARGS":[],"RESULT":[],"TIME":9e9})"}, 1),
              HasSubstr("TIME is \"9e9\""));
  EXPECT_THAT(
      refusal(
          {R"({"INSTRUCTION":"CALL","NAME":"f","ARGS":[],"RESULT":[],"TIME":9000000000000000})"},
          1),
      HasSubstr("nanoseconds of the trace add up to more than"));
}

TEST(Trace, RefusesATraceWithoutOperators) {
  EXPECT_EQ(refusal({}, 0), "the trace has no operator");
  EXPECT_EQ(refusal({"\n\n"}, 2), "the trace has no operator");
}

TEST(Trace, NeverDoesMoreThanRefuseABrokenFile) {
  const std::string whole = text({kConstant, kCall});
  EXPECT_TRUE(rc::check([&] {
    std::string broken = whole;
    const int changes = *rc::gen::inRange(1, 4);
    for (int i = 0; i < changes; ++i) {
      const auto at = *rc::gen::inRange<std::size_t>(0, broken.size());
      if (*rc::gen::arbitrary<bool>()) {
        broken[at] = *rc::gen::arbitrary<char>();
      } else {
        broken.erase(at, *rc::gen::inRange<std::size_t>(1, 40));
      }
      if (broken.empty()) break;
    }
    const std::string error = refusal_of([&] { parse_trace(broken, "log"); });
    RC_ASSERT(error.empty() || error.starts_with("log:"));
  }));
}

}  // namespace
}  // namespace reprise::plan
