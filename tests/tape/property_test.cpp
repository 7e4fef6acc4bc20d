// Any graph, any regions, any budget: random small programs in a managed step must give the
// gradients of the same program outside of one, and leave nothing behind.
#include <optional>

#include "tests/region/random_program.h"
#include "tests/tape/testing.h"

namespace reprise {
namespace {

using namespace reprise::testing;

struct Outcome {
  Tensors gradients;
  at::Tensor loss;
  at::Tensor next_draw;
  Tensors state;
};

Outcome outcome(const Program& program, bool with_regions, MemoryBudget* budget) {
  torch::manual_seed(42);
  const auto doubles = torch::dtype(torch::kDouble);
  const at::Tensor x = torch::randn({4, 4}, doubles).requires_grad_(true);
  const at::Tensor y = torch::randn({4, 4}, doubles).requires_grad_(true);
  const at::Tensor w = torch::randn({4, 4}, doubles).requires_grad_(true);
  ProgramState state;
  Outcome result;
  {
    std::optional<MemoryBudget::Step> step;
    if (budget != nullptr) step.emplace(budget->step());
    Tensors values = {x, y, x * y};
    run(program, values, w, state, with_regions);
    at::Tensor loss = (w * values.back()).sum();
    for (std::size_t i = 2; i < values.size(); ++i) loss = loss + values[i].mean();
    loss.backward({}, /*retain_graph=*/true);
    take_gradients({x, y, w});
    loss.backward();
    result.loss = loss.detach();
    values.clear();
    if (step) step->finish();
  }
  result.gradients = take_gradients({x, y, w});
  result.next_draw = torch::rand({3});
  result.state = state.tensors();
  return result;
}

void compare(const Outcome& mine, const Outcome& plain) {
  const auto same = same_bits(mine.gradients, plain.gradients);
  if (!same) RC_FAIL(same.message());
  RC_ASSERT(same_bits(mine.loss, plain.loss));
  RC_ASSERT(same_bits(mine.next_draw, plain.next_draw));
  RC_ASSERT(same_bits(mine.state, plain.state));
}

TEST(TapeProperty, AnyProgramOfWhichEverythingIsDroppedHasThePlainGradients) {
  const Bytes before = live_bytes();
  EXPECT_TRUE(rc::check("gradients are bitwise those of the plain program", [] {
    const Program program = *large(steps(14, operator_step()));
    RC_LOG() << describe(program) << std::endl;
    BudgetOptions options = paranoid();
    options.verify = *rc::gen::arbitrary<bool>();
    MemoryBudget budget(GiB(64), options);
    compare(outcome(program, false, &budget), outcome(program, false, nullptr));
  }));
  EXPECT_EQ(live_bytes(), before);
}

TEST(TapeProperty, AnyProgramWithRegionsInsideAManagedStepHasThePlainGradients) {
  const Bytes before = live_bytes();
  EXPECT_TRUE(rc::check("gradients are bitwise those of the plain program", [] {
    const Program program = *large(program_of(2, /*allow_reentrant=*/false));
    RC_LOG() << describe(program) << std::endl;
    MemoryBudget budget(GiB(64), paranoid());
    compare(outcome(program, true, &budget), outcome(program, false, nullptr));
  }));
  EXPECT_EQ(live_bytes(), before);
}

TEST(TapeProperty, AnyProgramUnderAnyBudgetHasThePlainGradientsOrIsRefused) {
  const Bytes before = live_bytes();
  EXPECT_TRUE(rc::check("gradients are bitwise those of the plain program", [] {
    const Program program = *large(steps(14, operator_step()));
    const auto above = *rc::gen::inRange<std::int64_t>(2'000, 20'000);
    const std::string heuristic = *rc::gen::element<std::string>("h_eq", "h_dtr", "lru", "random");
    RC_LOG() << describe(program) << " in " << above << std::endl;
    const Outcome plain = outcome(program, false, nullptr);
    MemoryBudget budget(live_bytes() + Bytes(above),
                        {.heuristic = heuristic, .smallest = Bytes(1)});
    try {
      compare(outcome(program, false, &budget), plain);
    } catch (const BudgetError&) {
      RC_TAG("refused");
    }
    RC_ASSERT(budget.report().peak <= budget.limit());
    compare(outcome(program, false, nullptr), plain);
  }));
  EXPECT_EQ(live_bytes(), before);
}

}  // namespace
}  // namespace reprise
