// The public face of plans for steps: what is refused, and what a plan says.
#include "reprise/planners.h"

#include <gmock/gmock.h>

#include "tests/plan/trace/testing.h"

namespace reprise::plan {
namespace {

using ::testing::HasSubstr;

// a takes long to make, and waits while b and c pass.
StepTrace long_wait() {
  return StepTrace::parse(R"({"format": "reprise step", "version": 1, "operators": [
    {"seconds": 5e-3, "outputs": [{"bytes": 1000}]},
    {"seconds": 1e-6, "inputs": [0], "outputs": [{"bytes": 3000}]},
    {"seconds": 1e-6, "inputs": [1], "outputs": [{"bytes": 3000}]},
    {"seconds": 1e-6, "inputs": [2, 0], "outputs": [{"bytes": 1}]}], "results": [3]})");
}

TEST(StepPlan, SaysWhatIsLoadedAndWhatThatCosts) {
  const StepPlan plan = planners::hindsight(
      long_wait(),
      {.budget = Bytes(6000), .time_limit = {}, .store = {1e9}, .moves = 500, .seed = 0});
  ASSERT_TRUE(plan.fits);
  EXPECT_EQ(plan.runs, (std::vector<StepPlan::Run>{{0, 3, true}}));
  EXPECT_DOUBLE_EQ(plan.transfer.count(), 2e-6);
  EXPECT_EQ(plan.recompute.count(), 0);
  EXPECT_DOUBLE_EQ(plan.slowdown, 1 + 2e-6 / 5.003e-3);
  const StepPlan without =
      planners::hindsight(long_wait(), {.budget = Bytes(6000), .time_limit = {}, .moves = 500});
  EXPECT_EQ(without.runs, (std::vector<StepPlan::Run>{{0, 3, false}}));
  EXPECT_DOUBLE_EQ(without.recompute.count(), 5e-3);
  EXPECT_EQ(without.transfer.count(), 0);
}

TEST(StepPlan, RefusesWhatCannotBePlanned) {
  const StepTrace step = long_wait();
  const auto refused = [&](const StepPlanOptions& options) {
    return refusal_of([&] { planners::hindsight(step, options); });
  };
  EXPECT_EQ(refused({.budget = Bytes(1000), .store = {-1}}),
            "hindsight: the store moves -1.000000 bytes a second; it must be above 0, or 0, where "
            "there is none");
  EXPECT_THAT(refused({.budget = Bytes(-1)}), HasSubstr("it must be at least 0"));
  EXPECT_THAT(refused({.budget = Bytes(1), .moves = -1}), HasSubstr("moves is -1"));
  EXPECT_THAT(refused({.budget = Bytes(1), .time_limit = {}}),
              HasSubstr("the time limit is 0.000000 s; it must be above 0"));
  std::string large = R"({"format": "reprise step", "version": 1, "results": [0], "operators": [)";
  for (int i = 0; i < 100; ++i) {
    large += std::string(i > 0 ? "," : "") +
             R"({"seconds": 1, "outputs": [{"bytes": 4503599627370496}]})";
  }
  EXPECT_EQ(refusal_of(
                [&] { planners::hindsight(StepTrace::parse(large + "]}"), {.budget = Bytes(1)}); }),
            "hindsight: the step makes 450359962737049600 bytes in all in 100 operators; bytes "
            "times operators must be at most 2^60");
}

}  // namespace
}  // namespace reprise::plan
