// What an operator call costs and holds, from its arguments and results:
// SelectiveCheckpointContext.

#include <ATen/SparseCsrTensorUtils.h>
#include <reprise/selective.h>

#include <string>

#include "libtorch/operators/operator_schemas.h"
#include "selective/operator_set.h"

namespace reprise {
namespace {

template <class F>
void each_tensor(at::ArrayRef<c10::IValue> values, F&& f) {
  for (const c10::IValue& value : values) {
    if (value.isTensor()) {
      if (value.toTensor().defined()) f(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) f(tensor);
    }
  }
}

double elements(at::ArrayRef<c10::IValue> values) {
  double count = 0;
  each_tensor(values,
              [&](const at::Tensor& tensor) { count += static_cast<double>(tensor.numel()); });
  return count;
}

// The n-th tensor argument's size in a dimension counted from the end.
double size_of(at::ArrayRef<c10::IValue> arguments, std::size_t argument, std::int64_t dimension) {
  const at::Tensor& tensor = arguments[argument].toTensor();
  return tensor.dim() >= -dimension ? static_cast<double>(tensor.size(dimension)) : 1.0;
}

std::int64_t bytes_of(const at::Tensor& tensor) {
  if (tensor.layout() == at::kSparse)
    return bytes_of(tensor._indices()) + bytes_of(tensor._values());
  if (at::sparse_csr::is_sparse_compressed(tensor)) {
    return bytes_of(tensor.values());  // and two lists of positions
  }
  if (!tensor.has_storage()) return 0;
  return tensor.is_nested() ? static_cast<std::int64_t>(tensor.storage().nbytes())
                            : static_cast<std::int64_t>(tensor.nbytes());
}

bool is_attention(std::string_view name) { return name.find("_scaled_dot_product") == 6; }

}  // namespace

bool SelectiveCheckpointContext::is(std::string_view name) const {
  return libtorch::schema_is_named(schema_, name) ||
         selecting::function_is_named(schema_.name(), name);
}

Bytes SelectiveCheckpointContext::result_bytes() const {
  Bytes bytes;
  each_tensor(results_, [&](const at::Tensor& tensor) { bytes.count += bytes_of(tensor); });
  return bytes;
}

double SelectiveCheckpointContext::flops() const {
  const std::string& name = op();
  const double outputs = elements(results_);
  if (name == "aten::mm" || name == "aten::bmm") return 2 * outputs * size_of(arguments_, 0, -1);
  if (name == "aten::addmm" || name == "aten::baddbmm") {
    return 2 * outputs * size_of(arguments_, 1, -1);
  }
  if (name == "aten::convolution" || name == "aten::convolution_overrideable") {
    // The weight: output channels, input channels of a group, kernel.
    const at::Tensor& weight = arguments_[1].toTensor();
    const bool transposed = arguments_[6].toBool();
    const double along = transposed ? elements(arguments_.slice(0, 1)) : outputs;
    return 2 * along * static_cast<double>(weight.numel()) / static_cast<double>(weight.size(0));
  }
  if (is_attention(name)) {
    // Queries and keys (…, length, width): two products of 2·L·S·E each.
    return 4 * elements(arguments_.slice(0, 1)) * size_of(arguments_, 1, -2);
  }
  return outputs;
}

}  // namespace reprise
