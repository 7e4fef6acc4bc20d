// Random programs for steps under a budget: those of the regions' tests, and what a region's
// function may not do but a step may: writes that autograd does not see, memory that several
// values share, results given by out=, lists, complex numbers.
#pragma once

#include "tests/region/random_program.h"

namespace reprise::testing {

inline constexpr int kMoreKinds = 18;

// As apply(), of the kinds from kKinds on. Every value is a 4 x 4 matrix of doubles.
inline Tensors apply_more(int kind, const at::Tensor& a, const at::Tensor& b, const at::Tensor& w) {
  const at::Tensor plain = a.detach();
  const bool may_write = !a.is_leaf() && a.is_non_overlapping_and_dense();
  switch (kind - kKinds) {
    case 0:  // unseen by autograd; whoever saved it reads the new values
      if (may_write) a.data().mul_(0.5).add_(0.25);
      return {a * b};
    case 1:
      if (may_write) a.data().select(0, 2).copy_(b.detach().select(1, 1));
      return {a.sin()};
    case 2:  // a parameter that others have read
      w.data().mul_(0.75);
      return {a * w};
    case 3: {
      at::Tensor out = plain * 2;
      at::add_out(out, plain, b.detach());
      at::mul_out(out, out, plain);
      return {a * out};
    }
    case 4: {
      at::Tensor wide = at::empty({8, 4}, a.options());
      at::cat_out(wide, {plain, b.detach()});
      at::Tensor half = wide.narrow(0, 2, 4);
      at::tanh_out(half, plain);
      return {a * wide.narrow(0, 1, 4)};
    }
    case 5: {
      Tensors list{plain.clone(), b.detach().clone(), w.detach() * 2};
      at::_foreach_mul_(list, 0.5);
      at::_foreach_add_(list, {list[1], list[2], list[0]});
      return {a * list[0], b * list[1] + list[2]};
    }
    case 6: {
      const at::Tensor sums = plain.clone();
      at::_foreach_add_({sums[0], sums[1], sums[3]}, {b.detach()[1], sums[2], w.detach()[0]});
      return {a * sums};
    }
    case 7: {
      const Tensors rows = (a * b).unbind(0);
      return {at::stack({rows[3], rows[1], rows[1], rows[0]})};
    }
    case 8: {
      const Tensors parts = a.split({1, 3}, 1);
      return {at::cat({parts[1].tanh(), parts[0]}, 1),
              at::hstack({parts[0] * b, parts[1]}).narrow(1, 0, 4)};
    }
    case 9: {
      const at::Tensor z = at::complex(a.tanh(), b.tanh());
      return {at::real(z.conj().matmul(z.t())), at::imag(z.conj() * z.exp()).neg()};
    }
    case 10: {
      at::Tensor z = at::complex(plain.tanh(), b.detach().tanh());
      at::imag(z.conj()).select(0, 1).add_(1);
      z.conj().mul_(2);
      return {a * at::view_as_real(z.resolve_conj()).select(2, 1)};
    }
    case 11: {
      const at::Tensor chosen = std::get<1>(plain.sort(1));
      const c10::List<std::optional<at::Tensor>> columns{std::nullopt, chosen.select(0, 0)};
      return {at::index(a, columns) + b,
              at::index_put(a * 1, columns, b.select(0, 0).expand({4, 4}))};
    }
    case 12: {
      at::Tensor memory = plain.exp();
      const at::Tensor before = memory.sin();
      memory.resize_({8, 4});
      memory.narrow(0, 4, 4).copy_(before);
      return {a * memory.narrow(0, 3, 4)};
    }
    case 13: {
      at::Tensor other = b.detach().cos(), memory = plain.exp();
      const at::Tensor before = memory.sin();
      memory.set_(other);
      memory.add_(1);
      return {a * other + before};
    }
    case 14: {  // made by hand
      const at::Tensor made = at::empty_like(plain);
      auto* const data = made.mutable_data_ptr<double>();
      for (int i = 0; i < 16; ++i) data[i] = 0.125 * i;
      return {a * made};
    }
    case 15: {
      auto [y, mean, deviation] = at::native_layer_norm(a, {4}, {}, {}, 1e-5);
      const at::Tensor before = y.detach().clone() * b;
      y.mul_(w);
      return {y, before + mean.detach() * deviation.detach()};
    }
    case 16: {  // part by part, with history
      at::Tensor buffer = b * 1;
      for (int i = 0; i < 4; ++i) buffer[i].copy_((buffer[i].clone() * a[i]).tanh());
      return {buffer};
    }
    default: {  // as the data say
      const double sum = plain.sum().item<double>();
      const at::Tensor large = at::nonzero(plain > 0);
      return {sum > 0 ? a * large.size(0) : b + large.size(0)};
    }
  }
}

inline void run_more(const Program& program, Tensors& values, const at::Tensor& w,
                     ProgramState& state) {
  for (const Step& step : program) {
    const at::Tensor a = values[step.a % values.size()], b = values[step.b % values.size()];
    Tensors made =
        step.kind < kKinds ? apply(step.kind, a, b, w, state) : apply_more(step.kind, a, b, w);
    for (at::Tensor& result : made) values.push_back(std::move(result));
  }
}

inline rc::Gen<Step> any_step() {
  return rc::gen::build<Step>(rc::gen::set(&Step::kind, rc::gen::inRange(0, kKinds + kMoreKinds)),
                              rc::gen::set(&Step::a, rc::gen::inRange<std::size_t>(0, 16)),
                              rc::gen::set(&Step::b, rc::gen::inRange<std::size_t>(0, 16)));
}

}  // namespace reprise::testing
