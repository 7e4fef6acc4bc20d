// Chains as JSON, and what is refused.
#include "reprise/chain.h"

#include <gmock/gmock.h>
#include <rapidcheck.h>

#include <fstream>

#include "tests/plan/chain/chains.h"
#include "tests/plan/trace/testing.h"

namespace reprise::plan {
namespace {

using ::testing::HasSubstr;

constexpr const char* kTwoStages = R"({"format": "reprise chain", "version": 1,
 "stages": [
  {"name": "conv1", "forward_seconds": 1.5e-3, "backward_seconds": 3e-3,
   "output_bytes": 4096, "saved_bytes": 8192},
  {"forward_seconds": 1, "backward_seconds": 2, "output_bytes": 10, "saved_bytes": 10,
   "output_gradient_bytes": 0, "parameter_gradient_bytes": 7}
 ]})";

TEST(Chain, IsReadFromJsonWithDefaultsForWhatIsLeftOut) {
  const Chain chain = Chain::parse(kTwoStages);
  ASSERT_EQ(chain.stages.size(), 2);
  EXPECT_EQ(chain.input_gradient, Bytes(0));
  EXPECT_EQ(chain.stages[0].name, "conv1");
  EXPECT_EQ(chain.stages[0].forward.count(), 1.5e-3);
  EXPECT_EQ(chain.stages[0].output_gradient, Bytes(4096));
  EXPECT_EQ(chain.stages[1].name, "");
  EXPECT_EQ(chain.stages[1].output_gradient, Bytes(0));
  EXPECT_EQ(chain.stages[1].parameter_gradients, Bytes(7));
  EXPECT_EQ(chain.forward().count(), 1.0015);
  EXPECT_EQ(chain.backward().count(), 2.003);
}

TEST(Chain, ComesBackFromItsJsonAsItWas) {
  EXPECT_TRUE(rc::check([](std::uint64_t seed) {
    Chain chain = random_chain(seed, *rc::gen::inRange(1, 9), 1000);
    chain.stages[0].forward = seconds(*rc::gen::inRange(1, 1000) / 3e7);
    chain.stages[0].name = "a \"name\"\n\\";
    RC_ASSERT(Chain::parse(chain.json()) == chain);
  }));
}

TEST(Chain, IsReadFromAFileThatErrorsName) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder / "chain.json";
  std::ofstream(file) << kTwoStages;
  EXPECT_EQ(Chain::read(file), Chain::parse(kTwoStages));
  std::ofstream(file) << "{\n\"format\": 1}";
  EXPECT_EQ(refusal_of([&] { Chain::read(file); }), file.string() + ":2: format: must be a string");
  EXPECT_THAT(refusal_of([&] { Chain::read(folder / "none"); }),
              HasSubstr("cannot read the chain " + (folder / "none").string() + ": No such file"));
}

// The chain of two stages with `from` replaced.
std::string refusal(const std::string& from, const std::string& to) {
  std::string text = kTwoStages;
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  return refusal_of([&] { Chain::parse(text, "c.json"); });
}

TEST(Chain, ErrorsNameLineAndField) {
  EXPECT_EQ(
      refusal("8192}", "12}"),
      "c.json:4: stages[0].saved_bytes: is 12, less than output_bytes, 4096, which it includes; "
      "give more, or set saves_output to false");
  EXPECT_EQ(refusal("\"output_bytes\": 10", "\"output_bytes\": -1"),
            "c.json:5: stages[1].output_bytes: is -1; it must be between 0 and 4503599627370496");
  EXPECT_EQ(refusal("\"output_bytes\": 10", "\"output_bytes\": 1.5"),
            "c.json:5: stages[1].output_bytes: is 1.5; it must be a whole number below 2^63");
  EXPECT_EQ(refusal("\"output_bytes\": 10", "\"output_bytes\": 99999999999999999999"),
            "c.json:5: stages[1].output_bytes: is 1e+20; it must be a whole number below 2^63");
  EXPECT_EQ(refusal("\"output_bytes\": 10", "\"output_bytes\": \"10\""),
            "c.json:5: stages[1].output_bytes: must be a whole number");
  EXPECT_EQ(refusal("\"output_bytes\": 10, ", ""),
            "c.json:5: stages[1]: the field output_bytes is missing");
  EXPECT_EQ(
      refusal("\"forward_seconds\": 1,", "\"forward_seconds\": -1,"),
      "c.json:5: stages[1].forward_seconds: is -1.0; it must be between 0.0 and 1000000000.0");
  EXPECT_THAT(refusal("\"name\"", "\"nome\""),
              HasSubstr("c.json:3: stages[0].nome: no such field; choose from name, forward_s"));
  EXPECT_THAT(refusal("\"output_bytes\": 10", "\"output_bytes\": 4503599627370497"),
              HasSubstr("stages[1].output_bytes: is 4503599627370497; it must be between 0 and"));
  EXPECT_THAT(refusal("\"saved_bytes\": 10", "\"saved_bytes\": 4503599627370497"),
              HasSubstr("it must be between 0 and 4503599627370496"));
  EXPECT_EQ(refusal("\"output_bytes\": 10", "\"output_bytes\": 10, \"needs_input\": 1"),
            "c.json:5: stages[1].needs_input: must be true or false");
  EXPECT_EQ(refusal("\"saved_bytes\": 10", "\"saved_bytes\": 0, \"saves_output\": false"), "");
  EXPECT_EQ(refusal("\"version\": 1", "\"version\": 2"),
            "c.json:1: version: is 2; this reprise reads version 1");
  EXPECT_EQ(refusal("reprise chain", "chain"),
            "c.json:1: format: is \"chain\"; it must be \"reprise chain\"");
  EXPECT_THAT(refusal("\"version\": 1", "\"version\": 1, \"version\": 1"),
              HasSubstr("c.json:1: version is given twice"));
  EXPECT_THAT(refusal("3e-3", "3e-3e"), HasSubstr("c.json:3: syntax error"));
  EXPECT_THAT(refusal("]}", "]"), HasSubstr("c.json:7: syntax error"));
  EXPECT_EQ(refusal("3e-3", "1e999"), "c.json:3: number overflow parsing '1e999'");
  EXPECT_THAT(
      refusal("\"version\": 1", "\"version\": 1, \"input_gradient_bytes\": 9223372036854775807"),
      HasSubstr("c.json:1: input_gradient_bytes: is 9223372036854775807; it must be between"));
  EXPECT_THAT(refusal("3e-3", "2e9"), HasSubstr("is 2000000000.0; it must be between 0.0 and 1"));
}

