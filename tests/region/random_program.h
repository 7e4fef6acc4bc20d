// Random small programs of operators, cut at random points into nested regions: for tests that
// compare whatever is done to a program's graph with the plain program.
#pragma once

#include <rapidcheck.h>

#include <string>

#include "tests/region/testing.h"

namespace reprise::testing {

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

inline constexpr int kKinds = 24;

// What the program updates as it goes, as modules do with their buffers.
struct ProgramState {
  at::Tensor mean = torch::zeros({4}, torch::kDouble);
  at::Tensor variance = torch::ones({4}, torch::kDouble);
  at::Tensor direction = torch::full({4}, 0.5, torch::kDouble);
  at::Tensor count = torch::zeros({}, torch::kLong);
  at::Generator generator = at::detail::createCPUGenerator(5);

  Tensors tensors() const { return {mean, variance, direction, count, generator.get_state()}; }
};

// Runs one operator on values `a` and `b`, a parameter `w` and state; some have two results.
inline Tensors apply(int kind, const at::Tensor& a, const at::Tensor& b, const at::Tensor& w,
                     ProgramState& state) {
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
    case 19:
      return {torch::batch_norm(a, {}, {}, state.mean, state.variance, /*training=*/true, 0.1, 1e-5,
                                false)};
    case 20: {  // as spectral normalization
      const at::Tensor image = b.detach().tanh().mv(state.direction);
      state.direction.copy_(image / (1 + image.norm()));
      return {a * state.direction.clone()};
    }
    case 21:
      state.count.add_(1);
      return {(a * state.count.to(torch::kDouble)).sin()};
    case 22:
      return {a * torch::rand({4, 4}, state.generator, torch::dtype(torch::kDouble))};
    default:
      return {torch::layer_norm(a, {4}).matmul(w)};
  }
}

// Runs a program, with its regions or without, and appends what it makes to `values`.
inline void run(const Program& program, Tensors& values, const at::Tensor& w, ProgramState& state,
                bool with_regions) {
  for (const Step& step : program) {
    if (!step.is_region) {
      const at::Tensor a = values[step.a % values.size()], b = values[step.b % values.size()];
      for (at::Tensor& result : apply(step.kind, a, b, w, state))
        values.push_back(std::move(result));
      continue;
    }
    const auto body = [&w, &state, &step, with_regions](const Tensors& before) {
      Tensors inner = before;
      run(step.body, inner, w, state, with_regions);
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

inline bool has_reentrant(const Program& program) {
  for (const Step& step : program) {
    if (step.is_region && (step.reentrant || has_reentrant(step.body))) return true;
  }
  return false;
}

inline std::string describe(const Program& program) {
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

inline rc::Gen<Step> operator_step() {
  return rc::gen::build<Step>(rc::gen::set(&Step::kind, rc::gen::inRange(0, kKinds)),
                              rc::gen::set(&Step::a, rc::gen::inRange<std::size_t>(0, 12)),
                              rc::gen::set(&Step::b, rc::gen::inRange<std::size_t>(0, 12)));
}

// One to `longest` steps of the given kind.
inline rc::Gen<Program> steps(int longest, const rc::Gen<Step>& step) {
  return rc::gen::mapcat(rc::gen::inRange<std::size_t>(1, longest + 1), [step](std::size_t count) {
    return rc::gen::container<Program>(count, step);
  });
}

inline rc::Gen<Program> program_of(int depth, bool allow_reentrant) {
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
inline rc::Gen<Program> large(const rc::Gen<Program>& programs) {
  return rc::gen::resize(rc::kNominalSize, programs);
}

}  // namespace reprise::testing
