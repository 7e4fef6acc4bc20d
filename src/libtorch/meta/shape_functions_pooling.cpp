// Shapes of pooling, padding and other resampling of images.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <array>

#include "libtorch/meta/shape_functions.h"
#include "libtorch/meta/shape_table.h"

namespace reprise::libtorch {
namespace {

using at::IntArrayRef;
using at::Tensor;

// The batch, if there is one, and channels stay; what follows is given.
std::vector<std::int64_t> with_last(const Tensor& x, IntArrayRef last) {
  std::vector<std::int64_t> sizes(x.sizes().begin(), x.sizes().end() - last.size());
  sizes.insert(sizes.end(), last.begin(), last.end());
  return sizes;
}

void check_adaptive(const char* op, const Tensor& x, IntArrayRef output, std::size_t dims) {
  const auto rank = static_cast<std::int64_t>(dims);
  check_dims(op, x, rank + 1, rank + 2);
  check_no_empty_size(op, x, static_cast<std::size_t>(x.dim()) - dims);
  TORCH_CHECK(output.size() == dims, op, ": output_size is ", output, "; it must be ", dims,
              " numbers");
  check_numbers(op, "output_size", output, dims, 0);
}

Tensor adaptive_shape(const Tensor& x, IntArrayRef output) {
  check_adaptive("adaptive_avg_pool2d", x, output, 2);
  return formatted_result(x, with_last(x, output));
}

Tensor& adaptive_out_shape(const Tensor& x, IntArrayRef output, Tensor& out) {
  return resized_to(out, adaptive_shape(x, output));
}

// Volumes never stay channels last.
Tensor adaptive3d_shape(const Tensor& x, IntArrayRef output) {
  check_adaptive("adaptive_avg_pool3d", x, output, 3);
  return contiguous_result(x, with_last(x, output));
}

Tensor& adaptive3d_out_shape(const Tensor& x, IntArrayRef output, Tensor& out) {
  return resized_to(out, adaptive3d_shape(x, output));
}

Tensor adaptive3d_backward_shape(const Tensor&, const Tensor& x) {
  return contiguous_result(x, x.sizes());
}

Tensor adaptive_backward_shape(const Tensor&, const Tensor& x) {
  return formatted_result(x, x.sizes());
}

std::int64_t pool_size(std::int64_t given, std::int64_t kernel, std::int64_t stride,
                       std::int64_t padding, std::int64_t dilation, bool ceil) {
  const std::int64_t room = given + 2 * padding - dilation * (kernel - 1) - 1;
  std::int64_t count = (room + (ceil ? stride - 1 : 0)) / stride + 1;
  // No window starts in the padding after the end.
  if (ceil && (count - 1) * stride >= given + padding) --count;
  return count;
}

std::tuple<Tensor, Tensor> max_pool3d_shape(const Tensor& x, IntArrayRef kernel, IntArrayRef stride,
                                            IntArrayRef padding, IntArrayRef dilation, bool ceil) {
  constexpr const char* kOp = "max_pool3d";
  const IntArrayRef step = stride.empty() ? kernel : stride;
  check_dims(kOp, x, 4, 5);
  check_no_empty_size(kOp, x, x.dim() == 5 ? 1 : 0);
  check_numbers(kOp, "kernel_size", kernel, 3, 1);
  check_numbers(kOp, "stride", step, 3, 1);
  check_numbers(kOp, "padding", padding, 3, 0);
  check_numbers(kOp, "dilation", dilation, 3, 1);
  std::array<std::int64_t, 3> last{};
  for (std::size_t i = 0; i < 3; ++i) {
    TORCH_CHECK(at_dim(padding, i) <= at_dim(kernel, i) / 2, "max_pool3d: padding is ", padding,
                "; it must be at most half of kernel_size, ", kernel);
    last[i] = pool_size(x.size(static_cast<std::int64_t>(i) - 3), at_dim(kernel, i),
                        at_dim(step, i), at_dim(padding, i), at_dim(dilation, i), ceil);
    TORCH_CHECK(last[i] > 0, "max_pool3d: a window of ", kernel, " does not fit in ", x.sizes());
  }
  const std::vector<std::int64_t> sizes = with_last(x, last);
  return {formatted_result(x, sizes), formatted_result(x, sizes, at::kLong)};
}

Tensor max_pool3d_backward_shape(const Tensor&, const Tensor& x, IntArrayRef, IntArrayRef,
                                 IntArrayRef, IntArrayRef, bool, const Tensor&) {
  return formatted_result(x, x.sizes());
}

void check_unpool(const char* op, const Tensor& x, const Tensor& indices, IntArrayRef output,
                  std::size_t dims) {
  const auto rank = static_cast<std::int64_t>(dims);
  check_dims(op, x, rank + 1, rank + 2);
  check_sizes(op, "indices", indices, x.sizes());
  TORCH_CHECK(output.size() == dims, op, ": output_size is ", output, "; it must be ", dims,
              " numbers");
}

Tensor max_unpool2d_shape(const Tensor& x, const Tensor& indices, IntArrayRef output) {
  check_unpool("max_unpool2d", x, indices, output, 2);
  return formatted_result(x, with_last(x, output));
}

Tensor max_unpool3d_shape(const Tensor& x, const Tensor& indices, IntArrayRef output,
                          IntArrayRef stride, IntArrayRef padding) {
  check_unpool("max_unpool3d", x, indices, output, 3);
  check_numbers("max_unpool3d", "stride", stride, 3, 1);
  check_numbers("max_unpool3d", "padding", padding, 3, 0);
  return contiguous_result(x, with_last(x, output));
}

Tensor reflection_pad2d_shape(const Tensor& x, IntArrayRef padding) {
  check_dims("reflection_pad2d", x, 3, 4);
  TORCH_CHECK(padding.size() == 4 && std::max(padding[0], padding[1]) < x.size(-1) &&
                  std::max(padding[2], padding[3]) < x.size(-2),
              "reflection_pad2d: padding is ", padding,
              "; it must be four numbers, each below the input's size there, of ", x.sizes());
  const std::array<std::int64_t, 2> last = {x.size(-2) + padding[2] + padding[3],
                                            x.size(-1) + padding[0] + padding[1]};
  return formatted_result(x, with_last(x, last));
}

Tensor pad_backward_shape(const Tensor&, const Tensor& x, IntArrayRef) {
  return formatted_result(x, x.sizes());
}

Tensor grid_sampler_shape(const Tensor& x, const Tensor& grid, std::int64_t, std::int64_t, bool) {
  check_dims("grid_sampler", x, 4, 5);
  TORCH_CHECK(grid.dim() == x.dim() && grid.size(0) == x.size(0) && grid.size(-1) == x.dim() - 2,
              "grid_sampler: the grid's sizes are ", grid.sizes(), "; they must be the batch of ",
              x.sizes(), ", the result's size, and ", x.dim() - 2);
  return contiguous_result(x, with_last(x, grid.sizes().slice(1, grid.dim() - 2)));
}

std::tuple<Tensor, Tensor> grid_sampler_backward_shape(const Tensor&, const Tensor& x,
                                                       const Tensor& grid, std::int64_t,
                                                       std::int64_t, bool,
                                                       std::array<bool, 2> wanted) {
  const Tensor of_input = wanted[0] ? at::empty_like(x, at::MemoryFormat::Contiguous) : Tensor();
  return {of_input, at::empty_like(grid, at::MemoryFormat::Contiguous)};
}

Tensor pixel_shuffle_shape(const Tensor& x, std::int64_t factor) {
  TORCH_CHECK(x.dim() >= 3 && factor > 0 && x.size(-3) % (factor * factor) == 0,
              "pixel_shuffle: the factor is ", factor, "; its square must divide the channels of ",
              x.sizes());
  const std::array<std::int64_t, 3> last = {x.size(-3) / (factor * factor), x.size(-2) * factor,
                                            x.size(-1) * factor};
  return formatted_result(x, with_last(x, last));
}

Tensor pixel_unshuffle_shape(const Tensor& x, std::int64_t factor) {
  TORCH_CHECK(x.dim() >= 3 && factor > 0 && x.size(-2) % factor == 0 && x.size(-1) % factor == 0,
              "pixel_unshuffle: the factor is ", factor, "; it must divide the last two sizes of ",
              x.sizes());
  const std::array<std::int64_t, 3> last = {x.size(-3) * factor * factor, x.size(-2) / factor,
                                            x.size(-1) / factor};
  return formatted_result(x, with_last(x, last));
}

Tensor channel_shuffle_shape(const Tensor& x, std::int64_t groups) {
  TORCH_CHECK(x.dim() > 2 && groups > 0 && x.size(1) % groups == 0, "channel_shuffle: groups is ",
              groups, "; it must divide the channels of ", x.sizes());
  return formatted_result(x, x.sizes());
}

constexpr std::array kPooling = {
    shape_function<&adaptive_shape>("aten::_adaptive_avg_pool2d"),
    shape_function<&adaptive_out_shape>("aten::adaptive_avg_pool2d.out"),
    shape_function<&adaptive_backward_shape>("aten::_adaptive_avg_pool2d_backward"),
    shape_function<&adaptive3d_shape>("aten::_adaptive_avg_pool3d"),
    shape_function<&adaptive3d_out_shape>("aten::adaptive_avg_pool3d.out"),
    shape_function<&adaptive3d_backward_shape>("aten::_adaptive_avg_pool3d_backward"),
    shape_function<&max_pool3d_shape>("aten::max_pool3d_with_indices"),
    shape_function<&max_pool3d_backward_shape>("aten::max_pool3d_with_indices_backward"),
    shape_function<&max_unpool2d_shape>("aten::max_unpool2d"),
    shape_function<&max_unpool3d_shape>("aten::max_unpool3d"),
    shape_function<&reflection_pad2d_shape>("aten::reflection_pad2d"),
    shape_function<&pad_backward_shape>("aten::reflection_pad2d_backward"),
    shape_function<&pad_backward_shape>("aten::replication_pad2d_backward"),
    shape_function<&pad_backward_shape>("aten::replication_pad3d_backward"),
    shape_function<&grid_sampler_shape>("aten::grid_sampler_2d"),
    shape_function<&grid_sampler_backward_shape>("aten::grid_sampler_2d_backward"),
    shape_function<&grid_sampler_shape>("aten::grid_sampler_3d"),
    shape_function<&grid_sampler_backward_shape>("aten::grid_sampler_3d_backward"),
    shape_function<&pixel_shuffle_shape>("aten::pixel_shuffle"),
    shape_function<&pixel_unshuffle_shape>("aten::pixel_unshuffle"),
    shape_function<&channel_shuffle_shape>("aten::channel_shuffle"),
};

}  // namespace

ShapeGroup pooling_shapes() { return kPooling; }

}  // namespace reprise::libtorch
