// Comparisons on the host, whatever the device: bytes are bytes.
#include "apps/cli/training/gradients.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <reprise/budget.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>

namespace reprise::app {

namespace {

std::optional<std::string> bits_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return std::nullopt;
  const at::Tensor dense = tensor.cpu().contiguous();
  // A step under a budget may have dropped it.
  const Pin in_place(dense);
  return std::string(static_cast<const char*>(dense.const_data_ptr()), dense.nbytes());
}

// Nine digits distinguish any two floats, and seventeen any two doubles.
std::string value_of(std::string_view bits, at::ScalarType type) {
  const at::Tensor value = at::empty({}, type);
  std::memcpy(value.mutable_data_ptr(), bits.data(), bits.size());
  return fmt::format("{:.{}g}", value.item<double>(), type == at::kDouble ? 17 : 9);
}

// NaNs read alike.
std::string with_bits(const std::string& value, std::string_view bits) {
  std::string digits;
  // From the most significant byte on; the machines that this runs on keep it last.
  for (auto byte = bits.rbegin(); byte != bits.rend(); ++byte) {
    digits += fmt::format("{:02x}", static_cast<unsigned char>(*byte));
  }
  return fmt::format("{} (0x{})", value, digits);
}

void compare_elements(GradientDifference& difference, const std::string& expected,
                      const std::string& found, at::ScalarType type) {
  const std::size_t size = at::elementSize(type);
  for (std::size_t at = 0; at < expected.size(); at += size) {
    const auto wanted = std::string_view(expected).substr(at, size);
    const auto given = std::string_view(found).substr(at, size);
    if (wanted == given || difference.differing++ > 0) continue;
    difference.index = static_cast<std::int64_t>(at / size);
    difference.expected = value_of(wanted, type);
    difference.found = value_of(given, type);
    if (difference.expected != difference.found) continue;
    difference.expected = with_bits(difference.expected, wanted);
    difference.found = with_bits(difference.found, given);
  }
}

std::string describe_size(const std::optional<std::string>& bits) {
  return bits ? fmt::format("a gradient of {} bytes", bits->size()) : "no gradient";
}

GradientDifference describe_difference(const std::string& name, const at::Tensor& parameter,
                                       const std::optional<std::string>& expected,
                                       const std::optional<std::string>& found) {
  GradientDifference difference;
  difference.parameter = name;
  difference.elements = parameter.numel();
  if (expected && found && expected->size() == found->size()) {
    compare_elements(difference, *expected, *found, parameter.grad().scalar_type());
  } else {
    difference.differing = difference.elements;
    difference.expected = describe_size(expected);
    difference.found = describe_size(found);
  }
  return difference;
}

}  // namespace

void allocate_gradients(const torch::nn::Module& model) {
  for (at::Tensor& parameter : model.parameters()) {
    parameter.mutable_grad() = at::zeros_like(parameter);
  }
}

void clear_gradients(const torch::nn::Module& model) {
  for (at::Tensor& parameter : model.parameters()) parameter.mutable_grad().zero_();
}

GradientBits gradient_bits(const torch::nn::Module& model) {
  GradientBits bits;
  for (const at::Tensor& parameter : model.parameters()) bits.push_back(bits_of(parameter.grad()));
  return bits;
}

std::optional<GradientDifference> first_difference(const torch::nn::Module& model,
                                                   const GradientBits& expected) {
  std::optional<GradientDifference> first;
  std::int64_t differing = 0;
  const auto parameters = model.named_parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& [name, parameter] = parameters[i].pair();
    const auto found = bits_of(parameter.grad());
    if (found == expected.at(i)) continue;
    if (!first) first = describe_difference(name, parameter, expected[i], found);
    ++differing;
  }
  if (first) {
    first->differing_parameters = differing;
    first->parameters = static_cast<std::int64_t>(parameters.size());
  }
  return first;
}

std::string GradientDifference::text() const {
  return fmt::format(
      "the gradient of {} differs from the plain step's: element {} is {} instead of {}; {} of {} "
      "elements differ, and gradients of {} of {} parameters",
      parameter, index, found, expected, differing, elements, differing_parameters, parameters);
}

nlohmann::json GradientDifference::json() const {
  return {{"parameter", parameter},
          {"index", index},
          {"expected", expected},
          {"found", found},
          {"differing_elements", differing},
          {"elements", elements},
          {"differing_parameters", differing_parameters},
          {"parameters", parameters}};
}

}  // namespace reprise::app
