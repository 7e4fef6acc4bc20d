// Shapes of recurrent layers. On the CPU an LSTM in f32 is a oneDNN operator a layer and direction,
// which keeps a workspace for backward; LibTorch makes it of its own cells on meta.
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/lstm_native.h>
#include <ATen/ops/mkldnn_rnn_layer.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <vector>

#include "libtorch/onednn.h"
#include "libtorch/shape_functions.h"
#include "libtorch/shape_table.h"

namespace reprise::libtorch {
namespace {

using at::Tensor;

constexpr std::int64_t kLstmMode = 2;

struct Lstm {
  at::TensorList states, parameters;
  bool has_biases, train, bidirectional;
  std::int64_t layers;

  std::size_t directions() const { return bidirectional ? 2 : 1; }
  std::size_t each() const { return has_biases ? 4 : 2; }
};

// A layer's output, and its last states behind those of the layers before.
Tensor run_lstm_layer(const Lstm& lstm, const Tensor& input, std::size_t layer,
                      std::array<std::vector<Tensor>, 2>& last) {
  std::vector<Tensor> outputs;
  for (std::size_t direction = 0; direction < lstm.directions(); ++direction) {
    const std::size_t index = layer * lstm.directions() + direction;
    const at::TensorList weights = lstm.parameters.slice(index * lstm.each(), lstm.each());
    // Without biases it is given zeros.
    const auto bias = [&](std::size_t which) {
      return lstm.has_biases ? weights[which]
                             : at::zeros({weights[0].size(0)}, weights[0].options());
    };
    const auto at_index = static_cast<std::int64_t>(index);
    auto [output, hidden, cell, workspace] = at::mkldnn_rnn_layer(
        input, weights[0], weights[1], bias(2), bias(3), lstm.states[0].select(0, at_index),
        lstm.states[1].select(0, at_index), direction > 0, {}, kLstmMode, lstm.states[0].size(-1),
        lstm.layers, lstm.has_biases, lstm.bidirectional, false, lstm.train);
    outputs.push_back(output);
    last[0].push_back(hidden);
    last[1].push_back(cell);
  }
  return outputs.size() == 1 ? outputs[0] : at::cat(outputs, -1);
}

ThreeTensors lstm_choice(const Tensor& input, at::TensorList states, at::TensorList parameters,
                         bool has_biases, std::int64_t layers, double dropout, bool train,
                         bool bidirectional, bool batch_first) {
  if (shapes_device() != c10::kCPU || !onednn::takes_lstm(input, states, parameters)) {
    return at::native::lstm(input, states, parameters, has_biases, layers, dropout, train,
                            bidirectional, batch_first);
  }
  const std::vector<Tensor> contiguous = {states[0].contiguous(), states[1].contiguous()};
  const Lstm lstm{contiguous, parameters, has_biases, train, bidirectional, layers};
  const std::size_t weights = static_cast<std::size_t>(layers) * lstm.directions() * lstm.each();
  TORCH_CHECK(parameters.size() == weights, "lstm: there are ", parameters.size(), " parameters; ",
              layers, " layers need ", weights);
  std::array<std::vector<Tensor>, 2> last;
  Tensor output = (batch_first ? input.transpose(0, 1) : input).contiguous();
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    output = run_lstm_layer(lstm, output, static_cast<std::size_t>(layer), last);
    if (dropout > 0 && train && layer + 1 < layers) output = at::dropout(output, dropout, true);
  }
  const Tensor hidden = at::stack(last[0], 0), cell = at::stack(last[1], 0);
  return {batch_first ? output.transpose(0, 1) : output, hidden, cell};
}

using FourTensors = std::tuple<Tensor, Tensor, Tensor, Tensor>;
using SevenTensors = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

FourTensors mkldnn_rnn_layer_shape(const Tensor& input, const Tensor& of_input,
                                   const Tensor& of_state, const Tensor& bias,
                                   const Tensor& other_bias, const Tensor& hidden,
                                   const Tensor& cell, bool, at::IntArrayRef, std::int64_t,
                                   std::int64_t size, std::int64_t, bool, bool, bool, bool) {
  check_dims("lstm", input, 3, 3);
  check_sizes("lstm", "weight_ih", of_input, {4 * size, input.size(2)});
  check_sizes("lstm", "weight_hh", of_state, {4 * size, size});
  check_sizes("lstm", "bias_ih", bias, {4 * size});
  check_sizes("lstm", "bias_hh", other_bias, {4 * size});
  const std::int64_t steps = input.size(0), batch = input.size(1);
  const onednn::LstmLayer layer{steps, batch, input.size(2), size};
  return {contiguous_result(input, {steps, batch, size}), contiguous_result(hidden, hidden.sizes()),
          contiguous_result(cell, cell.sizes()),
          contiguous_result(input, {layer.workspace_bytes()}, at::kByte)};
}

SevenTensors mkldnn_rnn_layer_backward_shape(const Tensor& input, const Tensor& of_input,
                                             const Tensor& of_state, const Tensor& bias,
                                             const Tensor&, const Tensor& hidden,
                                             const Tensor& cell, const Tensor&, const Tensor&,
                                             const Tensor&, const OptionalTensor&,
                                             const OptionalTensor&, const OptionalTensor&, bool,
                                             std::int64_t, std::int64_t, std::int64_t, bool, bool,
                                             bool, at::IntArrayRef, bool, const Tensor&) {
  const auto like = [](const Tensor& x) { return contiguous_result(x, x.sizes()); };
  return {like(input), like(of_input), like(of_state), like(bias),
          like(bias),  like(hidden),   like(cell)};
}

constexpr std::array kRecurrent = {
    choice_by_device<&lstm_choice>("aten::lstm.input"),
    shape_function<&mkldnn_rnn_layer_shape>("aten::mkldnn_rnn_layer"),
    shape_function<&mkldnn_rnn_layer_backward_shape>("aten::mkldnn_rnn_layer_backward"),
};

}  // namespace

ShapeGroup recurrent_shapes() { return kRecurrent; }

}  // namespace reprise::libtorch
