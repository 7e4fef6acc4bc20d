// What the seconds and bytes of a chain of layers depend on: whether what was measured of one call
// holds for another.
#pragma once

#include <reprise/sequential.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace reprise::detail {

struct LayersCase {
  std::vector<std::weak_ptr<const void>> modules;
  std::vector<bool> trains;
  // Of each parameter: its type, and whether it requires gradients.
  std::vector<std::pair<at::ScalarType, bool>> parameters;
  std::vector<std::int64_t> sizes, strides;
  at::ScalarType dtype;
  c10::Device device;
  bool requires_grad;
  std::optional<at::ScalarType> autocast;

  bool is_gone() const;  // with one of its modules
  bool operator==(const LayersCase& other) const;
};

LayersCase layers_case(const Layers& layers, const at::Tensor& input);

// How often the tensor was changed in place, as far as it is counted.
std::int64_t changes_of(const at::Tensor& tensor);

// Whether a region could not run a layer again without the layers before it: it has changed its
// argument (of `changes_before` changes before the call), its result lies on the argument's memory,
// or the argument on that of the first layer's input.
bool belongs_to_layer_before(const at::Tensor& result, const at::Tensor& argument,
                             std::int64_t changes_before, const at::Tensor& input);

// "torch::nn::LinearImpl" is a Linear.
std::string short_name(std::string name);

}  // namespace reprise::detail
