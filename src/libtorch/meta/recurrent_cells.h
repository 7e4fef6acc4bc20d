// Recurrent layers of LibTorch's own cells, made of the operators that its CPU path takes: there
// the inputs' product is one for all steps, on other devices one for each.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace reprise::libtorch {

enum class RecurrentCell { kTanh, kRelu, kGru, kLstm };

struct RecurrentNetwork {
  RecurrentCell cell;
  at::TensorList parameters;  // of each layer and direction:
  std::size_t each;           // so many: weights of input and state, biases of both, a projection
  bool has_biases, train, bidirectional;
  double dropout;
};

// `input`: steps first. `states`: one list, of an LSTM two, with an item for each layer and
// direction. Gives all outputs, and for each list the last states in one tensor.
std::pair<at::Tensor, std::vector<at::Tensor>> run_cells(
    const RecurrentNetwork& network, const at::Tensor& input,
    const std::vector<std::vector<at::Tensor>>& states);

}  // namespace reprise::libtorch
