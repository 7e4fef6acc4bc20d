// See gradients.h.
#include "gradients.h"

#include <ATen/ops/zeros_like.h>

#include <cstring>

namespace reprise::app {

namespace {

bool equal_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const at::Tensor x = a.cpu().contiguous(), y = b.cpu().contiguous();
  return std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
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

std::vector<at::Tensor> copy_gradients(const torch::nn::Module& model) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& parameter : model.parameters()) copies.push_back(parameter.grad().clone());
  return copies;
}

std::string first_difference(const torch::nn::Module& model,
                             const std::vector<at::Tensor>& expected) {
  std::size_t index = 0;
  for (const auto& parameter : model.named_parameters()) {
    if (!equal_bits(parameter.value().grad(), expected.at(index++))) return parameter.key();
  }
  return "";
}

}  // namespace reprise::app
