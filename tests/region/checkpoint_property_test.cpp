// Any graph, any regions: random small programs of operators, cut at random points into nested
// regions of both variants, must give the gradients of the same program without regions.
#include <rapidcheck.h>

#include "tests/region/testing.h"

namespace reprise {
namespace {

using namespace reprise::testing;

// One step of a program. Values are numbered in order of appearance; every one is a 4 x 4 matrix,
// so that any operator takes any value. A region's body sees the values so far, and adds its own to
// them.
struct Step {
  int kind = 0;
  std::size_t a = 0, b = 0;
  // Only for regions.
  bool is_region = false;
  bool reentrant = false;
  EarlyStop early_stop = EarlyStop::kWhenCheaper;
  std::vector<Step> body;
};
using Program = std::vector<Step>;

constexpr int kKinds = 20;

// Runs one operator on values `a` and `b` and a parameter `w`; some have two results.
Tensors apply(int kind, const at::Tensor& a, const at::Tensor& b, const at::Tensor& w) {
  switch (kind) {
    case 0:
      return {a.sin()};
    case 1:
      return {a.tanh().exp()};
    case 2:
      return {a.sigmoid()};
    case 3:
      return {a.relu() + w};
    case 4:
      return {a.softmax(1)};
    case 5:
      return {a + b};
    case 6:
      return {a * b};
    case 7:
      return {a.matmul(b).tanh()};
    case 8:
      return {a - b * w};
    case 9:
      return {a.t()};
    case 10:  // views of views
      return {torch::cat({a.narrow(0, 0, 2), b.narrow(0, 1, 2)}, 0)};
    case 11:
      return {a.select(0, 1).unsqueeze(1).expand({4, 4})};
    case 12:  // in place on something fresh
      return {(a + b).mul_(w).tanh()};
    case 13: {
      at::Tensor fresh = a * w;
      fresh.select(1, 0).mul_(2);
      return {fresh.sin()};
    }
    case 14: {
      at::Tensor fresh = torch::zeros_like(a);
      fresh.narrow(0, 0, 2).copy_(a.narrow(0, 2, 2));
      fresh.add_(b);
      return {fresh};
    }
    case 15: {  // several results
      auto [values, indices] = a.sort(1);
      return {values, values.gather(1, indices) + b};
    }
    case 16: {
      const Tensors halves = (a * b).chunk(2, 1);
      return {torch::cat({halves[1], halves[0]}, 1),
              torch::cat({halves[0].exp().tanh(), halves[0]}, 1)};
    }
    case 17:
      return {torch::dropout(a, 0.5, /*train=*/true)};
    case 18:
      return {a * torch::rand_like(b)};
    default:
      return {torch::layer_norm(a, {4}).matmul(w)};
  }
}

// Runs a program, with its regions or without, and appends what it makes to `values`.
void run(const Program& program, Tensors& values, const at::Tensor& w, bool with_regions) {
  for (const Step& step : program) {
    if (!step.is_region) {
      const at::Tensor a = values[step.a % values.size()], b = values[step.b % values.size()];
      for (at::Tensor& result : apply(step.kind, a, b, w)) values.push_back(std::move(result));
      continue;
    }
    const auto body = [&w, &step, with_regions](const Tensors& before) {
      Tensors inner = before;
      run(step.body, inner, w, with_regions);
      inner.erase(inner.begin(), inner.begin() + static_cast<std::ptrdiff_t>(before.size()));
      return inner;
    };
    Tensors made;
    if (with_regions) {
      CheckpointOptions options;
      options.reentrant = step.reentrant;
      options.early_stop = step.reentrant ? EarlyStop::kWhenCheaper : step.early_stop;
      options.determinism_check = DeterminismCheck::kValues;
      made = checkpoint(options, body, values);
    } else {
      made = body(values);
    }
    for (at::Tensor& result : made) values.push_back(std::move(result));
  }
}

bool has_reentrant(const Program& program) {
  for (const Step& step : program) {
    if (step.is_region && (step.reentrant || has_reentrant(step.body))) return true;
  }
  return false;
}

std::string describe(const Program& program) {
  std::string text;
  for (const Step& step : program) {
    if (!text.empty()) text += ' ';
    if (!step.is_region) {
      text += std::to_string(step.kind) + '(' + std::to_string(step.a) + ',' +
              std::to_string(step.b) + ')';
    } else {
      text +=
          step.reentrant ? "reentrant" : "stop" + std::to_string(static_cast<int>(step.early_stop));
      text += '[' + describe(step.body) + ']';
    }
  }
  return text;
}

rc::Gen<Step> operator_step() {
  return rc::gen::build<Step>(rc::gen::set(&Step::kind, rc::gen::inRange(0, kKinds)),
                              rc::gen::set(&Step::a, rc::gen::inRange<std::size_t>(0, 12)),
                              rc::gen::set(&Step::b, rc::gen::inRange<std::size_t>(0, 12)));
}

// One to `longest` steps of the given kind.
rc::Gen<Program> steps(int longest, const rc::Gen<Step>& step) {
  return rc::gen::mapcat(rc::gen::inRange<std::size_t>(1, longest + 1), [step](std::size_t count) {
    return rc::gen::container<Program>(count, step);
  });
}

rc::Gen<Program> program_of(int depth, bool allow_reentrant) {
  if (depth == 0) return steps(5, operator_step());
  const rc::Gen<Step> region = rc::gen::build<Step>(
      rc::gen::set(&Step::is_region, rc::gen::just(true)),
      rc::gen::set(&Step::reentrant,
                   allow_reentrant ? rc::gen::arbitrary<bool>() : rc::gen::just(false)),
      rc::gen::set(&Step::early_stop, rc::gen::element(EarlyStop::kNever, EarlyStop::kWhenCheaper,
                                                       EarlyStop::kAlways)),
      rc::gen::set(&Step::body, program_of(depth - 1, allow_reentrant)));
  return steps(5, rc::gen::weightedOneOf<Step>({{2, operator_step()}, {1, region}}));
}

// RapidCheck begins with small values: of a range, only the first. Here every range is taken in
// full.
rc::Gen<Program> large(const rc::Gen<Program>& programs) {
  return rc::gen::resize(rc::kNominalSize, programs);
}

struct Outcome {
  Tensors gradients;
  at::Tensor loss;
  at::Tensor next_draw;
};

// A step in double precision: forward, backward, and the next random number.
Outcome outcome(const Program& program, bool with_regions, int backwards, bool by_grad) {
  torch::manual_seed(42);
  const auto doubles = torch::dtype(torch::kDouble);
  const at::Tensor x = torch::randn({4, 4}, doubles).requires_grad_(true);
  const at::Tensor y = torch::randn({4, 4}, doubles).requires_grad_(true);
  const at::Tensor w = torch::randn({4, 4}, doubles).requires_grad_(true);
  Tensors values = {x, y, x * y};
  run(program, values, w, with_regions);
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
    if (!has_reentrant(program)) RC_ASSERT(same_bits(regions.gradients, plain.gradients));
  });
  EXPECT_EQ(live_bytes(), before);
}

}  // namespace
}  // namespace reprise
