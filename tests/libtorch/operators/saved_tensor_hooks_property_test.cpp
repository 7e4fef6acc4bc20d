// Any graph, any scopes: random programs of operators, with identity, copying and offloading scopes
// (and ones that hide them) opened and closed at random points, must give the plain program's
// gradients, of first and second order, bit by bit, and leave nothing alive.
#include <rapidcheck.h>

#include <algorithm>
#include <variant>

#include "tests/libtorch/operators/hooks_testing.h"

namespace reprise {
namespace {

using namespace reprise::testing;

// One step: an operator on two of the values so far, or a scope around the following ones.
enum class Kind { kOperator, kIdentity, kCopying, kSaveOnCpu, kNone, kClose };
struct Step {
  Kind kind = Kind::kOperator;
  int op = 0;
  std::size_t a = 0, b = 0;
};
using Program = std::vector<Step>;

void showValue(const Step& step, std::ostream& out) {
  out << "{kind " << static_cast<int>(step.kind) << ", op " << step.op << ", " << step.a << ", "
      << step.b << "}";
}

constexpr int kOperators = 14;

// Every value is a 4 x 4 matrix, so that any operator takes any value.
at::Tensor apply(int op, const at::Tensor& a, const at::Tensor& b) {
  switch (op) {
    case 0:
      return a.sin();
    case 1:
      return a.tanh().exp();
    case 2:
      return a.softmax(1);
    case 3:
      return (a * a + 1).sqrt();
    case 4:
      return a * b;
    case 5:
      return a.matmul(b).tanh();
    case 6:
      return torch::addmm(a, b.t(), a).sigmoid();
    case 7:
      return torch::cat({a.narrow(0, 0, 2), b.narrow(0, 2, 2)}, 0);
    case 8:
      return torch::where(a > b, a, b.sin());
    case 9:
      return (a + b).mul_(a).tanh();  // in place on a fresh value
    case 10: {
      at::Tensor fresh = a.clone();
      fresh.select(1, 0).mul_(b.select(0, 1));
      return fresh.cos();
    }
    case 11:
      return torch::layer_norm(a, {4}, b.select(0, 0), b.select(0, 1));
    case 12:
      return a.gather(1, b.argsort(std::int64_t{1})) * b.cumsum(0).tanh();
    default:
      return torch::gelu(a - b);
  }
}

using Scope =
    std::variant<std::monostate, std::unique_ptr<CountingHooks>, std::unique_ptr<SaveOnCpuScope>,
                 std::unique_ptr<NoSavedTensorHooksScope>>;

// Runs the program, with its scopes or without; the innermost scope is closed first.
at::Tensor run(const Program& program, const Tensors& leaves, HookCounts* counts) {
  Tensors values = leaves;
  std::vector<Scope> scopes;
  for (const Step& step : program) {
    if (step.kind == Kind::kOperator) {
      values.push_back(
          apply(step.op, values[step.a % values.size()], values[step.b % values.size()]));
    } else if (counts == nullptr) {
      continue;
    } else if (step.kind == Kind::kIdentity) {
      scopes.emplace_back(std::make_unique<CountingHooks>(*counts));
    } else if (step.kind == Kind::kCopying) {
      scopes.emplace_back(std::make_unique<CountingHooks>(*counts, Keeps::kCopy));
    } else if (step.kind == Kind::kSaveOnCpu) {
      scopes.emplace_back(std::make_unique<SaveOnCpuScope>());
    } else if (step.kind == Kind::kNone) {
      scopes.emplace_back(std::make_unique<NoSavedTensorHooksScope>());
    } else if (!scopes.empty()) {
      scopes.pop_back();
    }
  }
  at::Tensor sum = values.back().sum();
  for (std::size_t i = leaves.size(); i + 1 < values.size(); ++i) sum = sum + values[i].mean();
  while (!scopes.empty()) scopes.pop_back();
  return sum;
}

Tensors both_orders(const at::Tensor& loss, const Tensors& leaves) {
  Tensors gradients = torch::autograd::grad({loss}, leaves, {}, true, true, /*allow_unused=*/true);
  at::Tensor norm = torch::zeros({});
  for (const at::Tensor& gradient : gradients) {
    if (gradient.defined()) norm = norm + gradient.pow(2).sum();
  }
  if (norm.requires_grad()) {
    const Tensors second =
        torch::autograd::grad({norm}, leaves, {}, false, false, /*allow_unused=*/true);
    gradients.insert(gradients.end(), second.begin(), second.end());
  }
  return gradients;
}

rc::Gen<Program> programs() {
  const auto step = rc::gen::construct<Step>(rc::gen::weightedElement<Kind>({{12, Kind::kOperator},
                                                                             {2, Kind::kIdentity},
                                                                             {2, Kind::kCopying},
                                                                             {1, Kind::kSaveOnCpu},
                                                                             {1, Kind::kNone},
                                                                             {3, Kind::kClose}}),
                                             rc::gen::inRange(0, kOperators),
                                             rc::gen::inRange<std::size_t>(0, 64),
                                             rc::gen::inRange<std::size_t>(0, 64));
  return rc::gen::container<Program>(step);
}

TEST(SavedTensorHooksProperty, RandomScopesInRandomGraphsChangeNoGradientAndLeakNothing) {
  const bool passed = rc::check([] {
    const Program program = *programs();
    torch::manual_seed(*rc::gen::inRange(0, 1000));
    const Tensors leaves = {leaf({4, 4}), leaf({4, 4})};
    const Tensors expected = both_orders(run(program, leaves, nullptr), leaves);
    HookCounts counts;
    GraphWatch graph;
    {
      const at::Tensor loss = run(program, leaves, &counts);
      graph.add(loss);
      const auto equal = same_bits(both_orders(loss, leaves), expected);
      if (!equal) RC_FAIL(equal.message());
    }
    RC_ASSERT(counts.alive == 0);
    RC_ASSERT(graph.alive().empty());
    RC_CLASSIFY(counts.packs > 0, "packed");
  });
  EXPECT_TRUE(passed);
}

TEST(SavedTensorHooksProperty, AScopeAroundTheWholeStepChangesNoGradientEither) {
  const bool passed = rc::check([] {
    const Program program = *programs();
    torch::manual_seed(*rc::gen::inRange(0, 1000));
    const Tensors leaves = {leaf({4, 4}), leaf({4, 4})};
    const Tensors expected = both_orders(run(program, leaves, nullptr), leaves);
    HookCounts outer, inner;
    {
      // Backward of first order saves tensors inside this scope as well.
      const CountingHooks scope(outer);
      const auto equal = same_bits(both_orders(run(program, leaves, &inner), leaves), expected);
      if (!equal) RC_FAIL(equal.message());
    }
    RC_ASSERT(outer.alive == 0);
    RC_ASSERT(inner.alive == 0);
  });
  EXPECT_TRUE(passed);
}

}  // namespace
}  // namespace reprise
