// One row an operator that does more than one operation an element; the rest is elementwise, or
// reads a part of what it is given.
#include "estimate/operator_cost.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <string_view>

namespace reprise::estimate {

namespace {

double count(const at::Tensor& tensor) { return static_cast<double>(tensor.numel()); }
double length(const at::Tensor& tensor, std::int64_t dimension) {
  return static_cast<double>(tensor.size(dimension));
}

// [..., n, k] times [..., k, m].
double product(const at::Tensor& left, const at::Tensor& right) {
  return 2 * count(left) * length(right, -1);
}
template <std::size_t kLeft>
double matrix_product(Values arguments, Values) {
  return product(arguments[kLeft].toTensor(), arguments[kLeft + 1].toTensor());
}

// Every output element takes one multiplication and addition for each weight of its channel; where
// transposed, every input element does for each weight that it is spread by.
double one_convolution(const at::Tensor& input, const at::Tensor& output, const at::Tensor& weight,
                       bool is_transposed) {
  const at::Tensor& spread = is_transposed ? input : output;
  return 2 * count(spread) * count(weight) / std::max(length(weight, 0), 1.0);
}

double convolution(Values arguments, Values results) {
  return one_convolution(arguments[0].toTensor(), results[0].toTensor(), arguments[1].toTensor(),
                         arguments[6].toBool());
}

// As much again for each of the two that is asked for, input and weight.
double convolution_backward(Values arguments, Values) {
  const at::Tensor& gradient = arguments[0].toTensor();
  const double one = one_convolution(arguments[1].toTensor(), gradient, arguments[2].toTensor(),
                                     arguments[7].toBool());
  const auto wanted = arguments[10].toBoolList();
  return one * (static_cast<double>(wanted[0]) + static_cast<double>(wanted[1]));
}

// [batch, heads, time, size]: scores and their weighted sum. Masked halves count, as in Megatron's
// and PyTorch's own figures.
double attention_of(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  return 2 * count(query) * length(key, -2) +
         2 * count(query) / length(query, -1) * length(key, -2) * length(value, -1);
}
double attention(Values arguments, Values) {
  return attention_of(arguments[0].toTensor(), arguments[1].toTensor(), arguments[2].toTensor());
}
// The scores once more, and four products for the gradients: five in place of two.
double attention_backward(Values arguments, Values) {
  return 2.5 *
         attention_of(arguments[1].toTensor(), arguments[2].toTensor(), arguments[3].toTensor());
}

// A layer of an LSTM, [time, batch, input]: each step's products with the weights of its four
// gates.
double lstm_layer(Values arguments, Values) {
  const at::Tensor& input = arguments[0].toTensor();
  return 2 * length(input, 0) * length(input, 1) *
         (count(arguments[1].toTensor()) + count(arguments[2].toTensor()));
}
double lstm_layer_backward(Values arguments, Values results) {
  return 2 * lstm_layer(arguments, results);
}

struct CostRow {
  std::string_view name;
  double (*flops)(Values arguments, Values results);
};

constexpr CostRow kCosts[] = {
    {"aten::mm", matrix_product<0>},
    {"aten::bmm", matrix_product<0>},
    {"aten::mv", [](Values a, Values) { return 2 * count(a[0].toTensor()); }},
    {"aten::dot", [](Values a, Values) { return 2 * count(a[0].toTensor()); }},
    {"aten::vdot", [](Values a, Values) { return 2 * count(a[0].toTensor()); }},
    {"aten::addmm", matrix_product<1>},
    {"aten::addbmm", matrix_product<1>},
    {"aten::baddbmm", matrix_product<1>},
    {"aten::_addmm_activation", matrix_product<1>},
    {"aten::addmv", [](Values a, Values) { return 2 * count(a[1].toTensor()); }},
    {"aten::convolution", convolution},
    {"aten::convolution_overrideable", convolution},
    {"aten::convolution_backward", convolution_backward},
    {"aten::mkldnn_rnn_layer", lstm_layer},
    {"aten::mkldnn_rnn_layer_backward", lstm_layer_backward},
    {"aten::_scaled_dot_product_flash_attention", attention},
    {"aten::_scaled_dot_product_flash_attention_for_cpu", attention},
    {"aten::_scaled_dot_product_efficient_attention", attention},
    {"aten::_scaled_dot_product_cudnn_attention", attention},
    {"aten::_scaled_dot_product_flash_attention_backward", attention_backward},
    {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", attention_backward},
    {"aten::_scaled_dot_product_efficient_attention_backward", attention_backward},
    {"aten::_scaled_dot_product_cudnn_attention_backward", attention_backward},
};

// They pick from their first tensor what they give back, and do not read the rest of it.
constexpr std::string_view kPick[] = {"aten::embedding", "aten::index_select", "aten::gather",
                                      "aten::index", "aten::_embedding_bag"};

// An expanded tensor has more elements than memory.
double bytes_of(const at::Tensor& tensor) {
  const double elements = count(tensor) * static_cast<double>(tensor.itemsize());
  return std::min(elements,
                  tensor.has_storage() ? static_cast<double>(tensor.storage().nbytes()) : elements);
}

}  // namespace

void visit_tensors_in(const c10::IValue& value,
                      const std::function<void(const at::Tensor&)>& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& each : value.toTensorVector()) {
      if (each.defined()) visit(each);
    }
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor> each : value.toOptionalTensorList()) {
      if (each && each->defined()) visit(*each);
    }
  }
}

OperatorCost cost_of(const c10::FunctionSchema& schema, Values arguments, Values results,
                     bool is_free) {
  OperatorCost cost{.is_free = is_free};
  if (is_free) return cost;
  const std::string_view name = schema.name();
  const bool picks = std::ranges::find(kPick, name) != std::end(kPick);
  double made = 0, largest = 0;
  for (const c10::IValue& each : results) {
    visit_tensors_in(each, [&](const at::Tensor& tensor) {
      made += bytes_of(tensor);
      largest = std::max(largest, count(tensor));
    });
  }
  bool is_first = true;
  for (const c10::IValue& each : arguments) {
    visit_tensors_in(each, [&](const at::Tensor& tensor) {
      cost.bytes += picks && is_first ? made : bytes_of(tensor);
      if (!picks) largest = std::max(largest, count(tensor));
      if (tensor.is_floating_point() && tensor.itemsize() == 2) cost.is_low_precision = true;
      is_first = false;
    });
  }
  cost.bytes += made;
  // In place an operator does what it does out of place.
  const std::string_view plain = name.ends_with('_') ? name.substr(0, name.size() - 1) : name;
  const auto* const row = std::ranges::find(kCosts, plain, &CostRow::name);
  cost.flops = row != std::end(kCosts) ? row->flops(arguments, results) : largest;
  return cost;
}

}  // namespace reprise::estimate
