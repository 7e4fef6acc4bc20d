// Random programs that repeat under a budget with planning: gradients stay bitwise the plain ones.
#include <reprise/budget.h>
#include <reprise/error.h>
#include <reprise/memory.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdint>
#include <iostream>
#include <optional>

#include "tests/tape/random_step.h"
#include "tests/tape/testing.h"

namespace reprise {
namespace {

using at::Tensor;
using testing::Tensors;

// Random programs, a few times each.
TEST(LearningProperty, AnyProgramThatComesAgainHasThePlainGradientsOrIsRefused) {
  int followed = 0;
  EXPECT_TRUE(rc::check("gradients are bitwise those of the plain program", [&] {
    const auto program = *testing::large(testing::steps(16, testing::any_step()));
    const auto above = *rc::gen::inRange<std::int64_t>(2'000, 20'000);
    RC_LOG() << testing::describe(program) << " in " << above << std::endl;
    const auto run = [&](MemoryBudget* budget) {
      torch::manual_seed(42);
      const auto doubles = torch::dtype(torch::kDouble);
      const Tensor x = torch::randn({4, 4}, doubles).requires_grad_(true);
      const Tensor y = torch::randn({4, 4}, doubles).requires_grad_(true);
      const Tensor w = torch::randn({4, 4}, doubles).requires_grad_(true);
      testing::ProgramState state;
      Tensors results;
      {
        std::optional<MemoryBudget::Step> step;
        if (budget != nullptr) step.emplace(budget->step());
        Tensors values = {x, y, x * y};
        testing::run_more(program, values, w, state);
        Tensor loss = (w * values.back()).sum();
        for (std::size_t i = 2; i < values.size(); ++i) loss = loss + values[i].mean();
        loss.backward();
        for (const Tensor& value : values) results.push_back(value.detach());
        values.clear();
        if (step) step->finish();
      }
      for (const Tensor& gradient : testing::take_gradients({x, y, w})) {
        if (gradient.defined()) results.push_back(gradient);
      }
      results.push_back(torch::rand({3}));
      return results;
    };
    const Tensors plain = run(nullptr);
    MemoryBudget budget(live_bytes() + Bytes(above),
                        {.min_bytes = Bytes(1), .planning_time = Seconds(0.02)});
    try {
      for (int i = 0; i < 7; ++i) {
        RC_ASSERT(testing::same_bits(run(&budget), plain));
        RC_ASSERT(budget.wait_for_plan(std::chrono::seconds(60)));
      }
      followed += budget.report().followed > 0;
    } catch (const BudgetError&) {
      RC_TAG("refused");
    }
    RC_ASSERT(budget.report().peak <= budget.limit());
  }));
  EXPECT_GT(followed, 5);
}

}  // namespace
}  // namespace reprise
