// Steps as JSON documents: what they mean, that they come back as they were, what is refused.
#include "plan/trace/step_json.h"

#include <gmock/gmock.h>
#include <rapidcheck.h>
#include <reprise/planners.h>
#include <reprise/step_trace.h>

#include <fstream>

#include "plan/simulate/simulator.h"
#include "tests/plan/step/graphs.h"
#include "tests/plan/trace/testing.h"

namespace reprise::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Index = StepGraph::Index;

// w is a constant; a from w, v a view of a; b from v and a, released late; c from b is the result.
constexpr const char* kStep = R"({"format": "reprise step", "version": 1,
 "constants": [{"bytes": 40}],
 "operators": [
  {"name": "mm", "seconds": 1.5e-6, "inputs": [0], "outputs": [{"bytes": 10}]},
  {"seconds": 0, "inputs": [1], "outputs": [{"view_of": 1}]},
  {"seconds": 1e-6, "inputs": [2, 1], "outputs": [{"bytes": 20}]},
  {"seconds": 2e-6, "inputs": [3], "outputs": [{"bytes": 30}, {"bytes": 1}], "releases": [3]},
  {"seconds": 3e-9}],
 "results": [4]})";

TEST(StepJson, SaysWhatOperatorsReadAndMakeAndWhatStays) {
  const StepGraph graph(parse_step_json(kStep, "step"));
  ASSERT_EQ(graph.operators(), 5);
  EXPECT_EQ(graph.fixed_bytes(0), 40);
  EXPECT_EQ(graph.nanoseconds(0), 1500);
  EXPECT_EQ(graph.nanoseconds(4), 3);
  const auto reads = graph.reads(2);
  EXPECT_THAT(std::vector<Index>(reads.begin(), reads.end()), ElementsAre(1, 0));
  EXPECT_TRUE(graph.tensor(1).is_view);
  EXPECT_EQ(graph.storage(1).bytes, 20);
  EXPECT_EQ(graph.makes(3).size(), 2);
  EXPECT_THAT(graph.kept(), ElementsAre(3)) << "of tensors without the constant";
}

// What the program lets go of decides the plain step's peak.
TEST(StepJson, LetsGoWhereItSaysSoAndElseAfterTheLastRead) {
  EXPECT_EQ(StepTrace::parse(kStep).plain_peak(), Bytes(40 + 20 + 30 + 1));
  std::string later = kStep;
  later.replace(later.find(", \"releases\": [3]"), 17, "");
  later.replace(later.find("3e-9"), 4, "3e-9, \"outputs\": [{\"bytes\": 7}], \"releases\": [3]");
  EXPECT_EQ(StepTrace::parse(later).plain_peak(), Bytes(40 + 20 + 30 + 7))
      << "20 are there to the end, 1 that nobody reads is not";
}

std::vector<Index> sorted(std::vector<Index> items) {
  std::sort(items.begin(), items.end());
  return items;
}

bool are_alike(const Trace& one, const Trace& other) {
  const StepGraph a(one), b(other);
  if (a.operators() != b.operators() || sorted(a.kept()) != sorted(b.kept())) return false;
  if (a.tensors() != b.tensors() || a.fixed_bytes(0) != b.fixed_bytes(0)) return false;
  for (Index op = 0; op < a.operators(); ++op) {
    if (a.nanoseconds(op) != b.nanoseconds(op)) return false;
    if (!std::ranges::equal(a.reads(op), b.reads(op))) return false;
    if (!std::ranges::equal(a.makes(op), b.makes(op))) return false;
  }
  for (Index tensor = 0; tensor < a.tensors(); ++tensor) {
    if (a.tensor(tensor).storage != b.tensor(tensor).storage) return false;
    if (a.tensor(tensor).is_view != b.tensor(tensor).is_view) return false;
  }
  for (Index storage = 0; storage < a.storages(); ++storage) {
    if (a.storage(storage).bytes != b.storage(storage).bytes) return false;
  }
  return true;
}

TEST(StepJson, ComesBackAsItWas) {
  EXPECT_TRUE(rc::check([](std::uint64_t seed) {
    const Trace trace = random_trace(seed, *rc::gen::inRange(1, 40));
    const bool has_operator =
        std::ranges::any_of(trace.operators, [](const auto& each) { return !each.is_constant; });
    if (!has_operator) return;
    const std::string text = step_json(trace);
    const Trace again = parse_step_json(text, "step");
    RC_ASSERT(are_alike(trace, again));
    RC_ASSERT(step_json(again) == text);
  }));
}

