// What oneDNN does behind LibTorch's CPU kernels: which convolutions it takes, how it lays channels
// out, and the memory that a layer of an LSTM has there. LibTorch exports nothing of oneDNN that
// could be asked, so these are its rules as of version 3 (LibTorch 2.13 has 3.12), compared with
// real calls by tests.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace reprise::libtorch::onednn {

// Whether the CPU leaves a convolution of images or volumes to oneDNN: only small work goes to
// LibTorch's own kernels.
bool takes_convolution(const at::Tensor& x, const at::Tensor& weight, at::IntArrayRef stride,
                       at::IntArrayRef dilation, std::int64_t groups);

// Channels of f32 that kernels of this machine's CPU keep together in memory of their own form; 1
// where they keep LibTorch's.
std::int64_t channels_together();

// Whether LibTorch runs LSTMs on such tensors by oneDNN.
bool takes_lstm(const at::Tensor& input, at::TensorList states, at::TensorList parameters);

// One layer and direction of an LSTM in f32.
struct LstmLayer {
  std::int64_t steps, batch, input, hidden;

  // Kept from forward for backward, which also works in it.
  std::int64_t workspace_bytes() const;
  // For the time of a call, of forward or backward.
  std::int64_t scratchpad_bytes(bool is_forward) const;
  // Weights in the order that the kernels want: of the input's and of the state's product.
  std::int64_t forward_weights_bytes() const;
  // Those that differ from how parameters lie.
  std::int64_t backward_weights_bytes() const;
};

}  // namespace reprise::libtorch::onednn
