#include "estimate/workspace.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <string_view>

#include "estimate/convolution_workspace.h"
#include "estimate/kernel_copies.h"
#include "estimate/operator_cost.h"
#include "libtorch/meta/onednn.h"

namespace reprise::estimate {

namespace {

// Of what sums over values of the tensor's type are kept in.
std::int64_t bytes_of_a_sum(const at::Tensor& tensor) {
  return std::max<std::int64_t>(4, static_cast<std::int64_t>(tensor.itemsize()));
}

std::int64_t copy_unless_contiguous(const at::Tensor& tensor) {
  return tensor.is_contiguous() ? 0 : static_cast<std::int64_t>(tensor.nbytes());
}

// The tiles that each thread works on: of the scores, and of what is summed up over them.
struct Tiles {
  Tiles(const at::Tensor& query, const at::Tensor& key) {
    const std::int64_t time = query.size(-2);
    const std::int64_t most_rows = time >= 768 ? 256 : time >= 192 ? 64 : 32;
    rows = std::min(most_rows, time);
    columns = std::min<std::int64_t>(512, key.size(-2));
  }
  std::int64_t rows, columns;
};

std::int64_t flash_attention(Values arguments, Values) {
  const at::Tensor& query = arguments[0].toTensor();
  const Tiles tiles(query, arguments[1].toTensor());
  const std::int64_t numbers = tiles.rows * (tiles.columns + 2 + query.size(-1));
  return at::get_num_threads() * numbers * bytes_of_a_sum(query);
}

std::int64_t flash_attention_backward(Values arguments, Values) {
  const at::Tensor& query = arguments[1].toTensor();
  const Tiles tiles(query, arguments[2].toTensor());
  const at::Tensor& gradient = arguments[0].toTensor();
  // Kernels read whole rows.
  const std::int64_t copied =
      gradient.stride(-1) == 1 ? 0 : static_cast<std::int64_t>(gradient.nbytes());
  return copied +
         at::get_num_threads() * tiles.rows * (2 * tiles.columns + 1) * bytes_of_a_sum(query);
}

std::int64_t layer_norm(Values arguments, Values) {
  return copy_unless_contiguous(arguments[0].toTensor());
}

// Each thread sums up the gradients of weight and bias by itself, where either is wanted, in the
// input's type.
std::int64_t layer_norm_backward(Values arguments, Values) {
  std::int64_t normed = 1;
  for (const std::int64_t each : arguments[2].toIntVector()) normed *= each;
  const auto wanted = arguments[7].toBoolList();
  const bool sums = wanted[1] || wanted[2];
  return (sums ? 2 * at::get_num_threads() * normed *
                     static_cast<std::int64_t>(arguments[1].toTensor().itemsize())
               : 0) +
         copy_unless_contiguous(arguments[0].toTensor()) +
         copy_unless_contiguous(arguments[1].toTensor());
}

std::int64_t lstm_workspace(Values arguments, Values) {
  const at::Tensor& input = arguments[0].toTensor();
  const at::Tensor& of_input = arguments[1].toTensor();
  const libtorch::onednn::LstmLayer layer{input.size(0), input.size(1), input.size(2),
                                          of_input.size(0) / 4};
  return layer.forward_weights_bytes() + layer.scratchpad_bytes(/*is_forward=*/true);
}

// A gradient of a result as the kernel wants it: zeros in place of one that nobody has.
std::int64_t gradient_copy(const c10::IValue& gradient, const c10::IValue& result) {
  const bool is_there = gradient.isTensor() && gradient.toTensor().defined();
  return is_there ? copy_unless_contiguous(gradient.toTensor())
                  : static_cast<std::int64_t>(result.toTensor().nbytes());
}

// The gradients of the weights are made in the order of forward's weights, and copied; biases are
// one there.
std::int64_t lstm_workspace_backward(Values arguments, Values) {
  const at::Tensor& input = arguments[0].toTensor();
  const at::Tensor& of_input = arguments[1].toTensor();
  const std::int64_t hidden = of_input.size(0) / 4;
  const libtorch::onednn::LstmLayer layer{input.size(0), input.size(1), input.size(2), hidden};
  std::int64_t gradients = 0;
  for (std::size_t i = 0; i < 3; ++i)
    gradients += gradient_copy(arguments[10 + i], arguments[7 + i]);
  return gradients + layer.backward_weights_bytes() + layer.forward_weights_bytes() +
         layer.scratchpad_bytes(/*is_forward=*/false);
}

struct WorkspaceRow {
  std::string_view name;
  std::int64_t (*bytes)(Values arguments, Values results);
};

constexpr WorkspaceRow kWorkspaces[] = {
    {"aten::convolution", convolution_workspace},
    {"aten::convolution_backward", convolution_backward_workspace},
    {"aten::convolution_overrideable", convolution_workspace},
    {"aten::mkldnn_rnn_layer", lstm_workspace},
    {"aten::mkldnn_rnn_layer_backward", lstm_workspace_backward},
    {"aten::_scaled_dot_product_flash_attention_for_cpu", flash_attention},
    {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", flash_attention_backward},
    {"aten::native_layer_norm", layer_norm},
    {"aten::native_layer_norm_backward", layer_norm_backward},
    {"aten::_softmax", first_contiguous},
    {"aten::_log_softmax", first_contiguous},
    {"aten::_softmax_backward_data", first_two_contiguous},
    {"aten::_log_softmax_backward_data", first_two_contiguous},
    {"aten::kthvalue", sorted_values},
    {"aten::soft_margin_loss", soft_margin},
    {"aten::soft_margin_loss_backward", soft_margin_backward},
    {"aten::add", cast_to_result},
    {"aten::sub", cast_to_result},
    {"aten::mul", cast_to_result},
    {"aten::div", cast_to_result},
    {"aten::pow", cast_to_result},
    {"aten::maximum", cast_to_result},
    {"aten::minimum", cast_to_result},
    {"aten::eq", cast_to_common},
    {"aten::ne", cast_to_common},
    {"aten::lt", cast_to_common},
    {"aten::le", cast_to_common},
    {"aten::gt", cast_to_common},
    {"aten::ge", cast_to_common},
};

}  // namespace

std::int64_t workspace_of(const c10::FunctionSchema& schema, Values arguments, Values results,
                          c10::DeviceType device) {
  if (device != c10::kCPU) return 0;
  const std::string_view name = schema.name();
  const auto* const row = std::ranges::find(kWorkspaces, name, &WorkspaceRow::name);
  return row != std::end(kWorkspaces) ? row->bytes(arguments, results) : 0;
}

}  // namespace reprise::estimate
