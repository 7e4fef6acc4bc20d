// The planner that docs/extending.md shows does what it says.
#include "examples/extending/one_segment.h"

#include <gmock/gmock.h>

#include "tests/plan/chain/chains.h"
#include "tests/refusal.h"

namespace reprise::plan {
namespace {

TEST(ExamplePlanner, RecomputesNoMoreThanItMust) {
  const Chain chain = uniform_chain(6);
  const Bytes plain = evaluate(chain, planners::keep_all(chain)).peak;
  EXPECT_EQ(example::one_segment(chain, plain), planners::keep_all(chain));
  const ScheduleCost cost = evaluate(chain, example::one_segment(chain, plain - Bytes(1)));
  EXPECT_LT(cost.peak, plain);
  // A segment of one stage saves nothing but what is kept of it beside its output.
  EXPECT_LE(cost.forwards, 6 + 2);
  EXPECT_THAT(refusal_of<BudgetError>([&] { example::one_segment(chain, Bytes(50)); }),
              ::testing::HasSubstr("one_segment: the budget is 50 B"));
}

}  // namespace
}  // namespace reprise::plan
