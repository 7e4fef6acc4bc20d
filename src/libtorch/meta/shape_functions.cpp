// Registers the shape functions of all groups.
#include "libtorch/meta/shape_functions.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <reprise/error.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "libtorch/meta/meta_errors.h"
#include "libtorch/meta/shape_table.h"

namespace reprise::libtorch {
namespace {

using c10::DispatchKey;

thread_local c10::DeviceType device_of_shapes = c10::kCPU;

std::array<ShapeGroup, 12> shape_groups() {
  return {attention_shapes(), convolution_shapes(),   cuda_attention_shapes(), indexing_shapes(),
          loss_shapes(),      normalization_shapes(), optimizer_shapes(),      pointwise_shapes(),
          pooling_shapes(),   random_shapes(),        recurrent_shapes(),      reduction_shapes()};
}

// LibTorch of this version has the operator, and nobody has a kernel there yet: Python brings its
// own.
bool is_wanted(const ShapeFunction& line) {
  const auto op = c10::Dispatcher::singleton().findSchema(operator_name(line.op));
  return op && !op->hasKernelForDispatchKey(line.key);
}

bool register_all() {
  // Never destroyed: that would take the kernels away while static objects still run operators.
  static auto* const meta =
      new torch::Library(torch::Library::IMPL, "aten", DispatchKey::Meta, __FILE__, __LINE__);
  static auto* const above = new torch::Library(torch::Library::IMPL, "aten",
                                                DispatchKey::AutogradMeta, __FILE__, __LINE__);
  for (const ShapeGroup group : shape_groups()) {
    for (const ShapeFunction& line : group) {
      if (is_wanted(line)) line.add(line.key == DispatchKey::Meta ? *meta : *above, line.op);
    }
  }
  return true;
}

}  // namespace

c10::OperatorName operator_name(std::string_view op) {
  const std::size_t dot = op.find('.');
  if (dot == std::string_view::npos) return {std::string(op), ""};
  return {std::string(op.substr(0, dot)), std::string(op.substr(dot + 1))};
}

void ensure_shape_functions() { [[maybe_unused]] static const bool registered = register_all(); }

std::vector<std::string> operators_with_shape_functions() {
  std::vector<std::string> names;
  for (const ShapeGroup group : shape_groups()) {
    for (const ShapeFunction& line : group) names.emplace_back(line.op);
  }
  std::sort(names.begin(), names.end());
  return names;
}

ShapesOfDevice::ShapesOfDevice(c10::DeviceType type) : outer_(device_of_shapes) {
  if (type != c10::kCPU && type != c10::kCUDA) {
    throw UsageError(
        c10::str("there are no shape functions for the device type \"",
                 c10::DeviceTypeName(type, /*lower_case=*/true),
                 "\"; give cpu or cuda, whichever has kernels more like that device's"));
  }
  device_of_shapes = type;
}

ShapesOfDevice::~ShapesOfDevice() { device_of_shapes = outer_; }

c10::DeviceType shapes_device() { return device_of_shapes; }

void run_on_meta(const std::function<void()>& step) {
  ensure_shape_functions();
  try {
    step();
  } catch (const c10::Error& error) {
    explain_on_meta(error);
    throw;
  }
}

}  // namespace reprise::libtorch
