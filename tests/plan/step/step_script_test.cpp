// Plans as running steps follow them, and as files.
#include <gmock/gmock.h>
#include <reprise/budget.h>
#include <reprise/error.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "plan/step/hindsight.h"
#include "plan/step/step_record.h"
#include "plan/step/step_script.h"
#include "tape/learning.h"
#include "tests/plan/trace/testing.h"

namespace reprise::plan {
namespace {

using ::testing::HasSubstr;

// Calls that read some of what was made before; some of what they make is fixed later, or comes
// back without being made.
StepRecord random_record(std::uint64_t seed, int calls) {
  std::mt19937_64 random(seed);
  const auto up_to = [&](std::size_t n) { return static_cast<std::uint32_t>(random() % n); };
  StepRecord record;
  PrefixHash prefix;
  ValueNumber values = 3;  // roots
  for (int call = 0; call < calls; ++call) {
    for (std::uint32_t i = up_to(3); i > 0; --i) record.reads.push_back(up_to(values));
    for (std::uint32_t i = up_to(3); i > 0; --i) {
      StepRecord::Made made{.value = values++, .bytes = 1 + up_to(30)};
      if (up_to(6) == 0) made.return_nanoseconds = 1 + up_to(5);
      if (up_to(8) == 0) made.fixed_at = static_cast<std::uint32_t>(call) + 1 + up_to(4);
      record.makes.push_back(made);
    }
    prefix.add(random());
    record.calls.push_back({.prefix = prefix.value(),
                            .nanoseconds = 1 + up_to(40),
                            .beside = up_to(10),
                            .reads_end = static_cast<std::uint32_t>(record.reads.size()),
                            .makes_end = static_cast<std::uint32_t>(record.makes.size())});
  }
  for (const StepRecord::Made& made : record.makes) {
    if (up_to(10) == 0) record.kept.push_back(made.value);
  }
  return record;
}

struct Planned {
  RecordedGraph graph;
  Hindsight found;
  StepScript script;
};

Planned planned(const StepRecord& record, std::int64_t budget) {
  Planned plan{graph_of(record, budget), {}, {}};
  plan.found = plan_with_hindsight(plan.graph.graph, {.budget = budget, .moves = 200});
  if (plan.found.plan) plan.script = script_of(record, plan.graph, *plan.found.plan);
  return plan;
}

std::int64_t plain_peak(const StepRecord& record) {
  const RecordedGraph graph = graph_of(record, 1 << 20);
  return cost_of(graph.graph, GraphPlan(graph.graph)).peak;
}

class ScriptWalk {
 public:
  ScriptWalk(const StepRecord& record, const Planned& plan)
      : record_(record), script_(plan.script) {
    const RecordedGraph& graph = plan.graph;
    for (StepGraph::Index op = 0; op < graph.graph.operators(); ++op) {
      if (graph.is_own(op)) beside_.push_back(graph.graph.fixed_bytes(op));
    }
    for (std::size_t call = 0; call < record.calls.size(); ++call) {
      for (const StepRecord::Made& made : record.makes_of(call)) {
        if (made.is_fixed()) continue;
        makers_[made.value] = {call, made.bytes, made.return_nanoseconds >= 0};
        // There as well as beside.
        if (made.return_nanoseconds >= 0) beside_[call] -= made.bytes;
      }
    }
  }

  // Whether each read finds what it reads, and nothing comes back that was to go for good. The
  // most bytes of planned values that were there at once.
  std::int64_t run() {
    for (std::size_t call = 0; call < record_.calls.size(); ++call) {
      for (const StepScript::Action& action : script_.before(call)) act(action);
      read(call);
      for (const StepRecord::Made& made : record_.makes_of(call)) {
        if (!made.is_fixed()) there_.insert(made.value);
      }
      note_bytes(beside_[call]);
      for (const StepScript::Action& action : script_.after(call)) act(action);
    }
    return most_;
  }
  int made_again() const { return made_again_; }

