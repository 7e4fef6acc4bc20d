// Comparisons on the host, whatever the device: bytes are bytes.
#include "apps/reprise/gradients.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros_like.h>

namespace reprise::app {

namespace {

std::string bits_of(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.cpu().contiguous();
  return {static_cast<const char*>(dense.const_data_ptr()), dense.nbytes()};
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

std::string first_difference(const torch::nn::Module& model, const GradientBits& expected) {
  std::size_t index = 0;
  for (const auto& parameter : model.named_parameters()) {
    if (bits_of(parameter.value().grad()) != expected.at(index++)) return parameter.key();
  }
  return "";
}

}  // namespace reprise::app
