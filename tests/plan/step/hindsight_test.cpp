// Planning a step that is known: policies, cuts, annealing, and the bound below all plans.
#include "plan/step/hindsight.h"

#include <gmock/gmock.h>
#include <rapidcheck.h>

#include <functional>

#include "plan/step/annealing.h"
#include "plan/step/keep_set.h"
#include "plan/step/min_cut.h"
#include "plan/step/next_use_policy.h"
#include "tests/plan/step/graphs.h"
#include "tests/plan/trace/testing.h"

namespace reprise::plan {
namespace {

using Index = StepGraph::Index;

// The least that any plan takes beyond the plain step, for each budget; negative where none fits.
// Tries all plans.
std::vector<std::int64_t> least_of_all_plans(const StepGraph& graph,
                                             const std::vector<std::int64_t>& budgets) {
  std::vector<std::int64_t> best(budgets.size(), -1);
  GraphPlan plan(graph);
  const std::function<void(Index, Index)> extend = [&](Index op, Index slot) {
    if (op == graph.operators()) {
      const GraphCost cost = cost_of(graph, plan);
      for (std::size_t i = 0; i < budgets.size(); ++i) {
        if (cost.peak > budgets[i]) continue;
        if (best[i] < 0 || cost.nanoseconds() < best[i]) best[i] = cost.nanoseconds();
      }
      return;
    }
    if (slot > graph.operators()) return extend(op + 1, op + 2);
    extend(op, slot + 1);
    plan.slots[op].push_back(slot);
    extend(op, slot + 1);
    if (graph.can_load(op)) {
      plan.loads[op].push_back(slot);
      extend(op, slot + 1);
      plan.loads[op].pop_back();
    }
    plan.slots[op].pop_back();
  };
  extend(0, 1);
  return best;
}

HindsightOptions by_moves(std::int64_t budget, std::int64_t moves = 1000) {
  return {.budget = budget, .seconds = 0, .moves = moves, .seed = 1};
}

TEST(MinCut, IsTheLeast) {
  // Two ways from 0 to 1: by 2 with 3 and 5, by 3 with 4 and 1; and 2 in between.
  MinCut cut(4);
  cut.connect(0, 2, 3);
  cut.connect(2, 1, 5);
  cut.connect(0, 3, 4);
  cut.connect(3, 1, 1);
  cut.connect(3, 2, 1);
  EXPECT_DOUBLE_EQ(cut.solve(), 5);
  EXPECT_FALSE(cut.is_with_source(2));
  EXPECT_TRUE(cut.is_with_source(3));
}

TEST(NextUsePolicy, KeepsToItsBudget) {
  EXPECT_TRUE(rc::check([](std::uint64_t seed) {
    const double store = *rc::gen::element(0., 3e8, 1e9);
    const StepGraph graph = random_training_step(seed, *rc::gen::inRange(1, 40), store);
    const std::int64_t plain = cost_of(graph, GraphPlan(graph)).peak;
    const NextUseOptions options{.budget = plain * *rc::gen::inRange<std::int64_t>(4, 10) / 10,
                                 .beta = *rc::gen::element(0., .25, .5, 1.),
                                 .most_nanoseconds = 1'000'000};
    const std::optional<GraphPlan> plan = plan_by_next_use(graph, options);
    RC_CLASSIFY(!plan.has_value(), "does not fit");
    if (!plan) return;
    const GraphCost cost = naive_cost(graph, *plan);
    RC_ASSERT(cost.peak <= options.budget);
    RC_ASSERT(cost.nanoseconds() <= options.most_nanoseconds);
  }));
}

TEST(NextUsePolicy, RunsNothingAgainWhereAllFits) {
  const StepGraph graph = random_graph(3, 60);
  // What is dropped by reference counting counts, what is kept for nothing does not.
  std::int64_t all = graph.fixed_bytes(0);
  for (Index storage = 0; storage < graph.storages(); ++storage) {
    all += graph.storage(storage).bytes;
  }
  const auto plan = plan_by_next_use(graph, {.budget = all, .beta = .5, .most_nanoseconds = 0});
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(cost_of(graph, *plan).recompute_nanoseconds, 0);
}

// With a store or without.
void expect_close_to_the_best(double store) {
  int fitted = 0, found_best = 0;
  for (std::uint64_t seed = 0; seed < (store > 0 ? 60 : 100); ++seed) {
    // Of five operators with random arguments, or two forward and two back.
    const StepGraph graph =
        seed % 2 == 0 ? random_graph(seed, 6, store) : random_training_step(seed, 2, store);
    // There are 3^n plans of n runs with a store.
    const Index most = store > 0 ? 4 : 5;
    if (graph.operators() < 3 || graph.operators() > most) continue;
    const std::int64_t plain = cost_of(graph, GraphPlan(graph)).peak;
    std::vector<std::int64_t> budgets;
    for (const std::int64_t tenths : {6, 7, 8, 9}) budgets.push_back(plain * tenths / 10);
    const std::vector<std::int64_t> least = least_of_all_plans(graph, budgets);
    for (std::size_t i = 0; i < budgets.size(); ++i) {
      const std::int64_t budget = budgets[i], best = least[i];
      const Hindsight found = plan_with_hindsight(graph, by_moves(budget));
      if (best < 0) {
        EXPECT_FALSE(found.plan.has_value()) << seed;
        continue;
      }
      ++fitted;
      EXPECT_LE(found.least_nanoseconds, static_cast<double>(best) + 1e-6) << seed << " " << i;
      if (!found.plan) continue;
      EXPECT_GE(found.cost.nanoseconds(), best) << seed;
      found_best += found.cost.nanoseconds() == best;
      EXPECT_LE(naive_cost(graph, *found.plan).peak, budget) << seed;
    }
  }
  EXPECT_GE(fitted, store > 0 ? 5 : 10);
  EXPECT_GE(found_best, fitted * 4 / 5) << "of " << fitted;
}

TEST(Hindsight, IsBoundedByTheBestOfAllPlansAndMostlyFindsIt) { expect_close_to_the_best(0); }

TEST(Hindsight, IsBoundedByTheBestOfAllPlansWithAStoreAndMostlyFindsIt) {
  expect_close_to_the_best(1e9);
}

TEST(Hindsight, IsNeverSlowerWithAStore) {
  EXPECT_TRUE(rc::check([](std::uint64_t seed) {
    const int length = *rc::gen::inRange(3, 20);
    const StepGraph without = random_training_step(seed, length);
    const StepGraph with = random_training_step(seed, length, *rc::gen::element(1e8, 1e9, 1e10));
    const std::int64_t plain = cost_of(without, GraphPlan(without)).peak;
    const std::int64_t budget = plain * *rc::gen::inRange<std::int64_t>(4, 10) / 10;
    const Hindsight plan = plan_with_hindsight(without, by_moves(budget, 300));
    const Hindsight loaded = plan_with_hindsight(with, by_moves(budget, 300));
    RC_ASSERT(loaded.least_nanoseconds <= plan.least_nanoseconds + 1e-6);
    if (!plan.plan) return;
    RC_ASSERT(loaded.plan.has_value());
    RC_CLASSIFY(loaded.cost.nanoseconds() < plan.cost.nanoseconds(), "faster");
    RC_ASSERT(loaded.cost.nanoseconds() <= plan.cost.nanoseconds());
    RC_ASSERT(loaded.least_nanoseconds <= static_cast<double>(loaded.cost.nanoseconds()) + 1e-6);
  }));
}

TEST(Hindsight, LoadsWhatIsDearToMake) {
  // a takes long to make and waits while b and c pass; 10 ns each way.
  const StepGraph graph(Program()
                            .call("a", {}, 10, 5000)
                            .call("b", {"a"}, 30, 1)
                            .call("c", {"b"}, 30, 1)
                            .call("d", {"c", "a"}, 1, 1)
                            .release({"a", "b", "c"})
                            .finish(),
                        1e9);
  const Hindsight found = plan_with_hindsight(graph, by_moves(60));
  ASSERT_TRUE(found.plan.has_value());
  EXPECT_EQ(found.plan->loads[0], std::vector<Index>{3});
  EXPECT_EQ(found.cost.nanoseconds(), 20);
  EXPECT_EQ(found.cost.transfer_nanoseconds, 20);
  EXPECT_DOUBLE_EQ(found.least_nanoseconds, 20);
}

TEST(Hindsight, PlansKeepToTheBudgetAndAreTheSameForTheSameMoves) {
  EXPECT_TRUE(rc::check([](std::uint64_t seed) {
    const double store = *rc::gen::element(0., 1e9);
    const StepGraph graph = random_training_step(seed, *rc::gen::inRange(3, 20), store);
    const std::int64_t plain = cost_of(graph, GraphPlan(graph)).peak;
    const std::int64_t budget = plain * *rc::gen::inRange<std::int64_t>(4, 10) / 10;
    const Hindsight found = plan_with_hindsight(graph, by_moves(budget, 300));
    RC_CLASSIFY(!found.plan.has_value(), "does not fit");
    if (!found.plan) return;
    const GraphCost cost = naive_cost(graph, *found.plan);
    RC_ASSERT(cost.peak <= budget);
    RC_ASSERT(cost.peak == found.cost.peak);
    RC_ASSERT(cost.nanoseconds() == found.cost.nanoseconds());
    RC_ASSERT(found.least_nanoseconds <= static_cast<double>(cost.nanoseconds()) + 1e-6);
    RC_ASSERT(*plan_with_hindsight(graph, by_moves(budget, 300)).plan == *found.plan);
  }));
}

TEST(Annealing, NeverGivesADearerPlan) {
  EXPECT_TRUE(rc::check([](std::uint64_t seed) {
    const StepGraph graph =
        random_graph(seed, *rc::gen::inRange(5, 40), *rc::gen::element(0., 1e9));
    if (graph.operators() == 0) return;
    const GraphPlan plan = random_plan(graph, seed, 20);
    const GraphCost before = cost_of(graph, plan);
    const GraphPlan after =
        anneal(graph, plan, {.budget = before.peak, .moves = 500, .seed = seed, .is_over = {}});
    const GraphCost cost = naive_cost(graph, after);
    RC_ASSERT(cost.peak <= before.peak);
    RC_ASSERT(cost.nanoseconds() <= before.nanoseconds());
  }));
}

}  // namespace
}  // namespace reprise::plan
