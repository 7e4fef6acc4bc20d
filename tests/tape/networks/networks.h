// Small networks of the kinds that people train, each with its data: what the tests of the tape
// train for a hundred steps.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace reprise::testing {

class Network : public torch::nn::Module {
 public:
  // Of the batch of this step; a number.
  virtual at::Tensor loss(int step) = 0;
};

struct NetworkKind {
  std::string name;
  // Weights and data are drawn from the default generator.
  std::shared_ptr<Network> (*make)();
  // Its loss asks tensors for values (item(), masks as indices), which none has in an estimate.
  bool reads_values = false;
};

// MLP, GPT, BERT, ViT, ResNet, U-Net.
std::vector<NetworkKind> static_networks();
// LSTM, trees, mixture of experts: what they run depends on the data or on the step.
std::vector<NetworkKind> dynamic_networks();

template <class T>
std::shared_ptr<Network> make_network() {
  return std::make_shared<T>();
}

// As many batches of data as differ; step k takes number k % kBatches.
constexpr int kBatches = 4;

inline std::vector<at::Tensor> batches_of(const std::function<at::Tensor()>& draw) {
  std::vector<at::Tensor> all(kBatches);
  for (at::Tensor& batch : all) batch = draw();
  return all;
}

inline const at::Tensor& batch_of(const std::vector<at::Tensor>& batches, int step) {
  return batches[static_cast<std::size_t>(step % kBatches)];
}

}  // namespace reprise::testing
