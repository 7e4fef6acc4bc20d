// Calls of element-wise operators, reductions, indexing and random draws.
#include "tests/libtorch/meta/shape_cases.h"

namespace reprise::testing {
namespace {

using at::Tensor;

Tensor any(Draw& draw) { return draw.real(draw.sizes(0, 4)); }
Tensor some(Draw& draw) { return draw.real(draw.sizes(1, 4)); }

// Two that broadcast.
Arguments two(Draw& draw) {
  const Sizes sizes = draw.sizes(1, 4);
  Sizes other = sizes;
  if (draw.coin()) other[0] = 1;
  if (draw.coin()) other.erase(other.begin());
  return {draw.real(sizes), draw.real(other)};
}

Arguments two_whole(Draw& draw) {
  const Sizes sizes = draw.sizes(1, 3);
  return {draw.whole(sizes, 5), draw.whole(sizes, 5)};
}

ShapeCase unary(const char* op, const Arguments& more = {}) {
  return {op, [more](Draw& d) {
            Arguments arguments = {any(d)};
            arguments.insert(arguments.end(), more.begin(), more.end());
            return arguments;
          }};
}

ShapeCase unary_out(const char* op, const Arguments& more = {}) {
  return {op, [more](Draw& d) {
            Arguments arguments = {any(d)};
            arguments.insert(arguments.end(), more.begin(), more.end());
            arguments.emplace_back(d.nothing(d.dtype));
            return arguments;
          }};
}

ShapeCase backward(const char* op, const Arguments& more = {}) {
  return {op, [more](Draw& d) {
            const Tensor x = any(d);
            Arguments arguments = {d.real(x.sizes()), x};
            arguments.insert(arguments.end(), more.begin(), more.end());
            return arguments;
          }};
}

ShapeCase logical_out(const char* op) {
  return {op, [](Draw& d) {
            Arguments arguments = two(d);
            arguments.emplace_back(d.nothing(at::kBool));
            return arguments;
          }};
}

ShapeCase of_parts_out(const char* op) {
  return {op, [](Draw& d) -> Arguments {
            const Sizes sizes = d.sizes(1, 3);
            return {at::rand(sizes), at::rand(sizes), d.nothing(at::kComplexFloat)};
          }};
}

Arguments where(Draw& draw) {
  const Arguments both = two(draw);
  return {draw.real(both[0].toTensor().sizes()) > 0.5, both[0], both[1]};
}

c10::IValue some_dims(Draw& draw, std::int64_t dims) {
  if (draw.coin()) return kNone;
  Sizes chosen = draw.permutation(dims);
  chosen.resize(static_cast<std::size_t>(draw.number(1, dims)));
  return chosen;
}

Arguments deviation(Draw& draw) {
  const Tensor x = some(draw);
  return {x, some_dims(draw, x.dim()), 0, draw.coin()};
}

Arguments one_dim(Draw& draw, const Arguments& before, bool out) {
  const Tensor x = some(draw);
  Arguments arguments = {x};
  arguments.insert(arguments.end(), before.begin(), before.end());
  arguments.emplace_back(draw.number(0, x.dim() - 1));
  arguments.emplace_back(draw.coin());
  if (out) {
    arguments.emplace_back(draw.nothing(x.scalar_type()));
    arguments.emplace_back(draw.nothing(at::kLong));
  }
  return arguments;
}

Arguments distances(Draw& draw, bool backward) {
  draw.wide();
  const std::int64_t width = draw.number(1, 4);
  const Tensor x = draw.contiguous({2, draw.number(1, 4), width});
  const Tensor y = draw.contiguous({draw.coin() ? 1 : 2, draw.number(1, 4), width});
  if (!backward) return {x, y, 1.0, kNone};
  const Tensor y2 = y.expand({2, y.size(1), width}).contiguous();
  const Tensor made = at::_cdist_forward(x, y2, 1.0, {});
  return {draw.like(made), x, y2, 1.0, made};
}

Arguments selected(Draw& draw) {
  const Tensor x = some(draw);
  const std::int64_t dim = draw.number(0, x.dim() - 1);
  return {x, dim, draw.whole({draw.number(1, 6)}, x.size(dim))};
}

std::vector<ShapeCase> reduction_cases() {
  std::vector<ShapeCase> cases;
  for (const char* op : {"max", "min", "median", "nanmedian", "_aminmax"}) {
    cases.push_back(unary((std::string("aten::") + op).c_str()));
  }
  for (const char* op : {"std", "var", "std_mean", "var_mean"}) {
    cases.push_back({std::string("aten::") + op + ".correction", deviation});
  }
  cases.push_back(unary("aten::prod", {kNone}));
  cases.push_back({"aten::nansum", [](Draw& d) -> Arguments {
                     const Tensor x = some(d);
                     return {x, some_dims(d, x.dim()), d.coin(), kNone};
                   }});
  cases.push_back({"aten::count_nonzero.dim_IntList", [](Draw& d) -> Arguments {
                     const Tensor x = some(d);
                     return {x, Sizes{d.number(0, x.dim() - 1)}};
                   }});
  cases.push_back({"aten::mode", [](Draw& d) { return one_dim(d, {}, false); }});
  cases.push_back({"aten::median.dim_values", [](Draw& d) { return one_dim(d, {}, true); }});
  cases.push_back({"aten::nanmedian.dim_values", [](Draw& d) { return one_dim(d, {}, true); }});
  cases.push_back({"aten::kthvalue.values", [](Draw& d) { return one_dim(d, {1}, true); }});
  for (const char* op : {"aten::dot", "aten::vdot"}) {
    cases.push_back({op, [](Draw& d) -> Arguments {
                       const std::int64_t size = d.number(1, 6);
                       return {d.real({size}), d.real({size})};
                     }});
  }
  cases.push_back({"aten::trace", [](Draw& d) -> Arguments {
                     return {d.real({3, d.number(1, 4)}).to(at::kFloat)};
                   }});
  cases.push_back({"aten::_cdist_forward", [](Draw& d) { return distances(d, false); }});
  cases.push_back({"aten::_cdist_backward", [](Draw& d) { return distances(d, true); }});
  return cases;
}

std::vector<ShapeCase> indexing_cases() {
  return {
      {"aten::index_select", selected},
      {"aten::index_select.out",
       [](Draw& d) {
         Arguments arguments = selected(d);
         arguments.emplace_back(d.nothing(d.dtype));
         return arguments;
       }},
      {"aten::take",
       [](Draw& d) -> Arguments {
         const Tensor x = some(d);
         return {x, d.whole(d.sizes(0, 3), x.numel())};
       }},
      {"aten::flip",
       [](Draw& d) -> Arguments {
         const Tensor x = some(d);
         return {x, Sizes{d.number(0, x.dim() - 1)}};
       }},
      {"aten::roll",
       [](Draw& d) -> Arguments {
         const Tensor x = some(d);
         return {x, Sizes{1}, Sizes{d.number(0, x.dim() - 1)}};
       }},
      {"aten::unfold_backward",
       [](Draw& d) -> Arguments {
         const Tensor x = d.real({d.number(1, 3), d.number(4, 8)});
         return {d.like(x.unfold(1, 3, 2)), x.sizes().vec(), 1, 3, 2};
       }},
      {"aten::repeat_interleave.Tensor",
       [](Draw& d) -> Arguments {
         const Tensor repeats = d.whole({4}, 3);
         return {repeats, repeats.sum().item<std::int64_t>()};
       }},
      {"aten::searchsorted.Tensor",
       [](Draw& d) -> Arguments {
         return {at::arange(5, d.dtype), some(d), d.coin(), d.coin()};
       }},
      {"aten::bucketize.Tensor",
       [](Draw& d) -> Arguments {
         return {some(d), at::arange(5, d.dtype), d.coin(), d.coin()};
       }},
      {"aten::_logcumsumexp",
       [](Draw& d) -> Arguments {
         return {some(d), 0};
       }},
      {"aten::_cummax_helper",
       [](Draw& d) -> Arguments {
         const Tensor x = some(d);
         return {x, at::empty(x.sizes(), x.options()), at::empty(x.sizes(), at::kLong), 0};
       }},
      {"aten::_cummin_helper",
       [](Draw& d) -> Arguments {
         const Tensor x = some(d);
         return {x, at::empty(x.sizes(), x.options()), at::empty(x.sizes(), at::kLong), 0};
       }},
  };
}

std::vector<ShapeCase> random_cases() {
  return {
      unary_out("aten::bernoulli.out", {kNone}),
      unary("aten::poisson", {kNone}),
      {"aten::_standard_gamma",
       [](Draw& d) -> Arguments {
         return {any(d.wide()), kNone};
       }},
      {"aten::rrelu_with_noise",
       [](Draw& d) -> Arguments {
         const Tensor x = any(d);
         return {x, at::empty_like(x), 0.1, 0.3, d.coin(), kNone};
       }},
      {"aten::multinomial",
       [](Draw& d) -> Arguments {
         return {d.contiguous(d.coin() ? Sizes{6} : Sizes{3, 6}), d.number(1, 4), d.coin(), kNone};
       }},
      {"aten::randperm.generator_out",
       [](Draw& d) -> Arguments {
         return {d.number(0, 6), kNone, d.nothing(at::kLong)};
       }},
  };
}

std::vector<ShapeCase> pointwise_cases() {
  return {
      unary("aten::relu"),
      unary("aten::hardswish"),
      unary_out("aten::hardswish.out"),
      backward("aten::hardswish_backward"),
      unary("aten::hardtanh", {-1, 1}),
      unary_out("aten::hardtanh.out", {-1, 1}),
      backward("aten::hardtanh_backward", {-1, 1}),
      unary("aten::logit", {kNone}),
      unary_out("aten::logit.out", {kNone}),
      unary("aten::isnan"),
      {"aten::floor_divide", two},
      {"aten::floor_divide.out",
       [](Draw& d) {
         Arguments arguments = two(d);
         arguments.emplace_back(d.nothing(d.dtype));
         return arguments;
       }},
      {"aten::rsub.Tensor", two},
      {"aten::__lshift__.Tensor", two_whole},
      {"aten::__rshift__.Tensor", two_whole},
      unary_out("aten::abs.out"),
      unary_out("aten::angle.out"),
      of_parts_out("aten::complex.out"),
      unary_out("aten::conj_physical.out"),
      logical_out("aten::logical_and.out"),
      {"aten::logical_not.out",
       [](Draw& d) -> Arguments {
         return {any(d), d.nothing(at::kBool)};
       }},
      logical_out("aten::logical_or.out"),
      logical_out("aten::logical_xor.out"),
      unary_out("aten::nan_to_num.out", {kNone, kNone, kNone}),
      of_parts_out("aten::polar.out"),
      {"aten::where.self", where},
      {"aten::where.self_out",
       [](Draw& d) {
         Arguments arguments = where(d);
         arguments.emplace_back(d.nothing(d.dtype));
         return arguments;
       }},
      {"aten::_prelu_kernel",
       [](Draw& d) -> Arguments {
         const Tensor x = some(d);
         return {x, d.contiguous(Sizes(static_cast<std::size_t>(x.dim()), 1))};
       }},
      {"aten::_prelu_kernel_backward",
       [](Draw& d) -> Arguments {
         const Tensor x = some(d);
         return {d.real(x.sizes()), x, d.contiguous(Sizes(static_cast<std::size_t>(x.dim()), 1))};
       }},
      unary("aten::log_sigmoid_forward"),
      {"aten::log_sigmoid_backward",
       [](Draw& d) -> Arguments {
         const Tensor x = any(d);
         const auto made = at::log_sigmoid_forward(x);
         return {d.real(x.sizes()), x, std::get<1>(made)};
       }},
      {"aten::glu_backward",
       [](Draw& d) -> Arguments {
         const Tensor x = d.real({d.number(1, 4), 2 * d.number(1, 3), 2});
         return {d.like(at::glu(x, 1)), x, 1};
       }},
  };
}

}  // namespace

std::vector<ShapeCase> element_cases() {
  std::vector<ShapeCase> cases;
  for (const auto& more :
       {pointwise_cases(), reduction_cases(), indexing_cases(), random_cases()}) {
    cases.insert(cases.end(), more.begin(), more.end());
  }
  return cases;
}

}  // namespace reprise::testing
