// The copies and when they live were read off the allocations of real calls.
#include "estimate/convolution_workspace.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/unsqueeze.h>

#include <algorithm>
#include <vector>

#include "core/rounding.h"
#include "libtorch/meta/onednn.h"

namespace reprise::estimate {

namespace {

std::int64_t size_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<std::int64_t>(tensor.nbytes()) : 0;
}

bool is_channels_last(const at::Tensor& tensor) {
  const auto format = tensor.suggest_memory_format();
  return format == at::MemoryFormat::ChannelsLast || format == at::MemoryFormat::ChannelsLast3d;
}

at::MemoryFormat format_of(const at::Tensor& image, bool is_channels_last) {
  if (!is_channels_last) return at::MemoryFormat::Contiguous;
  return image.dim() == 5 ? at::MemoryFormat::ChannelsLast3d : at::MemoryFormat::ChannelsLast;
}

// Kernels see a sequence as an image of one row.
at::Tensor as_image(const at::Tensor& x) {
  return x.defined() && x.dim() == 3 ? x.unsqueeze(2) : x;
}
// What a convolution is given for each dimension, of which a sequence gets one more.
std::vector<std::int64_t> numbers_for(const at::Tensor& x, const c10::IValue& value,
                                      std::int64_t for_the_row) {
  std::vector<std::int64_t> numbers = value.toIntVector();
  if (x.dim() == 3) numbers.insert(numbers.begin(), for_the_row);
  return numbers;
}

// Bytes of a convolution's three tensors in oneDNN's form; 0: kernels take LibTorch's.
struct Blocked {
  Blocked(const at::Tensor& x, const at::Tensor& y, const at::Tensor& weight, std::int64_t groups) {
    const std::int64_t together = libtorch::onednn::channels_together();
    if (together == 1 || is_channels_last(x) || is_channels_last(weight)) {
      form_of_weight = input_of_gradient = size_of(weight);
      return;
    }
    const auto whole = [together](std::int64_t channels) { return rounded_up(channels, together); };
    const auto blocks = [&](const at::Tensor& image) {
      return size_of(image) / image.size(1) * whole(image.size(1));
    };
    if (groups > 1) {
      const bool is_depthwise = weight.size(1) == 1;
      input = is_depthwise ? blocks(x) : size_of(x);
      output = is_depthwise ? blocks(y) : size_of(y);
      form_of_weight =
          is_depthwise ? size_of(weight) / weight.size(0) * whole(weight.size(0)) : size_of(weight);
      input_of_gradient = form_of_weight;
      gradient = input;
      return;
    }
    const std::int64_t each = size_of(weight) / (weight.size(0) * weight.size(1));
    const std::int64_t inner = weight.size(1), outer = whole(weight.size(0));
    // Kernels for a network's first layer read few channels as they lie.
    const bool is_first = inner < together;
    input = is_first ? 0 : blocks(x);
    output = blocks(y);
    gradient = blocks(x);
    form_of_weight = each * outer * (is_first ? inner : whole(inner));
    input_of_gradient = each * outer * whole(inner);
  }

  std::int64_t input = 0, output = 0, gradient = 0;
  std::int64_t form_of_weight = 0;
  std::int64_t input_of_gradient = 0;  // the weight, where the input's gradient is made
};

// Rows of patches, of all images at once.
std::int64_t patches(const at::Tensor& x, const at::Tensor& y, const at::Tensor& weight,
                     const std::vector<std::int64_t>& stride,
                     const std::vector<std::int64_t>& padding) {
  const std::int64_t kernel = c10::multiply_integers(weight.sizes().slice(2));
  const bool is_plain = kernel == 1 && std::ranges::all_of(stride, [](auto s) { return s == 1; }) &&
                        std::ranges::all_of(padding, [](auto p) { return p == 0; });
  if (is_plain || x.dim() != 4) return 0;
  return y.numel() / y.size(1) * x.size(1) * kernel * static_cast<std::int64_t>(x.itemsize());
}

bool is_any_empty(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& y) {
  return x.numel() == 0 || weight.numel() == 0 || y.numel() == 0;
}

}  // namespace

std::int64_t convolution_workspace(Values arguments, Values results) {
  const at::Tensor& given = arguments[0].toTensor();
  const at::Tensor x = as_image(given), weight = as_image(arguments[1].toTensor());
  const at::Tensor y = as_image(results[0].toTensor());
  if (is_any_empty(x, weight, y)) return 0;
  const auto stride = numbers_for(given, arguments[3], 1);
  const auto padding = numbers_for(given, arguments[4], 0);
  const auto dilation = numbers_for(given, arguments[5], 1);
  const bool is_transposed = arguments[6].toBool();
  const std::int64_t groups = arguments[8].toInt();
  if (x.scalar_type() != at::kFloat || x.dim() < 4 || is_transposed) return 0;
  if (!libtorch::onednn::takes_convolution(x, weight, stride, dilation, groups)) {
    return patches(x, y, weight, stride, padding);
  }
  const Blocked blocked(x, y, weight, groups);
  // The result is made when the copies of what went in are gone, or is what the kernel writes to.
  const std::int64_t beside = blocked.output > 0 ? blocked.output - size_of(y) : 0;
  return std::max(blocked.input + blocked.form_of_weight + beside, blocked.output);
}

std::int64_t convolution_backward_workspace(Values arguments, Values results) {
  const at::Tensor& given = arguments[1].toTensor();
  const at::Tensor x = as_image(given), weight = as_image(arguments[2].toTensor());
  const at::Tensor y = as_image(arguments[0].toTensor());
  if (is_any_empty(x, weight, y)) return 0;
  const auto stride = numbers_for(given, arguments[4], 1);
  const auto padding = numbers_for(given, arguments[5], 0);
  const auto dilation = numbers_for(given, arguments[6], 1);
  const bool is_transposed = arguments[7].toBool();
  const std::int64_t groups = arguments[9].toInt();
  if (x.scalar_type() != at::kFloat || x.dim() < 4 || is_transposed) return 0;
  const bool is_last = is_channels_last(x) || is_channels_last(weight);
  const std::int64_t copied = y.is_contiguous(format_of(x, is_last)) ? 0 : size_of(y);
  if (!libtorch::onednn::takes_convolution(x, weight, stride, dilation, groups)) {
    return copied + patches(x, y, weight, stride, padding);
  }
  const Blocked blocked(x, y, weight, groups);
  const std::int64_t of_input = size_of(results[0].toTensor());
  const std::int64_t of_weight = size_of(results[1].toTensor());
  const std::int64_t of_bias = size_of(results[2].toTensor());
  std::int64_t most = 0;
  if (of_input > 0) {
    most = blocked.output + blocked.input_of_gradient + blocked.gradient;
    // Kernels with strides write in another order, which is put right in a copy.
    const bool is_strided = std::ranges::any_of(stride, [](auto s) { return s > 1; });
    most = std::max(
        most, is_strided && blocked.gradient > 0 ? 3 * of_input : blocked.gradient + of_input);
  }
  if (of_weight > 0) {
    const std::int64_t at_once = of_input + blocked.input + blocked.output;
    most =
        std::max({most, at_once + blocked.form_of_weight + of_bias,
                  of_input + (is_last ? 2 : 1) * blocked.form_of_weight + of_weight + 2 * of_bias});
  }
  return copied + std::max<std::int64_t>(most - of_input - of_weight - of_bias, 0);
}

}  // namespace reprise::estimate
