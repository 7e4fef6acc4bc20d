#include "region/layers_case.h"

#include <ATen/autocast_mode.h>

#include <algorithm>

#include "libtorch/memory/managed_memory.h"

namespace reprise::detail {

bool LayersCase::is_gone() const {
  return std::any_of(modules.begin(), modules.end(),
                     [](const auto& module) { return module.expired(); });
}

bool LayersCase::operator==(const LayersCase& other) const {
  const auto is_same = [](const auto& a, const auto& b) {
    return !a.owner_before(b) && !b.owner_before(a);
  };
  return dtype == other.dtype && device == other.device && requires_grad == other.requires_grad &&
         autocast == other.autocast && sizes == other.sizes && strides == other.strides &&
         trains == other.trains && parameters == other.parameters &&
         std::equal(modules.begin(), modules.end(), other.modules.begin(), other.modules.end(),
                    is_same);
}

LayersCase layers_case(const Layers& layers, const at::Tensor& input) {
  LayersCase result{
      .modules = {layers.modules.begin(), layers.modules.end()},
      .trains = layers.trains,
      .parameters = {},
      .sizes = input.sizes().vec(),
      .strides =
          input.layout() == at::kStrided ? input.strides().vec() : std::vector<std::int64_t>(),
      .dtype = input.scalar_type(),
      .device = input.device(),
      .requires_grad = input.requires_grad(),
      .autocast = std::nullopt,
  };
  for (const at::Tensor& each : layers.parameters) {
    result.parameters.emplace_back(each.scalar_type(), each.requires_grad());
  }
  const c10::DeviceType device = input.device().type();
  if (at::autocast::is_autocast_enabled(device)) {
    result.autocast = at::autocast::get_autocast_dtype(device);
  }
  return result;
}

std::int64_t changes_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : static_cast<std::int64_t>(tensor._version());
}

bool belongs_to_layer_before(const at::Tensor& result, const at::Tensor& argument,
                             std::int64_t changes_before, const at::Tensor& input) {
  return changes_of(argument) != changes_before || libtorch::share_memory(result, argument) ||
         libtorch::share_memory(argument, input);
}

std::string short_name(std::string name) {
  if (const auto at = name.rfind("::"); at != std::string::npos) name.erase(0, at + 2);
  if (name.ends_with("Impl")) name.resize(name.size() - 4);
  return name;
}

}  // namespace reprise::detail
