// The rules of the simulator on programs whose figures can be worked out by hand, and on random
// ones against a plain twin.
#include "plan/simulate/simulator.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <string>

#include "tests/plan/simulate/heuristics.h"
#include "tests/plan/simulate/naive_simulation.h"
#include "tests/plan/trace/random_trace.h"
#include "tests/plan/trace/testing.h"

namespace reprise::plan {
namespace {

SimulationResult simulate(const Trace& trace, const char* heuristic, std::int64_t budget,
                          Search search = Search::kExact) {
  SimulationOptions options;
  options.budget = budget;
  options.search = search;
  options.slowdown_limit = 1e6;
  return Simulator(trace).run(*heuristic_named(heuristic), options);
}

TEST(Simulator, CountsTimeAndBytesOfAStepThatFits) {
  const Trace trace =
      Program().constant("w", 7).call("a", {"w"}, 10, 300).call("b", {"a"}, 20, 500).finish();
  const SimulationResult result = simulate(trace, "h_eq", 37);
  EXPECT_EQ(result.outcome, Outcome::kFits);
  EXPECT_EQ(result.base_nanoseconds, 800);
  EXPECT_EQ(result.recompute_nanoseconds, 0);
  EXPECT_EQ(result.slowdown(), 1);
  EXPECT_EQ(result.peak, 37);
  EXPECT_EQ(result.evictions, 0);
  EXPECT_EQ(result.events, static_cast<std::int64_t>(trace.events.size()));
}

TEST(Simulator, DropsAtOnceWhatTheProgramLetsGoOf) {
  const Trace trace = Program()
                          .constant("w")
                          .call("a", {"w"})
                          .call("b", {"a"})
                          .release({"a"})
                          .call("c", {"b"})
                          .finish();
  const SimulationResult result = simulate(trace, "h_eq", 30);
  EXPECT_EQ(result.outcome, Outcome::kFits);
  EXPECT_EQ(result.peak, 30);
  EXPECT_EQ(result.evictions, 0);
}

TEST(Simulator, KeepsConstantsThatWereReleased) {
  const Trace trace = Program().constant("w", 50).release({"w"}).call("a", {}).finish();
  EXPECT_EQ(simulate(trace, "h_eq", 1000).peak, 60);
  EXPECT_EQ(simulate(trace, "h_eq", 59).outcome, Outcome::kOutOfMemory);
}

// Two values, one dear and one cheap, of which one must go; both are read again.
Trace two_to_choose_from() {
  return Program()
      .call("dear", {}, 10, 5000)
      .call("cheap", {}, 10, 1000)
      .call("pause", {}, 0, 100'000)
      .call("large", {}, 10, 0)
      .release({"large"})
      .call("end", {"dear", "cheap"}, 0, 0)
      .release({"dear", "cheap"})
      .finish();
}

TEST(Simulator, DropsByTheHeuristicAndMakesAgainWhatIsRead) {
  const Trace trace = two_to_choose_from();
  const SimulationResult by_cost = simulate(trace, "h_local", 20);
  EXPECT_EQ(by_cost.recompute_nanoseconds, 1000);
  EXPECT_EQ(by_cost.evictions, 1);
  EXPECT_EQ(by_cost.recomputations, 1);
  EXPECT_EQ(by_cost.peak, 20);
  EXPECT_DOUBLE_EQ(by_cost.slowdown(), 107.0 / 106);
  EXPECT_EQ(simulate(trace, "lru", 20).recompute_nanoseconds, 5000);
}

TEST(Simulator, MakesAViewAgainByItsOwnOperator) {
  const Trace trace = Program()
                          .call("a", {}, 10, 1000)
                          .view("v", "a", 7)
                          .call("pause", {}, 0, 10)
                          .call("large", {}, 20, 1)
                          .release({"large"})
                          .call("end", {"v"}, 0, 100)
                          .release({"a", "v"})
                          .finish();
  EXPECT_EQ(simulate(trace, "h_eq", 25).recompute_nanoseconds, 1007);
}

TEST(Simulator, CountsResultsTwiceWhileTheirOperatorRunsAgain) {
  TraceBuilder builder;
  const TraceBuilder::Result both[] = {{.name = "large", .bytes = 30},
                                       {.name = "small", .bytes = 5}};
  builder.call("split", {}, both, 1000);
  const TraceBuilder::Result pause[] = {{.name = "pause"}},
                             more[] = {{.name = "more", .bytes = 20}};
  builder.call("wait", {}, pause, 10);
  builder.call("make", {}, more, 10);  // "large" goes: 30 + 5 + 20 > 50
  builder.release("more");
  const std::string_view arguments[] = {"large", "small"};
  const TraceBuilder::Result end[] = {{.name = "end"}};
  builder.call("end", arguments, end, 0);
  builder.release("large");
  builder.release("small");
  const Trace trace = std::move(builder).finish();
  const SimulationResult result = simulate(trace, "largest", 50);
  EXPECT_EQ(result.recompute_nanoseconds, 1000);
  EXPECT_EQ(result.peak, 40);  // 5 there, 35 made again
  EXPECT_EQ(simulate(trace, "largest", 39).outcome, Outcome::kOutOfMemory);
}

TEST(Simulator, RestoresAllThatIsHeldAtTheEnd) {
  const Trace trace = Program()
                          .call("a", {}, 10, 1000)
                          .call("pause", {}, 0, 10)
                          .call("large", {}, 20, 1)
                          .release({"large"})
                          .finish();
  EXPECT_EQ(simulate(trace, "h_eq", 20).recompute_nanoseconds, 1000);
}

TEST(Simulator, RunsOutOfMemoryBelowTheFloorAndOnlyThere) {
  const Trace trace = two_to_choose_from();
  EXPECT_EQ(Simulator(trace).need().plain_peak, 30);
  EXPECT_EQ(Simulator(trace).need().floor, 20);
  EXPECT_EQ(simulate(trace, "h_eq", 20).outcome, Outcome::kFits);
  EXPECT_EQ(simulate(trace, "h_eq", 19).outcome, Outcome::kOutOfMemory);
}

TEST(Simulator, GivesUpBeyondTheSlowdownLimit) {
  const Trace trace = two_to_choose_from();
  SimulationOptions options;
  options.budget = 20;
  options.slowdown_limit = 1.02;
  EXPECT_EQ(Simulator(trace).run(*heuristic_named("lru"), options).outcome, Outcome::kTooSlow);
  EXPECT_EQ(Simulator(trace).run(*heuristic_named("h_eq"), options).outcome, Outcome::kFits);
}

// Whatever is dropped is upstream of all that comes after it.
TEST(Simulator, EndsWhereItsOwnTimeIsOver) {
  constexpr int kLength = 20'000;
  Program program;
  program.constant("w").call("a0", {"w"});
  for (int i = 1; i < kLength; ++i) {
    program.call("a" + std::to_string(i), {"a" + std::to_string(i - 1)});
  }
  const Trace trace = std::move(program).finish();
  SimulationOptions options;
  options.budget = Simulator(trace).need().floor;
  options.slowdown_limit = 1e9;
  options.search = Search::kIndex;
  options.time_limit = std::chrono::milliseconds(20);
  const Stopwatch watch;
  EXPECT_EQ(Simulator(trace).run(*heuristic_named("h_up"), options).outcome, Outcome::kOutOfTime);
  EXPECT_LT(watch.elapsed(), Seconds(10));
  options.budget = Simulator(trace).need().plain_peak;
  options.time_limit = std::chrono::hours(1);
  EXPECT_EQ(Simulator(trace).run(*heuristic_named("h_up"), options).outcome, Outcome::kFits);
}

TEST(Simulator, MakesChainsOfAnyLengthAgain) {
  constexpr int kLength = 100'000;
  Program program;
  program.constant("w").call("a0", {"w"});
  for (int i = 1; i < kLength; ++i) {
    const std::string before = "a" + std::to_string(i - 1);
    program.call("a" + std::to_string(i), {before}).release({before});
  }
  const std::string last = "a" + std::to_string(kLength - 1);
  program.call("pause", {}, 0).call("large", {}, 20).release({"large"}).call("end", {last}, 0);
  program.release({last});
  const Trace trace = program.finish();
  const SimulationResult result = simulate(trace, "h_eq", 30);
  EXPECT_EQ(result.outcome, Outcome::kFits);
  EXPECT_EQ(result.recomputations, kLength);
}

TEST(Simulator, DrawsBySeed) {
  const Trace trace = random_trace(11, 200);
  const Simulator simulator(trace);
  const auto random = heuristic_named("random");
  SimulationOptions options;
  options.budget = simulator.need().plain_peak * 3 / 4;
  const SimulationResult first = simulator.run(*random, options);
  EXPECT_GT(first.evictions, 0);
  EXPECT_EQ(first.recompute_nanoseconds, simulator.run(*random, options).recompute_nanoseconds);
  bool differs = false;
  for (options.seed = 1; options.seed < 10; ++options.seed) {
    differs |= simulator.run(*random, options).recompute_nanoseconds != first.recompute_nanoseconds;
  }
  EXPECT_TRUE(differs);
}

TEST(Simulator, AgreesWithItsTwinOnAnyProgram) {
  for (const std::string& name : heuristic_names()) {
    if (name == "random") continue;
    EXPECT_TRUE(rc::check("twin under " + name, [&] {
      const Trace trace =
          random_trace(*rc::gen::inRange<std::uint64_t>(0, 1'000'000), *rc::gen::inRange(1, 40));
      const TraceNeed need = Simulator(trace).need();
      const std::int64_t budget = need.plain_peak * *rc::gen::inRange(30, 101) / 100;
      const auto heuristic = heuristic_named(name);
      const SimulationResult result = simulate(trace, name.c_str(), budget);
      NaiveSimulation twin(trace, *heuristic, budget);
      bool fits = true;
      try {
        twin.run();
      } catch (int) {
        fits = false;
      }
      RC_ASSERT(fits == (result.outcome == Outcome::kFits));
      RC_ASSERT(twin.recomputed == result.recompute_nanoseconds);
      RC_ASSERT(twin.peak == result.peak);
      RC_ASSERT(twin.evictions == result.evictions);
    }));
  }
}

TEST(Simulator, NeverPassesTheBudgetWhateverFindsTheVictim) {
  EXPECT_TRUE(rc::check([] {
    const Trace trace =
        random_trace(*rc::gen::inRange<std::uint64_t>(0, 1'000'000), *rc::gen::inRange(1, 80));
    const TraceNeed need = Simulator(trace).need();
    RC_ASSERT(need.floor <= need.plain_peak);
    const std::int64_t budget = *rc::gen::inRange<std::int64_t>(0, need.plain_peak + 10);
    const std::string name = *rc::gen::elementOf(heuristic_names());
    for (const Search search : {Search::kExact, Search::kIndex}) {
      const SimulationResult result = simulate(trace, name.c_str(), budget, search);
      RC_ASSERT(result.peak <= budget);
      if (budget < need.floor) RC_ASSERT(result.outcome == Outcome::kOutOfMemory);
      if (budget >= need.plain_peak) {
        RC_ASSERT(result.outcome == Outcome::kFits);
        RC_ASSERT(result.evictions == 0);
        RC_ASSERT(result.recompute_nanoseconds == 0);
        RC_ASSERT(result.base_nanoseconds == trace.nanoseconds());
      }
    }
  }));
}

}  // namespace
}  // namespace reprise::plan
