// Any graph, any regions, any budget: random small programs in a managed step must give the
// gradients of the same program outside of one, and leave nothing behind.
//
// About a thousand programs; ten thousand with RC_PARAMS="max_success=1000" in the environment.
#include <reprise/step_trace.h>

#include <memory>
#include <optional>

#include "tape/value.h"
#include "tests/tape/random_step.h"
#include "tests/tape/random_weights.h"
#include "tests/tape/testing.h"

namespace reprise {
namespace {

using namespace reprise::testing;

// How backward is run.
enum class Way { kOnce, kTwice, kTwoLosses, kSecondDerivative };

struct StepOutcome {
  Tensors gradients;
  Tensors values;
  at::Tensor loss;
  at::Tensor next_draw;
  Tensors state;
};

struct Case {
  Program program;
  Way way = Way::kTwice;
  bool with_regions = false;
};

void run_backward(Way way, const Tensors& leaves, const Tensors& values, const at::Tensor& loss) {
  switch (way) {
    case Way::kOnce:
      return loss.backward();
    case Way::kTwice:
      loss.backward({}, /*retain_graph=*/true);
      take_gradients(leaves);
      return loss.backward();
    case Way::kTwoLosses: {
      loss.backward({}, /*retain_graph=*/true);
      // As an optimizer would; autograd sees no change.
      for (const at::Tensor& leaf : leaves) leaf.data().sub_(leaf.grad(), 0.1);
      return (values.back().sum() * 2).backward({}, /*retain_graph=*/true);
    }
    case Way::kSecondDerivative: {
      const auto slopes =
          torch::autograd::grad({loss}, leaves, {}, /*retain_graph=*/true, /*create_graph=*/true);
      at::Tensor sum = loss;
      for (const at::Tensor& slope : slopes) sum = sum + slope.tanh().sum();
      return sum.backward();
    }
  }
}

StepOutcome outcome(const Case& what, MemoryBudget* budget) {
  torch::manual_seed(42);
  const auto doubles = torch::dtype(torch::kDouble);
  const at::Tensor x = torch::randn({4, 4}, doubles).requires_grad_(true);
  const at::Tensor y = torch::randn({4, 4}, doubles).requires_grad_(true);
  const at::Tensor w = torch::randn({4, 4}, doubles).requires_grad_(true);
  ProgramState state;
  StepOutcome result;
  {
    std::optional<MemoryBudget::Step> step;
    if (budget != nullptr) step.emplace(budget->step());
    Tensors values = {x, y, x * y};
    if (what.with_regions) {
      run(what.program, values, w, state, budget != nullptr);
    } else {
      run_more(what.program, values, w, state);
    }
    at::Tensor loss = (w * values.back()).sum() + (x + y).sum();
    for (std::size_t i = 2; i < values.size(); ++i) loss = loss + values[i].mean();
    run_backward(what.way, {x, y, w}, values, loss);
    result.loss = loss.detach();
    for (const at::Tensor& value : values) result.values.push_back(value.detach());
    values.clear();
    if (step) step->finish();
  }
  result.gradients = take_gradients({x, y, w});
  result.next_draw = torch::rand({3});
  result.state = state.tensors();
  return result;
}

void compare(const StepOutcome& mine, const StepOutcome& plain) {
  const auto same = same_bits(mine.gradients, plain.gradients);
  if (!same) RC_FAIL(same.message());
  RC_ASSERT(same_bits(mine.values, plain.values));
  RC_ASSERT(same_bits(mine.loss, plain.loss));
  RC_ASSERT(same_bits(mine.next_draw, plain.next_draw));
  RC_ASSERT(same_bits(mine.state, plain.state));
}

Case any_case() {
  Case what;
  what.program = *large(steps(16, any_step()));
  what.way = *rc::gen::element(Way::kOnce, Way::kTwice, Way::kTwoLosses, Way::kSecondDerivative);
  return what;
}

std::string describe(const Case& what) {
  return testing::describe(what.program) + " way " + std::to_string(static_cast<int>(what.way));
}

// In parts, so that they can run side by side.
class TapeProperty : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { before_ = live_bytes(); }
  void TearDown() override {
    // What is left in autograd's queue goes.
    at::ones({}).requires_grad_().backward();
    EXPECT_EQ(live_bytes(), before_);
    EXPECT_EQ(tape::living_records(), 0);
  }

 private:
  Bytes before_;
};

// Of the values of a program some are below it, and some are not.
Bytes any_smallest() { return Bytes(*rc::gen::element<std::int64_t>(1, 1, 100, 300)); }

INSTANTIATE_TEST_SUITE_P(Parts, TapeProperty, ::testing::Range(0, 4));

TEST_P(TapeProperty, AnyProgramOfWhichEverythingIsDroppedHasThePlainGradients) {
  EXPECT_TRUE(rc::check("gradients are bitwise those of the plain program", [] {
    const Case what = any_case();
    RC_LOG() << describe(what) << std::endl;
    BudgetOptions options = paranoid();
    options.verify = *rc::gen::arbitrary<bool>();
    options.min_bytes = any_smallest();
    // Looks at values and gradients wherever their bytes are there.
    if (*rc::gen::arbitrary<bool>()) options.weights = std::make_shared<RandomWeights>(1);
    MemoryBudget budget(GiB(64), options);
    const StepOutcome plain = outcome(what, nullptr);
    compare(outcome(what, &budget), plain);
    // By now it knows what is too small to be dropped.
    compare(outcome(what, &budget), plain);
  }));
}

TEST_P(TapeProperty, AnyProgramUnderAnyBudgetHasThePlainGradientsOrIsRefused) {
  EXPECT_TRUE(rc::check("gradients are bitwise those of the plain program", [] {
    const Case what = any_case();
    const auto above = *rc::gen::inRange<std::int64_t>(2'000, 20'000);
    const std::string heuristic = *rc::gen::elementOf(heuristic_names());
    const bool verify = *rc::gen::arbitrary<bool>();
    const Bytes min_bytes = any_smallest();
    const bool is_weighed = *rc::gen::arbitrary<bool>();
    RC_LOG() << describe(what) << " in " << above << " by " << heuristic << ", from "
             << to_string(min_bytes) << " on" << (is_weighed ? ", weighed" : "") << std::endl;
    const StepOutcome plain = outcome(what, nullptr);
    BudgetOptions options{
        .heuristic = parse_heuristic(heuristic), .min_bytes = min_bytes, .verify = verify};
    if (is_weighed) options.weights = std::make_shared<RandomWeights>(above);
    MemoryBudget budget(live_bytes() + Bytes(above), options);
    try {
      compare(outcome(what, &budget), plain);
      compare(outcome(what, &budget), plain);
    } catch (const BudgetError&) {
      RC_TAG("refused");
    }
    RC_ASSERT(budget.report().peak <= budget.limit());
    compare(outcome(what, nullptr), plain);
  }));
}

TEST_P(TapeProperty, AnyProgramWithRegionsInsideAManagedStepHasThePlainGradients) {
  EXPECT_TRUE(rc::check("gradients are bitwise those of the plain program", [] {
    Case what;
    what.program = *large(program_of(2, /*allow_reentrant=*/false));
    what.with_regions = true;
    RC_LOG() << describe(what) << std::endl;
    MemoryBudget budget(GiB(64), paranoid());
    compare(outcome(what, &budget), outcome(what, nullptr));
  }));
}

}  // namespace
}  // namespace reprise