TEST(Chain, TextThatIsNoChainIsRefused) {
  for (const std::string text : {"", "[]", "1", "null", "{}", "{\"stages\": []}", "\xff\xfe"}) {
    EXPECT_THAT(refusal_of([&] { Chain::parse(text, "c"); }), HasSubstr("c:1: ")) << text;
  }
  EXPECT_THAT(refusal_of([&] { Chain::parse(std::string(100000, '['), "c"); }),
              HasSubstr("nested deeper than 32 levels"));
  EXPECT_EQ(refusal_of([&] {
              Chain::parse(R"({"format": "reprise chain", "version": 1, "stages": []})", "c");
            }),
            "c:1: stages: a chain has at least one stage");
}

TEST(Chain, TextThatWouldFillTheMemoryIsRefused) {
  std::string fields = "{\"f0\": 0";
  for (int i = 1; i < 100; ++i) fields += ",\n\"f" + std::to_string(i) + "\": 0";
  EXPECT_EQ(refusal_of([&] { Chain::parse(fields + "}", "c"); }),
            "c:65: an object has more than 64 fields");
  std::string values = "[0";
  for (int i = 0; i < 1'000'000; ++i) values += ",0";
  EXPECT_EQ(refusal_of([&] { Chain::parse(values + "]", "c"); }),
            "c:1: more than 1000000 values in all");
  EXPECT_EQ(refusal_of([&] { Chain::parse(std::string((64 << 20) + 1, ' '), "c"); }),
            "c: 67108865 bytes of text; at most 67108864 are read");
}

TEST(Chain, CheckNamesTheStageAndTheBound) {
  const auto refusal_with = [](auto change) {
    Chain chain = uniform_chain(3);
    chain.stages[1].name = "mid";
    change(chain);
    return refusal_of([&] { chain.check(); });
  };
  EXPECT_EQ(refusal_with([](Chain&) {}), "");
  EXPECT_EQ(refusal_with([](Chain& chain) { chain.stages.clear(); }),
            "the chain has no stage; a chain has at least one");
  EXPECT_THAT(refusal_with([](Chain& chain) { chain.stages[1].forward = seconds(NAN); }),
              HasSubstr("stage 1 (\"mid\"): forward_seconds is nan"));
  EXPECT_THAT(refusal_with([](Chain& chain) { chain.stages[1].saved = Bytes(9); }),
              HasSubstr("stage 1 (\"mid\"): saved_bytes is 9, less than output_bytes, 10"));
  EXPECT_THAT(refusal_with([](Chain& chain) { chain.stages[2].output_gradient = Bytes(-4); }),
              HasSubstr("stage 2: output_gradient_bytes is -4"));
  EXPECT_THAT(refusal_with([](Chain& chain) { chain.input_gradient = Bytes(-4); }),
              HasSubstr("input_gradient_bytes is -4"));
  EXPECT_THAT(refusal_with([](Chain& chain) {
                for (ChainStage& stage : chain.stages) stage.saved = Bytes(std::int64_t{1} << 51);
              }),
              HasSubstr("stage 1 (\"mid\"): the bytes of the chain up to it are"));
  EXPECT_THAT(refusal_with([](Chain& chain) { chain.input_gradient = kUnlimited; }),
              HasSubstr("input_gradient_bytes is 9223372036854775807"));
  EXPECT_THAT(refusal_with([](Chain& chain) { chain.stages[2].layers = 0; }),
              HasSubstr("stage 2: layers is 0; it must be between 1 and 1e9"));
  EXPECT_THAT(refusal_with([](Chain& chain) { chain.stages[2].backward = seconds(2e9); }),
              HasSubstr("stage 2: backward_seconds is 2000000000.000000; it must be between"));
  EXPECT_THAT(refusal_with([](Chain& chain) {
                chain.stages[1].name = std::string(39, 'x') + "\u00e9\n" + std::string(99, 'y');
                chain.stages[1].saved = Bytes(-1);
              }),
              HasSubstr("stage 1 (\"" + std::string(39, 'x') + "...\"): "));
}

}  // namespace
}  // namespace reprise::plan
