// Any graph, any regions: random small programs of operators, cut at random points into nested
// regions of both variants, must give the gradients of the same program without regions.
#include "tests/region/random_program.h"

namespace reprise {
namespace {

using namespace reprise::testing;

struct Outcome {
  Tensors gradients;
  at::Tensor loss;
  at::Tensor next_draw;
  Tensors state;
};

// A step in double precision: forward, backward, the next random number, and the state.
Outcome outcome(const Program& program, bool with_regions, int backwards, bool by_grad) {
  torch::manual_seed(42);
  const auto doubles = torch::dtype(torch::kDouble);
  const at::Tensor x = torch::randn({4, 4}, doubles).requires_grad_(true);
  const at::Tensor y = torch::randn({4, 4}, doubles).requires_grad_(true);
  const at::Tensor w = torch::randn({4, 4}, doubles).requires_grad_(true);
  Tensors values = {x, y, x * y};
  ProgramState state;
  run(program, values, w, state, with_regions);
  at::Tensor loss = (w * values.back()).sum();
  for (std::size_t i = 2; i < values.size(); ++i) loss = loss + values[i].mean();
  Outcome result;
  for (int i = 1; i <= backwards; ++i) {
    if (by_grad) {
      result.gradients =
          torch::autograd::grad({loss}, {x, y, w}, {}, /*retain_graph=*/i < backwards);
    } else {
      loss.backward({}, /*retain_graph=*/i < backwards);
      result.gradients = take_gradients({x, y, w});
    }
  }
  result.loss = loss.detach();
  result.next_draw = torch::rand({3});
  result.state = state.tensors();
  return result;
}

// RapidCheck's number of cases can be set from outside: RC_PARAMS="max_success=5000".
void check(const std::string& what, const std::function<void()>& property) {
  EXPECT_TRUE(rc::check(what, property));
}

TEST(CheckpointProperty, AnyProgramCutIntoNonReentrantRegionsHasThePlainGradientsBitByBit) {
  const Bytes before = live_bytes();
  check("gradients are bitwise those of the plain program", [] {
    const Program program = *large(program_of(3, /*allow_reentrant=*/false));
    const int backwards = *rc::gen::inRange(1, 3);
    const bool by_grad = *rc::gen::arbitrary<bool>();
    RC_LOG() << describe(program) << std::endl;
    const Outcome plain = outcome(program, false, backwards, by_grad);
    const Outcome regions = outcome(program, true, backwards, by_grad);
    const auto same = same_bits(regions.gradients, plain.gradients);
    if (!same) RC_FAIL(same.message());
    RC_ASSERT(same_bits(regions.loss, plain.loss));
    RC_ASSERT(same_bits(regions.next_draw, plain.next_draw));
    RC_ASSERT(same_bits(regions.state, plain.state));
  });
  EXPECT_EQ(live_bytes(), before);
}

TEST(CheckpointProperty, AnyProgramCutIntoRegionsOfBothVariantsHasThePlainGradients) {
  const Bytes before = live_bytes();
  check("gradients are those of the plain program", [] {
    const Program program = *large(program_of(2, /*allow_reentrant=*/true));
    const int backwards = *rc::gen::inRange(1, 3);
    RC_LOG() << describe(program) << std::endl;
    const Outcome plain = outcome(program, false, backwards, false);
    const Outcome regions = outcome(program, true, backwards, false);
    for (std::size_t i = 0; i < plain.gradients.size(); ++i) {
      // A reentrant region adds up the gradients inside before those outside: another order of
      // rounding.
      RC_ASSERT(torch::allclose(regions.gradients[i], plain.gradients[i], 1e-10, 1e-10));
    }
    RC_ASSERT(same_bits(regions.loss, plain.loss));
    RC_ASSERT(same_bits(regions.next_draw, plain.next_draw));
    RC_ASSERT(same_bits(regions.state, plain.state));
    if (!has_reentrant(program)) RC_ASSERT(same_bits(regions.gradients, plain.gradients));
  });
  EXPECT_EQ(live_bytes(), before);
}

}  // namespace
}  // namespace reprise
