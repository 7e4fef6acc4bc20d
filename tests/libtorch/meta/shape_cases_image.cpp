// Calls of convolutions, pooling, padding and sampling.
#include "tests/libtorch/meta/shape_cases.h"

namespace reprise::testing {
namespace {

using at::Tensor;

struct Convolved {
  Tensor x, weight, bias;
  Sizes stride, padding, dilation, output_padding;
  bool transposed;
  std::int64_t groups;
};

Convolved convolved(Draw& draw) {
  const std::int64_t dims = draw.number(1, 3);
  Convolved made;
  made.transposed = draw.coin();
  made.groups = draw.number(1, 2);
  // One channel would lie in both orders at once. A single volume, for which LibTorch has kernels
  // of its own, may keep memory of the input's size.
  const std::int64_t in = made.groups * draw.number(2, 3), out = made.groups * draw.number(2, 3);
  Sizes x = {draw.number(dims == 3 ? 2 : 1, 3), in}, weight = {out, in / made.groups};
  if (made.transposed) weight = {in, out / made.groups};
  for (std::int64_t dim = 0; dim < dims; ++dim) {
    x.push_back(draw.number(5, 8));
    weight.push_back(draw.number(1, 3));
    made.stride.push_back(draw.number(1, 2));
    made.padding.push_back(draw.number(0, 1));
    made.dilation.push_back(draw.number(1, 2));
    made.output_padding.push_back(0);
  }
  made.x = draw.image(x);
  made.weight = draw.image(weight);
  made.bias = draw.coin() ? draw.contiguous({out}) : Tensor();
  return made;
}

Arguments convolution(Draw& draw) {
  const Convolved c = convolved(draw);
  return {c.x,        c.weight,     c.bias,           c.stride, c.padding,
          c.dilation, c.transposed, c.output_padding, c.groups};
}

Arguments convolution_backward(Draw& draw) {
  const Convolved c = convolved(draw);
  const Tensor y = at::convolution(c.x, c.weight, c.bias, c.stride, c.padding, c.dilation,
                                   c.transposed, c.output_padding, c.groups);
  const c10::IValue bias = c.bias.defined() ? c10::IValue(c.bias.sizes().vec()) : kNone;
  return {draw.like(y),
          c.x,
          c.weight,
          bias,
          c.stride,
          c.padding,
          c.dilation,
          c.transposed,
          c.output_padding,
          c.groups,
          c10::List<bool>({draw.coin(), true, c.bias.defined()})};
}

Tensor batched_image(Draw& draw, std::int64_t dims, std::int64_t least) {
  Sizes sizes;
  if (draw.coin()) sizes.push_back(draw.number(1, 3));
  sizes.push_back(draw.number(1, 4));
  for (std::int64_t dim = 0; dim < dims; ++dim) sizes.push_back(draw.number(least, 8));
  // Four sizes are a volume without a batch, which is no image.
  return dims == 3 && sizes.size() == 4 ? draw.contiguous(sizes) : draw.image(sizes);
}

Arguments adaptive(Draw& draw, std::int64_t dims, bool out) {
  const Tensor x = batched_image(draw, dims, 3);
  Sizes size;
  for (std::int64_t dim = 0; dim < dims; ++dim) size.push_back(draw.number(1, 3));
  if (out) return {x, size, draw.nothing(x.scalar_type())};
  return {x, size};
}

Arguments adaptive_backward(Draw& draw, std::int64_t dims) {
  const Arguments forward = adaptive(draw, dims, false);
  const Tensor x = forward[0].toTensor();
  const auto size = forward[1].toIntVector();
  return {
      draw.like(dims == 2 ? at::_adaptive_avg_pool2d(x, size) : at::_adaptive_avg_pool3d(x, size)),
      x};
}

Arguments max_pool3d(Draw& draw, bool backward) {
  const Tensor x = batched_image(draw, 3, 4);
  const Sizes kernel = {2, draw.number(1, 3), 3}, stride = {draw.number(1, 3)}, padding = {0, 0, 1};
  const bool ceil = draw.coin();
  if (!backward) return {x, kernel, stride, padding, Sizes{1}, ceil};
  const auto made = at::max_pool3d_with_indices(x, kernel, stride, padding, 1, ceil);
  return {
      draw.like(std::get<0>(made)), x, kernel, stride, padding, Sizes{1}, ceil, std::get<1>(made)};
}

Arguments max_unpool2d(Draw& draw) {
  const Tensor x = batched_image(draw, 2, 4);
  const auto made = at::max_pool2d_with_indices(x, 2, 2);
  return {std::get<0>(made), std::get<1>(made), x.sizes().slice(x.dim() - 2).vec()};
}

Arguments max_unpool3d(Draw& draw) {
  const Tensor x = batched_image(draw, 3, 4);
  const auto made = at::max_pool3d_with_indices(x, 2, 2);
  return {std::get<0>(made), std::get<1>(made), x.sizes().slice(x.dim() - 3).vec(), Sizes{2, 2, 2},
          Sizes{0, 0, 0}};
}

Sizes padding(Draw& draw, std::int64_t dims) {
  Sizes sizes;
  for (std::int64_t i = 0; i < 2 * dims; ++i) sizes.push_back(draw.number(0, 2));
  return sizes;
}

Arguments reflection(Draw& draw, bool backward) {
  const Tensor x = batched_image(draw, 2, 4);
  const Sizes by = padding(draw, 2);
  if (!backward) return {x, by};
  return {draw.like(at::reflection_pad2d(x, by)), x, by};
}

Arguments replication_backward(Draw& draw, std::int64_t dims) {
  const Tensor x = batched_image(draw, dims, 4);
  const Sizes by = padding(draw, dims);
  return {draw.like(dims == 2 ? at::replication_pad2d(x, by) : at::replication_pad3d(x, by)), x,
          by};
}

Arguments sampled(Draw& draw, std::int64_t dims, bool backward) {
  Sizes x = {draw.number(1, 3), draw.number(1, 3)}, grid = {x[0]};
  for (std::int64_t dim = 0; dim < dims; ++dim) {
    x.push_back(draw.number(2, 5));
    grid.push_back(draw.number(1, 4));
  }
  grid.push_back(dims);
  const Tensor image = draw.image(x), places = draw.contiguous(grid);
  const std::int64_t mode = draw.number(0, 1);
  if (!backward) return {image, places, mode, 0, false};
  const Tensor y = dims == 2 ? at::grid_sampler_2d(image, places, mode, 0, false)
                             : at::grid_sampler_3d(image, places, mode, 0, false);
  return {draw.like(y), image, places, mode, 0, false, c10::List<bool>({draw.coin(), true})};
}

Arguments columns(Draw& draw) {
  const Tensor x = batched_image(draw, 2, 5);
  return {x, Sizes{2, 3}, Sizes{1, 1}, Sizes{0, draw.number(0, 1)}, Sizes{draw.number(1, 2), 1}};
}

Arguments image_of_columns(Draw& draw) {
  const Arguments forward = columns(draw);
  const Tensor x = forward[0].toTensor();
  const Tensor y = at::im2col(x, forward[1].toIntVector(), forward[2].toIntVector(),
                              forward[3].toIntVector(), forward[4].toIntVector());
  return {y, x.sizes().slice(x.dim() - 2).vec(), forward[1], forward[2], forward[3], forward[4]};
}

}  // namespace

std::vector<ShapeCase> image_cases() {
  return {
      {"aten::convolution", convolution},
      {"aten::convolution_backward", convolution_backward},
      {"aten::im2col", columns},
      {"aten::col2im", image_of_columns},
      {"aten::_adaptive_avg_pool2d", [](Draw& d) { return adaptive(d, 2, false); }},
      {"aten::adaptive_avg_pool2d.out", [](Draw& d) { return adaptive(d, 2, true); }},
      {"aten::_adaptive_avg_pool2d_backward", [](Draw& d) { return adaptive_backward(d, 2); }},
      {"aten::_adaptive_avg_pool3d", [](Draw& d) { return adaptive(d, 3, false); }},
      {"aten::adaptive_avg_pool3d.out", [](Draw& d) { return adaptive(d, 3, true); }},
      {"aten::_adaptive_avg_pool3d_backward", [](Draw& d) { return adaptive_backward(d, 3); }},
      {"aten::max_pool3d_with_indices", [](Draw& d) { return max_pool3d(d, false); }},
      {"aten::max_pool3d_with_indices_backward", [](Draw& d) { return max_pool3d(d, true); }},
      {"aten::max_unpool2d", max_unpool2d},
      {"aten::max_unpool3d", max_unpool3d},
      {"aten::reflection_pad2d", [](Draw& d) { return reflection(d, false); }},
      {"aten::reflection_pad2d_backward", [](Draw& d) { return reflection(d, true); }},
      {"aten::replication_pad2d_backward", [](Draw& d) { return replication_backward(d, 2); }},
      {"aten::replication_pad3d_backward", [](Draw& d) { return replication_backward(d, 3); }},
      {"aten::grid_sampler_2d", [](Draw& d) { return sampled(d, 2, false); }},
      {"aten::grid_sampler_2d_backward", [](Draw& d) { return sampled(d, 2, true); }},
      {"aten::grid_sampler_3d", [](Draw& d) { return sampled(d, 3, false); }},
      {"aten::grid_sampler_3d_backward", [](Draw& d) { return sampled(d, 3, true); }},
      {"aten::pixel_shuffle",
       [](Draw& d) -> Arguments {
         return {d.image({d.number(1, 3), 8, 3, d.number(1, 4)}), 2};
       }},
      {"aten::pixel_unshuffle",
       [](Draw& d) -> Arguments {
         return {d.image({d.number(1, 3), 2, 4, 6}), 2};
       }},
      {"aten::channel_shuffle",
       [](Draw& d) -> Arguments {
         return {d.image({d.number(1, 3), 6, 3, d.number(1, 4)}), 3};
       }},
  };
}

}  // namespace reprise::testing
