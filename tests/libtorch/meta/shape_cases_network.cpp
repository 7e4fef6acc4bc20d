// Calls of normalizations, attention, embeddings, dropout, losses and optimizers.
#include "tests/libtorch/meta/shape_cases.h"

namespace reprise::testing {
namespace {

using at::Tensor;

std::int64_t reduction(Draw& draw) { return draw.number(0, 2); }

Arguments layer_norm(Draw& draw, bool backward) {
  const std::vector<std::int64_t> normalized = draw.sizes(1, 2);
  std::vector<std::int64_t> sizes = draw.sizes(0, 2);
  const std::vector<std::int64_t> outer = sizes;
  sizes.insert(sizes.end(), normalized.begin(), normalized.end());
  const Tensor x = draw.real(sizes);
  const bool affine = draw.coin();
  const auto parameter = [&] {
    return affine ? draw.parameter(c10::multiply_integers(normalized)).view(normalized) : Tensor();
  };
  const Tensor weight = parameter(), bias = parameter();
  if (!backward) return {x, normalized, weight, bias, 1e-5};
  const auto made = at::native_layer_norm(x, normalized, weight, bias, 1e-5);
  const std::vector<bool> wanted = {draw.coin(), affine && draw.coin(), affine && draw.coin()};
  return {draw.like(std::get<0>(made)),
          x,
          normalized,
          std::get<1>(made),
          std::get<2>(made),
          weight,
          bias,
          c10::List<bool>({wanted[0], wanted[1], wanted[2]})};
}

struct Normalized {
  Tensor x, weight, bias, mean, variance;
};

Normalized normalized(Draw& draw) {
  std::vector<std::int64_t> sizes = draw.sizes(2, 5);
  sizes[0] = draw.number(2, 4);
  const std::int64_t channels = sizes[1];
  const bool affine = draw.coin();
  return {draw.image(sizes), affine ? draw.parameter(channels) : Tensor(),
          affine ? draw.parameter(channels) : Tensor(), draw.parameter(channels),
          draw.parameter(channels)};
}

Arguments batch_norm_backward(Draw& draw) {
  const Normalized n = normalized(draw);
  const bool training = draw.coin();
  const auto made =
      at::native_batch_norm(n.x, n.weight, n.bias, n.mean, n.variance, training, 0.1, 1e-5);
  return {draw.like(n.x),
          n.x,
          n.weight,
          n.mean,
          n.variance,
          std::get<1>(made),
          std::get<2>(made),
          training,
          1e-5,
          c10::List<bool>({draw.coin(), n.weight.defined(), n.weight.defined()})};
}

Arguments group_norm(Draw& draw, bool backward) {
  const std::int64_t groups = draw.number(1, 3);
  std::vector<std::int64_t> sizes = draw.sizes(3, 5);
  sizes[1] = groups * draw.number(1, 3);
  const Tensor x = draw.image(sizes);
  const bool affine = draw.coin();
  const Tensor weight = affine ? draw.parameter(sizes[1]) : Tensor();
  const Tensor bias = affine ? draw.parameter(sizes[1]) : Tensor();
  const std::int64_t pixels = c10::multiply_integers(x.sizes().slice(2));
  if (!backward) return {x, weight, bias, sizes[0], sizes[1], pixels, groups, 1e-5};
  const auto made =
      at::native_group_norm(x, weight, bias, sizes[0], sizes[1], pixels, groups, 1e-5);
  // LibTorch 2.13 ends the process where the input is channels last and its gradient is not wanted.
  const bool wanted = !x.is_contiguous() || draw.coin();
  return {draw.like(x),
          x,
          std::get<1>(made),
          std::get<2>(made),
          weight,
          sizes[0],
          sizes[1],
          pixels,
          groups,
          c10::List<bool>({wanted, affine, affine})};
}

Arguments weight_norm(Draw& draw, bool backward) {
  const std::int64_t rows = draw.number(1, 5);
  const Tensor v = draw.contiguous({rows, draw.number(1, 5)});
  const Tensor g = draw.contiguous({rows, 1});
  if (!backward) return {v, g, 0};
  const auto made = at::_weight_norm_interface(v, g, 0);
  return {draw.like(v), v, g, std::get<1>(made), 0};
}

Arguments attention(Draw& draw, bool backward) {
  const std::int64_t batch = draw.number(1, 3), heads = draw.number(1, 4),
                     width = draw.number(1, 9);
  const auto part = [&](std::int64_t rows) {
    if (draw.coin()) return draw.contiguous({batch, heads, rows, width});
    return draw.contiguous({batch, rows, 3, heads, width}).select(2, 1).transpose(1, 2);
  };
  const std::int64_t rows = draw.number(1, 6), others = draw.number(1, 6);
  const Tensor q = part(rows), k = part(others), v = part(others);
  const c10::IValue mask = draw.coin() ? c10::IValue(draw.contiguous({rows, others})) : kNone;
  if (!backward) return {q, k, v, 0.0, false, mask};
  const auto made = at::_scaled_dot_product_flash_attention_for_cpu(
      q, k, v, 0.0, false, mask.isNone() ? std::nullopt : std::optional(mask.toTensor()));
  return {draw.like(std::get<0>(made)),
          q,
          k,
          v,
          std::get<0>(made),
          std::get<1>(made),
          0.0,
          false,
          mask};
}

Arguments embedding_bag(Draw& draw) {
  const Tensor weight = draw.contiguous({7, draw.number(1, 9)});
  const Tensor indices = draw.whole({6}, 7);
  const Tensor offsets = at::tensor({0, 2, 3}, at::kLong);
  const std::int64_t mode = draw.number(0, 2);
  const bool scaled = mode == 0 && draw.coin();
  return {weight,
          indices,
          offsets,
          false,
          mode,
          false,
          scaled ? c10::IValue(draw.contiguous({6})) : kNone,
          draw.coin(),
          draw.coin() ? std::int64_t{-1} : std::int64_t{2}};
}

Arguments embedding_bag_dense_backward(Draw& draw) {
  const Tensor weight = draw.contiguous({7, draw.number(1, 9)});
  const Tensor indices = draw.whole({6}, 7);
  const Tensor offsets = at::tensor({0, 2, 3}, at::kLong);
  const std::int64_t mode = draw.number(0, 2);
  const auto made = at::_embedding_bag(weight, indices, offsets, false, mode, false, {}, false, 3);
  return {draw.like(std::get<0>(made)),
          indices,
          std::get<1>(made),
          std::get<2>(made),
          std::get<3>(made),
          7,
          false,
          mode,
          kNone,
          3};
}

Arguments embedding_bag_scales_backward(Draw& draw) {
  const Tensor weight = draw.contiguous({7, draw.number(1, 9)});
  const Tensor indices = draw.whole({6}, 7);
  const Tensor offsets = at::tensor({0, 2, 3}, at::kLong);
  const auto made = at::_embedding_bag(weight, indices, offsets, false, 0, false, {}, false, 3);
  return {draw.like(std::get<0>(made)), weight, indices, offsets, std::get<1>(made), 0, 3};
}

Arguments nll_loss2d(Draw& draw, bool backward) {
  const std::int64_t batch = draw.number(1, 3), kinds = draw.number(1, 4), side = draw.number(1, 4);
  // Its backward takes contiguous ones only.
  const Tensor x = draw.contiguous({batch, kinds, side, side});
  const Tensor target = draw.whole({batch, side, side}, kinds);
  const std::int64_t by = reduction(draw);
  if (!backward) return {x, target, kNone, by, -100};
  const auto made = at::nll_loss2d_forward(x, target, {}, by, -100);
  return {draw.like(std::get<0>(made)), x, target, kNone, by, -100, std::get<1>(made)};
}

Arguments pair(Draw& draw) {
  const std::vector<std::int64_t> sizes = draw.sizes(0, 4);
  return {draw.real(sizes), draw.real(sizes)};
}

Arguments with(Arguments arguments, const Arguments& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

Arguments multi_margin(Draw& draw, bool backward) {
  const std::int64_t rows = draw.number(1, 4), kinds = draw.number(1, 4);
  const Tensor x = draw.wide().real({rows, kinds});
  const Tensor target = draw.whole({rows}, kinds);
  const std::int64_t by = reduction(draw);
  if (!backward) return {x, target, 1, 1, kNone, by};
  const Tensor loss = at::multi_margin_loss(x, target, 1, 1, {}, by);
  return {draw.like(loss), x, target, 1, 1, kNone, by};
}

Arguments multilabel_margin(Draw& draw, bool backward) {
  const std::int64_t rows = draw.number(1, 4), kinds = draw.number(1, 4);
  const Tensor x = draw.wide().real({rows, kinds});
  const Tensor target = draw.whole({rows, kinds}, kinds);
  const std::int64_t by = reduction(draw);
  if (!backward) return {x, target, by};
  const auto made = at::multilabel_margin_loss_forward(x, target, by);
  return {draw.like(std::get<0>(made)), x, target, by, std::get<1>(made)};
}

// `lists` lists of tensors, the steps last.
Arguments fused(Draw& draw, std::size_t lists, const Arguments& more) {
  Arguments arguments;
  const std::vector<std::int64_t> sizes = draw.sizes(1, 2);
  for (std::size_t i = 0; i < lists; ++i) {
    arguments.emplace_back(std::vector<Tensor>{at::rand(sizes)});
  }
  return with(arguments, more);
}

Arguments adam(Draw& draw, const c10::IValue& rate) {
  Arguments arguments = fused(draw, 4, {});
  arguments.emplace_back(std::vector<Tensor>{});
  arguments.emplace_back(std::vector<Tensor>{at::ones({})});
  return with(arguments, {rate, 0.9, 0.99, 0.0, 1e-8, false, false});
}

Arguments adagrad(Draw& draw, const c10::IValue& rate) {
  Arguments arguments = fused(draw, 3, {});
  arguments.emplace_back(std::vector<Tensor>{at::ones({})});
  return with(arguments, {rate, 0.0, 0.0, 1e-8, false});
}

Arguments sgd(Draw& draw, const c10::IValue& rate) {
  return fused(draw, 3, {0.0, 0.9, rate, 0.0, false, false, false});
}

}  // namespace

std::vector<ShapeCase> network_cases() {
  return {
      {"aten::native_layer_norm", [](Draw& d) { return layer_norm(d, false); }},
      {"aten::native_layer_norm_backward", [](Draw& d) { return layer_norm(d, true); }},
      {"aten::native_batch_norm",
       [](Draw& d) -> Arguments {
         const Normalized n = normalized(d);
         return {n.x, n.weight, n.bias, n.mean, n.variance, d.coin(), 0.1, 1e-5};
       }},
      {"aten::_native_batch_norm_legit",
       [](Draw& d) -> Arguments {
         const Normalized n = normalized(d);
         return {n.x, n.weight, n.bias, n.mean, n.variance, d.coin(), 0.1, 1e-5};
       }},
      {"aten::_native_batch_norm_legit.no_stats",
       [](Draw& d) -> Arguments {
         const Normalized n = normalized(d);
         return {n.x, n.weight, n.bias, true, 0.1, 1e-5};
       }},
      {"aten::_batch_norm_with_update",
       [](Draw& d) -> Arguments {
         const Normalized n = normalized(d);
         return {n.x, n.weight, n.bias, n.mean, n.variance, 0.1, 1e-5};
       }},
      {"aten::native_batch_norm_backward", batch_norm_backward},
      {"aten::native_group_norm", [](Draw& d) { return group_norm(d, false); }},
      {"aten::native_group_norm_backward", [](Draw& d) { return group_norm(d, true); }},
      {"aten::_weight_norm_interface", [](Draw& d) { return weight_norm(d, false); }},
      {"aten::_weight_norm_interface_backward", [](Draw& d) { return weight_norm(d, true); }},
      {"aten::_scaled_dot_product_flash_attention_for_cpu",
       [](Draw& d) { return attention(d, false); }},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward",
       [](Draw& d) { return attention(d, true); }},
      {"aten::embedding_dense_backward",
       [](Draw& d) -> Arguments {
         return {d.real({3, 4, d.number(1, 5)}), d.whole({3, 4}, 7), 7, -1, false};
       }},
      {"aten::_embedding_bag", embedding_bag},
      {"aten::_embedding_bag_forward_only", embedding_bag},
      {"aten::_embedding_bag_dense_backward", embedding_bag_dense_backward},
      {"aten::_embedding_bag_per_sample_weights_backward", embedding_bag_scales_backward},
      {"aten::native_dropout",
       [](Draw& d) -> Arguments {
         return {d.real(d.sizes(0, 4)), 0.5, d.coin()};
       }},
      {"aten::native_dropout_backward",
       [](Draw& d) -> Arguments {
         const Tensor grad = d.real(d.sizes(0, 4));
         return {grad, at::ones_like(grad, at::kBool), 2.0};
       }},
      {"aten::huber_loss",
       [](Draw& d) {
         return with(pair(d), {reduction(d), 1.0});
       }},
      {"aten::huber_loss_backward.out",
       [](Draw& d) -> Arguments {
         const Arguments both = pair(d);
         const Tensor x = both[0].toTensor();
         return {d.like(x), x, both[1], reduction(d), 1.0, at::zeros_like(x)};
       }},
      {"aten::smooth_l1_loss_backward.grad_input",
       [](Draw& d) -> Arguments {
         const Arguments both = pair(d);
         const Tensor x = both[0].toTensor();
         return {d.like(x), x, both[1], reduction(d), 1.0, at::zeros_like(x)};
       }},
      {"aten::mse_loss_backward",
       [](Draw& d) -> Arguments {
         const Arguments both = pair(d);
         return {d.like(both[0].toTensor()), both[0], both[1], reduction(d)};
       }},
      {"aten::binary_cross_entropy",
       [](Draw& d) {
         return with(pair(d), {kNone, reduction(d)});
       }},
      {"aten::binary_cross_entropy_backward",
       [](Draw& d) -> Arguments {
         const Arguments both = pair(d);
         return {d.like(both[0].toTensor()), both[0], both[1], kNone, reduction(d)};
       }},
      {"aten::nll_loss2d_forward", [](Draw& d) { return nll_loss2d(d, false); }},
      {"aten::nll_loss2d_backward", [](Draw& d) { return nll_loss2d(d, true); }},
      {"aten::multi_margin_loss", [](Draw& d) { return multi_margin(d, false); }},
      {"aten::multi_margin_loss_backward", [](Draw& d) { return multi_margin(d, true); }},
      {"aten::multilabel_margin_loss_forward", [](Draw& d) { return multilabel_margin(d, false); }},
      {"aten::multilabel_margin_loss_backward", [](Draw& d) { return multilabel_margin(d, true); }},
      {"aten::_fused_adagrad_", [](Draw& d) { return adagrad(d, 0.1); }},
      {"aten::_fused_adagrad_.tensor_lr", [](Draw& d) { return adagrad(d, at::ones({})); }},
      {"aten::_fused_adam_", [](Draw& d) { return adam(d, 0.1); }},
      {"aten::_fused_adam_.tensor_lr", [](Draw& d) { return adam(d, at::ones({})); }},
      {"aten::_fused_adamw_", [](Draw& d) { return adam(d, 0.1); }},
      {"aten::_fused_adamw_.tensor_lr", [](Draw& d) { return adam(d, at::ones({})); }},
      {"aten::_fused_sgd_", [](Draw& d) { return sgd(d, 0.1); }},
      {"aten::_fused_sgd_.tensor_lr", [](Draw& d) { return sgd(d, at::ones({})); }},
      {"aten::_amp_foreach_non_finite_check_and_unscale_",
       [](Draw& d) {
         return fused(d, 1, {at::zeros({1}), at::ones({1})});
       }},
  };
}

}  // namespace reprise::testing
