// Shapes of recurrent layers. On the CPU an LSTM in f32 is a oneDNN operator a layer and direction,
// which keeps a workspace for backward; all else is made of cells (recurrent_cells.h).
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gru_native.h>
#include <ATen/ops/lstm_native.h>
#include <ATen/ops/mkldnn_rnn_layer.h>
#include <ATen/ops/rnn_relu_native.h>
#include <ATen/ops/rnn_tanh_native.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <vector>

#include "libtorch/meta/onednn.h"
#include "libtorch/meta/recurrent_cells.h"
#include "libtorch/meta/shape_functions.h"
#include "libtorch/meta/shape_table.h"

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
    // In LibTorch's order, which is that of GCC for arguments of a call: the last one first.
    const Tensor cell_before = lstm.states[1].select(0, at_index);
    const Tensor hidden_before = lstm.states[0].select(0, at_index);
    const Tensor bias_of_hidden = bias(3);
    const Tensor bias_of_input = bias(2);
    auto [output, hidden, cell, workspace] = at::mkldnn_rnn_layer(
        input, weights[0], weights[1], bias_of_input, bias_of_hidden, hidden_before, cell_before,
        direction > 0, {}, kLstmMode, lstm.states[0].size(-1), lstm.layers, lstm.has_biases,
        lstm.bidirectional, false, lstm.train);
    outputs.push_back(output);
    last[0].push_back(hidden);
    last[1].push_back(cell);
  }
  return outputs.size() == 1 ? outputs[0] : at::cat(outputs, -1);
}

// LibTorch has two functions of this name.
ThreeTensors native_lstm(const Tensor& input, at::TensorList states, at::TensorList parameters,
                         bool has_biases, std::int64_t layers, double dropout, bool train,
                         bool bidirectional, bool batch_first) {
  return at::native::lstm(input, states, parameters, has_biases, layers, dropout, train,
                          bidirectional, batch_first);
}

// A tensor of another device as a view of a stand-in (on_meta.h), beside parameters on meta.
Tensor on_their_device(const Tensor& input, const Tensor& parameter) {
  return input.is_meta() || !parameter.is_meta() ? input : input.alias();
}

void check_parameters(const char* op, at::TensorList parameters, std::int64_t layers,
                      bool bidirectional, std::size_t each) {
  const std::size_t wanted = static_cast<std::size_t>(layers) * (bidirectional ? 2 : 1) * each;
  TORCH_CHECK(parameters.size() == wanted, op, ": there are ", parameters.size(), " parameters; ",
              layers, " layers need ", wanted);
}

// What LibTorch makes of cells on the CPU, for one of LSTM's other types or with a projection.
ThreeTensors lstm_of_cells(const Tensor& input, at::TensorList states, at::TensorList parameters,
                           bool has_biases, std::int64_t layers, double dropout, bool train,
                           bool bidirectional, bool batch_first) {
  TORCH_CHECK(states.size() == 2, "lstm: there are ", states.size(), " states; it has two");
  const bool is_projected = states[0].size(-1) != states[1].size(-1);
  const RecurrentNetwork network{.cell = RecurrentCell::kLstm,
                                 .parameters = parameters,
                                 .each = (has_biases ? 4U : 2U) + (is_projected ? 1U : 0U),
                                 .has_biases = has_biases,
                                 .train = train,
                                 .bidirectional = bidirectional,
                                 .dropout = dropout};
  check_parameters("lstm", parameters, layers, bidirectional, network.each);
  auto [output, last] = run_cells(network, batch_first ? input.transpose(0, 1) : input,
                                  {states[0].unbind(0), states[1].unbind(0)});
  return {batch_first ? output.transpose(0, 1) : output, last[0], last[1]};
}

using TwoTensors = std::tuple<Tensor, Tensor>;
using NativeCells = TwoTensors (*)(const Tensor&, const Tensor&, at::TensorList, bool, std::int64_t,
                                   double, bool, bool, bool);

template <RecurrentCell kCell, NativeCells kNative>
TwoTensors cells_choice(const Tensor& given, const Tensor& state, at::TensorList parameters,
                        bool has_biases, std::int64_t layers, double dropout, bool train,
                        bool bidirectional, bool batch_first) {
  const Tensor input = parameters.empty() ? given : on_their_device(given, parameters[0]);
  if (shapes_device() != c10::kCPU || state.dim() == 0) {
    return kNative(input, state, parameters, has_biases, layers, dropout, train, bidirectional,
                   batch_first);
  }
  const RecurrentNetwork network{.cell = kCell,
                                 .parameters = parameters,
                                 .each = has_biases ? 4U : 2U,
                                 .has_biases = has_biases,
                                 .train = train,
                                 .bidirectional = bidirectional,
                                 .dropout = dropout};
  check_parameters("rnn", parameters, layers, bidirectional, network.each);
  auto [output, last] =
      run_cells(network, batch_first ? input.transpose(0, 1) : input, {state.unbind(0)});
  return {batch_first ? output.transpose(0, 1) : output, last[0]};
}

ThreeTensors lstm_choice(const Tensor& given, at::TensorList states, at::TensorList parameters,
                         bool has_biases, std::int64_t layers, double dropout, bool train,
                         bool bidirectional, bool batch_first) {
  const Tensor input = parameters.empty() ? given : on_their_device(given, parameters[0]);
  const bool is_on_cpu = shapes_device() == c10::kCPU;
  if (!is_on_cpu || !onednn::takes_lstm(input, states, parameters)) {
    const auto whole =
        is_on_cpu && states.size() == 2 && states[0].dim() == 3 ? &lstm_of_cells : &native_lstm;
    return whole(input, states, parameters, has_biases, layers, dropout, train, bidirectional,
                 batch_first);
  }
  const std::vector<Tensor> contiguous = {states[0].contiguous(), states[1].contiguous()};
  const Lstm lstm{contiguous, parameters, has_biases, train, bidirectional, layers};
  check_parameters("lstm", parameters, layers, bidirectional, lstm.each());
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
    choice_by_device<&cells_choice<RecurrentCell::kGru, &at::native::gru>>("aten::gru.input"),
    choice_by_device<&cells_choice<RecurrentCell::kTanh, &at::native::rnn_tanh>>(
        "aten::rnn_tanh.input"),
    choice_by_device<&cells_choice<RecurrentCell::kRelu, &at::native::rnn_relu>>(
        "aten::rnn_relu.input"),
    shape_function<&mkldnn_rnn_layer_shape>("aten::mkldnn_rnn_layer"),
    shape_function<&mkldnn_rnn_layer_backward_shape>("aten::mkldnn_rnn_layer_backward"),
};

}  // namespace

ShapeGroup recurrent_shapes() { return kRecurrent; }

}  // namespace reprise::libtorch
