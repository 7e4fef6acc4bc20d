// Shapes of convolutions of any dimension, and of the patches that some are made of.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>

#include "libtorch/meta/onednn.h"
#include "libtorch/meta/shape_functions.h"
#include "libtorch/meta/shape_table.h"

namespace reprise::libtorch {
namespace {

using at::IntArrayRef;
using at::Tensor;

struct Steps {
  IntArrayRef stride, dilation;
  std::int64_t groups;
};

// As LibTorch's kernels: channels last where the input or the weight is, but for volumes outside
// oneDNN and cuDNN, and for cuDNN's doubles.
at::MemoryFormat convolution_format(const Tensor& x, const Tensor& weight, const Steps& steps) {
  const at::MemoryFormat last = x.dim() == 5   ? at::MemoryFormat::ChannelsLast3d
                                : x.dim() == 4 ? at::MemoryFormat::ChannelsLast
                                               : at::MemoryFormat::Contiguous;
  const bool wanted = x.suggest_memory_format() == last || weight.suggest_memory_format() == last;
  const bool able = shapes_device() == c10::kCUDA
                        ? x.scalar_type() != at::kDouble
                        : x.dim() != 5 || onednn::takes_convolution(x, weight, steps.stride,
                                                                    steps.dilation, steps.groups);
  return wanted && able ? last : at::MemoryFormat::Contiguous;
}

Tensor of_format(const Tensor& like, IntArrayRef sizes, at::MemoryFormat format) {
  return at::empty(sizes, like.options(), format);
}

// Kernels see a sequence as an image of one row.
Tensor as_image(const Tensor& x) { return x.dim() == 3 ? x.unsqueeze(2) : x; }
Tensor as_given(const Tensor& made, const Tensor& x) {
  return x.dim() == 3 ? made.squeeze(2) : made;
}

// As LibTorch's check_shape_forward().
void check_convolution(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                       IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                       bool transposed, IntArrayRef output_padding, std::int64_t groups) {
  constexpr const char* kOp = "convolution";
  check_dims(kOp, x, 3, 5);
  TORCH_CHECK(weight.dim() == x.dim(), "convolution: the weight's sizes are ", weight.sizes(),
              "; there must be as many of them as of the input's, ", x.sizes());
  TORCH_CHECK(weight.scalar_type() == x.scalar_type(), "convolution: the weight is of ",
              weight.scalar_type(), ", the input of ", x.scalar_type(), "; they must be the same");
  const auto dims = static_cast<std::size_t>(x.dim() - 2);
  check_numbers(kOp, "stride", stride, dims, 1);
  check_numbers(kOp, "padding", padding, dims, 0);
  check_numbers(kOp, "dilation", dilation, dims, 1);
  if (transposed) check_numbers(kOp, "output_padding", output_padding, dims, 0);
  for (std::size_t i = 0; transposed && i < dims; ++i) {
    TORCH_CHECK(at_dim(output_padding, i) < std::max(at_dim(stride, i), at_dim(dilation, i)),
                "convolution: output_padding is ", output_padding, "; it must be below stride, ",
                stride, ", or dilation, ", dilation);
  }
  TORCH_CHECK(groups > 0, "convolution: groups is ", groups, "; it must be at least 1");
  TORCH_CHECK(weight.size(0) % groups == 0, "convolution: the weight's sizes are ", weight.sizes(),
              "; the first must be a multiple of groups, ", groups);
  const std::int64_t channels = transposed ? weight.size(0) : weight.size(1) * groups;
  TORCH_CHECK(x.size(1) == channels, "convolution: the input's sizes are ", x.sizes(),
              "; a weight of sizes ", weight.sizes(), " in ", groups, " groups takes ", channels,
              " channels");
  check_sizes(kOp, "bias", bias, {transposed ? weight.size(1) * groups : weight.size(0)});
}

Tensor convolution_shape(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                         IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                         bool transposed, IntArrayRef output_padding, std::int64_t groups) {
  check_convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups);
  std::vector<std::int64_t> sizes = {x.size(0),
                                     transposed ? weight.size(1) * groups : weight.size(0)};
  for (std::size_t i = 0; i + 2 < static_cast<std::size_t>(x.dim()); ++i) {
    const std::int64_t given = x.size(static_cast<std::int64_t>(i) + 2);
    const std::int64_t reach =
        at_dim(dilation, i) * (weight.size(static_cast<std::int64_t>(i) + 2) - 1) + 1;
    const std::int64_t around = at_dim(padding, i), step = at_dim(stride, i);
    sizes.push_back(transposed ? (given - 1) * step - 2 * around + reach + at_dim(output_padding, i)
                               : windows_in("convolution", given, around, reach, step));
  }
  const Tensor image = as_image(x), kernel = as_image(weight);
  if (x.dim() == 3) sizes.insert(sizes.begin() + 2, 1);
  return as_given(
      of_format(x, sizes, convolution_format(image, kernel, {stride, dilation, groups})), x);
}

ThreeTensors convolution_backward_shape(const Tensor& grad, const Tensor& x, const Tensor& weight,
                                        at::OptionalIntArrayRef, IntArrayRef stride, IntArrayRef,
                                        IntArrayRef dilation, bool transposed, IntArrayRef,
                                        std::int64_t groups, std::array<bool, 3> wanted) {
  const Tensor image = as_image(x), kernel = as_image(weight);
  const at::MemoryFormat format = convolution_format(image, kernel, {stride, dilation, groups});
  ThreeTensors grads;
  if (wanted[0]) std::get<0>(grads) = as_given(of_format(x, image.sizes(), format), x);
  if (wanted[1]) std::get<1>(grads) = as_given(of_format(weight, kernel.sizes(), format), x);
  const std::int64_t channels = transposed ? weight.size(1) * groups : weight.size(0);
  if (wanted[2]) std::get<2>(grads) = contiguous_result(grad, {channels});
  return grads;
}

std::vector<std::int64_t> with_batch(const Tensor& x, bool batched, std::int64_t rows,
                                     std::int64_t columns) {
  if (batched) return {x.size(0), rows, columns};
  return {rows, columns};
}

// Of both ways between images and their patches.
void check_patches(const char* op, IntArrayRef kernel, IntArrayRef dilation, IntArrayRef padding,
                   IntArrayRef stride) {
  check_numbers(op, "kernel_size", kernel, 2, 1);
  check_numbers(op, "dilation", dilation, 2, 1);
  check_numbers(op, "padding", padding, 2, 0);
  check_numbers(op, "stride", stride, 2, 1);
}

std::int64_t patches_of(const char* op, IntArrayRef image, IntArrayRef kernel, IntArrayRef dilation,
                        IntArrayRef padding, IntArrayRef stride) {
  std::int64_t patches = 1;
  for (std::size_t i = 0; i < 2; ++i) {
    const std::int64_t reach = at_dim(dilation, i) * (at_dim(kernel, i) - 1) + 1;
    patches *= windows_in(op, at_dim(image, i), at_dim(padding, i), reach, at_dim(stride, i));
  }
  return patches;
}

Tensor im2col_shape(const Tensor& x, IntArrayRef kernel, IntArrayRef dilation, IntArrayRef padding,
                    IntArrayRef stride) {
  check_patches("im2col", kernel, dilation, padding, stride);
  check_dims("im2col", x, 3, 4);
  check_no_empty_size("im2col", x, x.dim() == 4 ? 1 : 0);
  const std::int64_t patches =
      patches_of("im2col", x.sizes().slice(static_cast<std::size_t>(x.dim()) - 2), kernel, dilation,
                 padding, stride);
  const std::int64_t rows = x.size(-3) * at_dim(kernel, 0) * at_dim(kernel, 1);
  return contiguous_result(x, with_batch(x, x.dim() == 4, rows, patches));
}

Tensor col2im_shape(const Tensor& columns, IntArrayRef output, IntArrayRef kernel,
                    IntArrayRef dilation, IntArrayRef padding, IntArrayRef stride) {
  check_patches("col2im", kernel, dilation, padding, stride);
  check_numbers("col2im", "output_size", output, 2, 1);
  check_dims("col2im", columns, 2, 3);
  const std::int64_t pixels = at_dim(kernel, 0) * at_dim(kernel, 1);
  const std::int64_t patches = patches_of("col2im", output, kernel, dilation, padding, stride);
  TORCH_CHECK(columns.size(-2) % pixels == 0 && columns.size(-1) == patches,
              "col2im: the columns' sizes are ", columns.sizes(), "; the last must be ", patches,
              ", and the one before a multiple of ", pixels);
  std::vector<std::int64_t> sizes;
  if (columns.dim() == 3) sizes.push_back(columns.size(0));
  sizes.push_back(columns.size(-2) / pixels);
  sizes.push_back(at_dim(output, 0));
  sizes.push_back(at_dim(output, 1));
  // The memory is what held the columns.
  return contiguous_result(columns, columns.sizes()).resize_(sizes);
}

constexpr std::array kConvolution = {
    shape_function<&convolution_shape>("aten::convolution"),
    shape_function<&convolution_shape>("aten::convolution_overrideable"),
    shape_function<&convolution_backward_shape>("aten::convolution_backward"),
    shape_function<&im2col_shape>("aten::im2col"),
    shape_function<&col2im_shape>("aten::col2im"),
};

}  // namespace

ShapeGroup convolution_shapes() { return kConvolution; }

}  // namespace reprise::libtorch
