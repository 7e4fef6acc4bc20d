// Steps as graphs, and plans for them: what they cost, also when they are changed a run at a time.
#include "plan/step/graph_plan.h"

#include <gmock/gmock.h>
#include <rapidcheck.h>

#include "plan/step/plan_memory.h"
#include "tests/plan/step/graphs.h"
#include "tests/plan/trace/testing.h"

namespace reprise::plan {
namespace {

using ::testing::ElementsAre;
using Index = StepGraph::Index;

// x is a constant; a, b = a view of a, c from both; c is kept.
StepGraph small_graph() {
  return StepGraph(Program()
                       .constant("x", 5)
                       .call("a", {"x"}, 10, 100)
                       .view("b", "a", 1)
                       .call("c", {"b", "a", "a", "x"}, 20, 300)
                       .release({"x", "a", "b"})
                       .finish());
}

std::vector<Index> list(std::span<const Index> items) { return {items.begin(), items.end()}; }

TEST(StepGraph, HoldsWhatAStepReadsAndMakes) {
  const StepGraph graph = small_graph();
  ASSERT_EQ(graph.operators(), 3);
  EXPECT_EQ(graph.fixed_bytes(0), 5);
  EXPECT_EQ(graph.nanoseconds(), 401);
  EXPECT_THAT(list(graph.reads(0)), ElementsAre()) << "constants are always there";
  EXPECT_THAT(list(graph.reads(1)), ElementsAre(0));
  EXPECT_THAT(list(graph.reads(2)), ElementsAre(1, 0)) << "each once";
  EXPECT_THAT(list(graph.makes(0)), ElementsAre(0));
  EXPECT_THAT(list(graph.makes(1)), ElementsAre()) << "a view has no memory of its own";
  EXPECT_THAT(list(graph.results(1)), ElementsAre(1));
  EXPECT_THAT(list(graph.readers(0)), ElementsAre(1, 2));
  EXPECT_THAT(list(graph.tensors_on(0)), ElementsAre(0, 1));
  EXPECT_TRUE(graph.tensor(1).is_view);
  EXPECT_EQ(graph.storage(1).bytes, 20);
  EXPECT_THAT(graph.kept(), ElementsAre(2));
}

TEST(GraphPlan, CostsWhatItRunsAgainAndHoldsValuesUntilTheirLastRead) {
  // a is read at the end; meanwhile b1, b2 and b3 pass.
  Program program;
  program.constant("x", 0).call("a", {"x"}, 10, 100).call("b1", {"a"}, 30, 1);
  program.call("b2", {"b1"}, 30, 1).call("b3", {"b2"}, 30, 1).call("end", {"b3", "a"}, 1, 1);
  program.release({"x", "a", "b1", "b2", "b3"});
  const StepGraph graph(program.finish());
  GraphPlan plan(graph);
  const GraphCost plain = cost_of(graph, plan);
  EXPECT_EQ(plain.peak, 10 + 30 + 30);
  EXPECT_EQ(plain.recompute_nanoseconds, 0);
  EXPECT_EQ(plain.peak_slot, 2);
  plan.slots[0] = {4};
  const GraphCost again = cost_of(graph, plan);
  EXPECT_EQ(again.peak, 30 + 30);
  EXPECT_EQ(again.recompute_nanoseconds, 100);
}

TEST(StepGraph, PricesWhatCanBeLoaded) {
  const StepGraph graph(Program()
                            .constant("x", 5)
                            .call("a", {"x"}, 10, 100)
                            .view("b", "a", 1)
                            .call("empty", {"b"}, 0, 300)
                            .finish(),
                        /*store_bytes_per_second=*/2e9);
  EXPECT_TRUE(graph.can_load(0));
  EXPECT_EQ(graph.transfer_nanoseconds(0), 5);
  EXPECT_FALSE(graph.can_load(1)) << "what it makes lies on another's memory";
  EXPECT_FALSE(graph.can_load(2)) << "nothing would be moved";
  EXPECT_FALSE(small_graph().can_load(0)) << "there is no store";
  const StepGraph slow(Program().call("a", {}, 1'000'000, 1).finish(), 1e-3);
  EXPECT_FALSE(slow.can_load(0)) << "a transfer of 30 years";
}

TEST(GraphPlan, LoadsReadNothingAndTheFirstCostsTheWayToTheStore) {
  // b is read at the end, and made from a.
  Program program;
  program.constant("x", 0).call("a", {"x"}, 20, 100).call("b", {"a"}, 10, 70);
  program.call("c", {"b"}, 30, 1).call("d", {"c"}, 30, 1).call("end", {"d", "b"}, 1, 1);
  program.call("end2", {"end"}, 30, 1).call("end3", {"end2"}, 30, 1);
  program.call("end4", {"end3", "b"}, 1, 1);
  program.release({"x", "a", "b", "c", "d", "end", "end2", "end3"});
  const StepGraph graph(program.finish(), 1e9);
  GraphPlan plan(graph);
  plan.slots[1] = {4, 7};
  plan.loads[1] = {4, 7};
  const GraphCost loaded = cost_of(graph, plan);
  EXPECT_EQ(loaded.peak, 30 + 30) << "a is not there any more";
  EXPECT_EQ(loaded.recompute_nanoseconds, 0);
  EXPECT_EQ(loaded.transfer_nanoseconds, 10 + 10 + 10);
  plan.loads[1] = {7};
  const GraphCost both = cost_of(graph, plan);
  EXPECT_EQ(both.nanoseconds(), 70 + 10 + 10);
  EXPECT_EQ(both.peak, 20 + 30 + 30) << "a waits for b to be made again";
}

TEST(GraphPlan, CostsWhatFollowingItCosts) {
  EXPECT_TRUE(rc::check([](std::uint64_t seed) {
    const double store = *rc::gen::element(0., 1e9);
    const StepGraph graph = random_graph(seed, *rc::gen::inRange(0, 40), store);
    const GraphPlan plan = random_plan(graph, seed, *rc::gen::inRange(0, 40));
    const GraphCost found = cost_of(graph, plan), expected = naive_cost(graph, plan);
    RC_ASSERT(found.peak == expected.peak);
    RC_ASSERT(found.recompute_nanoseconds == expected.recompute_nanoseconds);
    RC_ASSERT(found.transfer_nanoseconds == expected.transfer_nanoseconds);
  }));
}

// Where an operator reads a storage by two tensors and makes a view of it, the memory counts it as
// a view of both: of two instances, if one of them was made again.
bool every_view_has_one_base(const StepGraph& graph) {
  for (Index op = 0; op < graph.operators(); ++op) {
    for (const Index result : graph.results(op)) {
      const Index storage = graph.tensor(result).storage;
      const auto reads = graph.reads(op);
      const auto bases = std::count_if(reads.begin(), reads.end(), [&](Index read) {
        return graph.tensor(read).storage == storage;
      });
      if (bases > 1) return false;
    }
  }
  return true;
}

TEST(PlanMemory, AgreesWithTheWholePlanAfterEveryChange) {
  EXPECT_TRUE(rc::check([](std::uint64_t seed) {
    const double store = *rc::gen::element(0., 1e9);
    const StepGraph graph = random_graph(seed, *rc::gen::inRange(1, 30), store);
    if (graph.operators() == 0) return;
    const bool is_clear = every_view_has_one_base(graph);
    std::mt19937_64 random(seed);
    GraphPlan plan = random_plan(graph, seed, *rc::gen::inRange(0, 20));
    const std::int64_t budget =
        cost_of(graph, GraphPlan(graph)).peak * *rc::gen::inRange<std::int64_t>(3, 11) / 10;
    PlanMemory memory(graph, plan, budget);
    for (int i = 0; i < 30; ++i) {
      const auto op = static_cast<Index>(random() % graph.operators());
      const auto slot = op + 1 + static_cast<Index>(random() % (graph.operators() - op));
      const bool loads = graph.can_load(op) && random() % 2 == 0;
      memory.runs_in(op, slot) ? memory.remove({op, slot}) : memory.add({op, slot, loads});
      const GraphCost cost = cost_of(graph, memory.plan());
      RC_ASSERT(memory.nanoseconds() == cost.nanoseconds());
      std::int64_t peak = 0;
      for (Index at = 0; at <= graph.operators(); ++at) peak = std::max(peak, memory.bytes(at));
      RC_ASSERT((is_clear ? peak == cost.peak : peak >= cost.peak));
      RC_ASSERT((memory.excess() == 0) == (peak <= budget));
      const PlanMemory anew(graph, memory.plan(), budget);
      RC_ASSERT(memory.excess() == anew.excess());
      RC_ASSERT(memory.nanoseconds() == anew.nanoseconds());
    }
  }));
}

}  // namespace
}  // namespace reprise::plan