 private:
  struct Maker {
    std::size_t call;
    std::int64_t bytes;
    bool comes_back;
  };

  void read(std::size_t call) {
    for (const ValueNumber value : record_.reads_of(call)) {
      if (makers_.count(value) != 0) {
        EXPECT_EQ(there_.count(value), 1U) << value << " is read by call " << call;
      }
    }
  }
  void act(const StepScript::Action& action) {
    ASSERT_EQ(makers_.count(action.value), 1U);
    if (action.what != StepScript::Do::kMake) {
      there_.erase(action.value);
      if (action.what == StepScript::Do::kForget) forgotten_.insert(action.value);
      return;
    }
    ++made_again_;
    EXPECT_EQ(forgotten_.count(action.value), 0U);
    const Maker& maker = makers_[action.value];
    if (!maker.comes_back) read(maker.call);
    there_.insert(action.value);
    note_bytes(0);
  }
  void note_bytes(std::int64_t beside) {
    std::int64_t bytes = beside;
    for (const ValueNumber value : there_) bytes += makers_[value].bytes;
    most_ = std::max(most_, bytes);
  }

  const StepRecord& record_;
  const StepScript& script_;
  std::vector<std::int64_t> beside_;  // of each call
  std::map<ValueNumber, Maker> makers_;
  std::set<ValueNumber> there_, forgotten_;
  std::int64_t most_ = 0;
  int made_again_ = 0;
};

TEST(StepScript, HasWhatEachCallReadsWithinThePlansPeak) {
  int plans = 0, made_again = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    const StepRecord record = random_record(seed, 30);
    for (const double share : {1.0, 0.8, 0.6}) {
      const auto budget =
          static_cast<std::int64_t>(share * static_cast<double>(plain_peak(record)));
      const Planned plan = planned(record, budget);
      if (!plan.found.plan) continue;
      ++plans;
      ScriptWalk walk(record, plan);
      EXPECT_LE(walk.run(), plan.found.cost.peak);
      EXPECT_LE(plan.found.cost.peak, budget);
      made_again += walk.made_again();
    }
  }
  EXPECT_GT(plans, 120);
  EXPECT_GT(made_again, 30);
}

TEST(StepScript, OfAStepThatFitsMakesNothingAgain) {
  const StepRecord record = random_record(1, 40);
  const Planned plan = planned(record, plain_peak(record));
  ASSERT_TRUE(plan.found.plan);
  for (const StepScript::Action& action : plan.script.actions) {
    EXPECT_NE(action.what, StepScript::Do::kMake);
    EXPECT_TRUE(plan.script.speaks_of(action.value));
  }
  EXPECT_FALSE(plan.script.speaks_of(0)) << "a root";
}

// What a plan makes again costs what that takes, and its slowdown is beside the first time.
TEST(StepRecord, APlanGoesByWhatAnotherRunTakes) {
  StepRecord record;
  record.makes = {{.value = 0, .bytes = 10}, {.value = 1, .bytes = 10}};
  record.calls = {{.prefix = 1, .nanoseconds = 5, .again_nanoseconds = 9, .makes_end = 1},
                  {.prefix = 2, .nanoseconds = 7, .makes_end = 2},
                  {.prefix = 3, .nanoseconds = 100, .beside = 10, .makes_end = 2},
                  {.prefix = 4, .nanoseconds = 1, .reads_end = 1, .makes_end = 2},
                  {.prefix = 5, .nanoseconds = 1, .reads_end = 2, .makes_end = 2}};
  record.reads = {0, 1};
  EXPECT_EQ(record.nanoseconds(), 114);
  const Planned plan = planned(record, 20);
  EXPECT_EQ(plan.graph.graph.nanoseconds(0), 9);
  EXPECT_EQ(plan.graph.graph.nanoseconds(1), 7);
  ASSERT_TRUE(plan.found.plan);
  // The first is the cheaper one only as long as it is not made again.
  EXPECT_EQ(plan.found.cost.recompute_nanoseconds, 7);
}

TEST(StepRecord, WhatIsFixedLaterTakesItsBytesFromThenOn) {
  StepRecord record;
  record.makes = {{.value = 0, .bytes = 10, .fixed_at = 2}};
  record.calls = {{.prefix = 1, .nanoseconds = 5, .beside = 1, .makes_end = 1},
                  {.prefix = 2, .nanoseconds = 5, .beside = 2, .makes_end = 1},
                  {.prefix = 3, .nanoseconds = 5, .beside = 13, .makes_end = 1}};
  record.beside_at_end = 11;
  const RecordedGraph graph = graph_of(record, 100);
  EXPECT_EQ(graph.graph.storages(), 0U);
  EXPECT_EQ(graph.graph.fixed_bytes(0), 11);
  EXPECT_EQ(graph.graph.fixed_bytes(1), 12);
  EXPECT_EQ(graph.graph.fixed_bytes(2), 13);
  EXPECT_EQ(graph.graph.fixed_bytes(3), 11);
  EXPECT_EQ(graph_of(record, 12).graph.fixed_bytes(2), 12) << "it has run in so much";
}

using Access = detail::LearnedPlanAccess;

LearnedPlan example() {
  const StepRecord record = random_record(3, 40);
  const Planned plan = planned(record, plain_peak(record) * 7 / 10);
  EXPECT_TRUE(plan.found.plan);
  return Access::plan_of({.limit = Bytes(12345),
                          .slowdown = 1.25,
                          .bound = 1.125,
                          .script = std::make_shared<StepScript>(plan.script)});
}

TEST(LearnedPlan, IsReadAsItWasWritten) {
  const LearnedPlan plan = example();
  const LearnedPlan back = LearnedPlan::parse(plan.json(), "plan.json");
  EXPECT_EQ(*Access::script_of(back), *Access::script_of(plan));
  EXPECT_EQ(back.step(), plan.step());
  EXPECT_EQ(back.operators(), 40);
  EXPECT_EQ(back.figures().limit, Bytes(12345));
  EXPECT_EQ(back.figures().slowdown, 1.25);
  EXPECT_EQ(back.figures().bound, 1.125);
}

TEST(LearnedPlan, ThatWasChangedIsRefused) {
  const std::string text = example().json();
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string other = text;
    const auto at = other.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    other.replace(at, from.size(), to);
    return refusal_of([&] { LearnedPlan::parse(other, "plan.json"); });
  };
  EXPECT_THAT(changed("drop ", "forget "), HasSubstr("the plan was changed; make it again"));
  EXPECT_THAT(changed("12345", "12346"), HasSubstr("checksum"));
  EXPECT_THAT(changed("\"step\":\"", "\"step\":\"z"), HasSubstr("16 hexadecimal digits"));
  EXPECT_THAT(changed("drop ", "dorp "), HasSubstr("choose from make, drop, forget"));
  EXPECT_THAT(changed("drop ", "drop x"), HasSubstr("such as \"drop 17\""));
  EXPECT_THAT(changed("\"bound\":1.125", "\"bound\":1.0625"), HasSubstr("checksum"));
  EXPECT_THAT(changed("\"slowdown\":1.25", "\"slowdown\":0.5"), HasSubstr("plan.json:1: slowdown"));
  EXPECT_THAT(changed("\"version\":1", "\"version\":2"), HasSubstr("version"));
}

TEST(LearnedPlan, FilesTakeTheirPlaceAsAWhole) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder / "plan.json";
  const LearnedPlan plan = example();
  plan.write(file);
  EXPECT_EQ(*Access::script_of(LearnedPlan::read(file)), *Access::script_of(plan));
  std::filesystem::remove(file);
  EXPECT_THAT(refusal_of([&] { LearnedPlan::read(file); }), HasSubstr("cannot read the plan"));
  EXPECT_THAT(refusal_of<Error>([&] { plan.write(file / "no" / "folder"); }),
              HasSubstr("cannot write the plan"));
}

}  // namespace
}  // namespace reprise::plan
