// Integer programs against all plans that there are, where the build has a solver, and against
// hindsight.
#include "plan/step/ilp.h"

#include <gmock/gmock.h>
#include <reprise/planners.h>

#include "plan/step/hindsight.h"
#include "plan/step/mixed_integer.h"
#include "tests/plan/step/graphs.h"
#include "tests/plan/trace/testing.h"

namespace reprise::plan {
namespace {

using ::testing::HasSubstr;

class Ilp : public ::testing::TestWithParam<double> {
 protected:
  void SetUp() override {
    if (!MixedIntegerProgram::has_solver()) GTEST_SKIP() << "this build has no HiGHS";
  }
};

TEST_P(Ilp, IsNeverAboveHindsightAndItsBoundNeverAboveIt) {
  int fitted = 0;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    const StepGraph graph = random_training_step(seed, 4, GetParam());
    const std::int64_t plain = cost_of(graph, GraphPlan(graph)).peak;
    for (const std::int64_t tenths : {7, 8}) {
      const std::int64_t budget = plain * tenths / 10;
      const IlpResult found = plan_by_ilp(graph, budget, 60);
      const Hindsight hindsight =
          plan_with_hindsight(graph, {.budget = budget, .seconds = 0, .moves = 5000, .seed = 1});
      EXPECT_EQ(found.plan.has_value(), !found.is_infeasible) << seed;
      if (!found.plan) continue;
      ++fitted;
      const GraphCost cost = naive_cost(graph, *found.plan);
      EXPECT_LE(cost.peak, budget) << seed;
      const auto nanoseconds = static_cast<double>(cost.nanoseconds());
      EXPECT_NEAR(found.bound_nanoseconds, nanoseconds, 1e-3 * nanoseconds + 1e-3) << seed;
      EXPECT_LE(hindsight.least_nanoseconds, nanoseconds + 1e-6) << seed;
      if (!hindsight.plan) continue;
      EXPECT_LE(nanoseconds, static_cast<double>(hindsight.cost.nanoseconds()) + 1e-6) << seed;
    }
  }
  EXPECT_GE(fitted, 5);
}

INSTANTIATE_TEST_SUITE_P(Stores, Ilp, ::testing::Values(0., 1e9));

TEST(IlpPlanner, RefusesWhatItCannotSolve) {
  const StepTrace step = StepTrace::parse(
      R"({"format": "reprise step", "version": 1, "operators": [{"seconds": 1}], "results": []})");
  EXPECT_THAT(
      refusal_of([&] { planners::ilp(step, {.budget = MB(1), .time_limit = {}, .moves = 3}); }),
      HasSubstr("moves is 3; they are hindsight's: leave it 0"));
  std::string many = R"({"format": "reprise step", "version": 1, "results": [], "operators": [)";
  for (int i = 0; i < 201; ++i) many += std::string(i > 0 ? "," : "") + R"({"seconds": 1})";
  EXPECT_THAT(refusal_of([&] { planners::ilp(StepTrace::parse(many + "]}"), {.budget = MB(1)}); }),
              HasSubstr("the step has 201 operators; it takes up to 200"));
  if (planners::has_ilp()) return;
  EXPECT_THAT(refusal_of<Error>([&] { planners::ilp(step, {.budget = MB(1)}); }),
              HasSubstr("this build of reprise has no HiGHS: set REPRISE_HIGHS_LIBRARY"));
}

}  // namespace
}  // namespace reprise::plan