TEST(StepJson, IsSimulatedAsTheLogIs) {
  const TemporaryFolder folder;
  EXPECT_TRUE(rc::check([&](std::uint64_t seed) {
    // Constants are at the beginning, and what is released is released for good.
    const int length = *rc::gen::inRange(3, 20);
    const Trace trace = random_training_trace(seed, length);
    std::ofstream(folder / "step.json") << step_json(trace);
    const StepTrace step = StepTrace::read(folder / "step.json");
    const Simulator simulator(trace);
    RC_ASSERT(simulator.need().plain_peak == step.plain_peak().count);
    RC_ASSERT(simulator.need().floor == step.floor().count);
    const StepTrace again = StepTrace::parse(step.json());
    const SimulateOptions half{.budget = Bytes(step.plain_peak().count * 2 / 3)};
    RC_ASSERT(again.simulate(half).recompute == step.simulate(half).recompute);
  }));
}

TEST(StepJson, IsPlanned) {
  const StepTrace step = StepTrace::parse(R"({"format": "reprise step", "version": 1, "operators": [
    {"seconds": 1e-6, "outputs": [{"bytes": 10}]},
    {"seconds": 1e-6, "inputs": [0], "outputs": [{"bytes": 30}]},
    {"seconds": 1e-6, "inputs": [1], "outputs": [{"bytes": 30}]},
    {"seconds": 2e-6, "inputs": [2, 0], "outputs": [{"bytes": 1}]}], "results": [3]})");
  const StepPlan plan =
      planners::hindsight(step, {.budget = Bytes(60), .time_limit = {}, .moves = 500, .seed = 0});
  ASSERT_TRUE(plan.fits);
  EXPECT_EQ(plan.runs, (std::vector<StepPlan::Run>{{0, 3}}));
  EXPECT_DOUBLE_EQ(plan.slowdown, 1.2);
}

std::string refusal(const std::string& from, const std::string& to) {
  std::string text = kStep;
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  return refusal_of([&] { parse_step_json(text, "s.json"); });
}

TEST(StepJson, ErrorsNameLineAndField) {
  EXPECT_EQ(refusal("[2, 1]", "[2, 3]"),
            "s.json:6: operators[2].inputs[1]: is 3; it must be between 0 and 2");
  EXPECT_EQ(refusal("\"view_of\": 1", "\"view_of\": 0"),
            "s.json:5: operators[1].outputs[0].view_of: is 0, which is none of the operator's "
            "inputs");
  EXPECT_EQ(refusal("\"view_of\": 1", "\"view_of\": 1, \"bytes\": 3"),
            "s.json:5: operators[1].outputs[0]: has both bytes and view_of; give one of them");
  EXPECT_EQ(refusal("{\"view_of\": 1}", "{}"),
            "s.json:5: operators[1].outputs[0]: the field bytes is missing");
  EXPECT_EQ(refusal("1.5e-6", "-1"),
            "s.json:4: operators[0].seconds: is -1.0; it must be between 0.0 and 4000000.0");
  EXPECT_EQ(refusal("\"seconds\": 3e-9", "\"name\": \"add\""),
            "s.json:8: operators[4]: the field seconds is missing");
  EXPECT_EQ(refusal("\"releases\": [3]", "\"releases\": [0]"),
            "s.json:7: operators[3].releases[0]: is 0, a constant, which stays; leave it out");
  EXPECT_EQ(refusal("\"results\": [4]", "\"results\": [4, 3]"),
            "s.json:9: results[1]: is 3, which operators[3] releases");
  EXPECT_EQ(refusal("\"results\": [4]", "\"results\": [4, 4]"),
            "s.json:9: results[1]: is 4, which is there before");
  EXPECT_EQ(refusal(" \"results\": [4]", " \"result\": [4]"),
            "s.json:9: result: no such field; choose from format, version, constants, operators, "
            "results");
  EXPECT_EQ(refusal("{\"bytes\": 40}", "{\"bytes\": 4503599627370497}"),
            "s.json:2: constants[0].bytes: is 4503599627370497; it must be between 0 and "
            "4503599627370496");
  EXPECT_THAT(refusal("\"version\": 1", "\"version\": 2"),
              HasSubstr("version: is 2; this reprise reads version 1"));
}

TEST(StepJson, RefusesStepsThatAreTooLargeToCount) {
  std::string text = R"({"format": "reprise step", "version": 1, "results": [], "operators": [)";
  for (int i = 0; i < 2; ++i) text += std::string(i ? "," : "") + "{\"seconds\": 4e6}";
  EXPECT_EQ(refusal_of([&] { parse_step_json(text + "]}", "s"); }),
            "s:1: operators[1]: nanoseconds of the trace add up to more than 4503599627370496");
  EXPECT_EQ(refusal_of([&] {
              parse_step_json(R"({"format": "reprise step", "version": 1, "operators": [],
                                  "results": []})",
                              "s");
            }),
            "s:1: operators: a step has at least one operator");
  std::string inputs = "0";
  for (int i = 0; i < 10'000; ++i) inputs += ",0";
  EXPECT_EQ(refusal("\"inputs\": [0]", "\"inputs\": [" + inputs + "]"),
            "s.json:4: operators[0].inputs: has 10001 tensors; an operator has at most 10000");
}

}  // namespace
}  // namespace reprise::plan
