#include "libtorch/meta/recurrent_cells.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>

#include <algorithm>
#include <optional>

namespace reprise::libtorch {
namespace {

using at::Tensor;
using States = std::vector<Tensor>;  // one, or an LSTM's two

// Of one layer and direction.
class CellOfLayer {
 public:
  CellOfLayer(const RecurrentNetwork& network, std::size_t index)
      : cell_(network.cell),
        weights_(network.parameters.slice(index * network.each, network.each)),
        has_biases_(network.has_biases) {}

  Tensor of_input(const Tensor& input) const { return at::linear(input, weights_[0], bias(2)); }

  // `gates`: the input's part of them, at one step.
  States step(const Tensor& gates, const States& states) const {
    switch (cell_) {
      case RecurrentCell::kTanh:
        return {at::tanh(of_state(states[0]).add_(gates))};
      case RecurrentCell::kRelu:
        return {at::relu(of_state(states[0]).add_(gates))};
      case RecurrentCell::kGru:
        return {gru(gates, states[0])};
      case RecurrentCell::kLstm:
        break;
    }
    return lstm(gates, states);
  }

 private:
  std::optional<Tensor> bias(std::size_t which) const {
    return has_biases_ ? std::optional<Tensor>(weights_[which]) : std::nullopt;
  }
  Tensor of_state(const Tensor& state) const { return at::linear(state, weights_[1], bias(3)); }

  Tensor gru(const Tensor& gates, const Tensor& state) const {
    const States given = gates.unsafe_chunk(3, 1), kept = of_state(state).unsafe_chunk(3, 1);
    const Tensor reset = kept[0].add_(given[0]).sigmoid_();
    const Tensor update = kept[1].add_(given[1]).sigmoid_();
    const Tensor fresh = given[2].add(kept[2].mul_(reset)).tanh_();
    return state.sub(fresh).mul_(update).add_(fresh);
  }

  States lstm(const Tensor& given, const States& states) const {
    const Tensor gates = of_state(states[0]).add_(given);
    const States parts = gates.unsafe_chunk(4, 1);
    const Tensor in = parts[0].sigmoid_(), forget = parts[1].sigmoid_();
    const Tensor fresh = parts[2].tanh_(), out = parts[3].sigmoid_();
    Tensor cell = forget.mul(states[1]).add_(in.mul(fresh));
    Tensor hidden = out.mul(cell.tanh());
    const std::size_t of_gates = has_biases_ ? 4 : 2;
    if (weights_.size() > of_gates) hidden = at::matmul(hidden, weights_[of_gates].t());
    return {hidden, cell};
  }

  RecurrentCell cell_;
  at::TensorList weights_;
  bool has_biases_;
};

// All outputs in the order of time; `states` are the last ones afterwards.
Tensor run_steps(const CellOfLayer& cell, const std::vector<Tensor>& gates, States& states,
                 bool is_reversed) {
  std::vector<Tensor> outputs;
  for (const Tensor& each : gates) {
    states = cell.step(each, states);
    outputs.push_back(states[0]);
  }
  if (is_reversed) std::ranges::reverse(outputs);
  return at::stack(outputs, 0);
}

}  // namespace

std::pair<Tensor, std::vector<Tensor>> run_cells(const RecurrentNetwork& network,
                                                 const Tensor& input,
                                                 const std::vector<std::vector<Tensor>>& states) {
  const std::size_t directions = network.bidirectional ? 2 : 1;
  const std::size_t layers = states.front().size() / directions;
  std::vector<std::vector<Tensor>> last(states.size());
  Tensor output = input;
  for (std::size_t layer = 0; layer < layers; ++layer) {
    std::vector<Tensor> outputs;
    // The first direction's gates go when those of the second are there.
    Tensor gates;
    std::vector<Tensor> steps;
    for (std::size_t direction = 0; direction < directions; ++direction) {
      const std::size_t index = layer * directions + direction;
      const CellOfLayer cell(network, index);
      gates = cell.of_input(output);
      steps = gates.unbind(0);
      if (direction > 0) std::ranges::reverse(steps);
      States now;
      for (const auto& each : states) now.push_back(each[index]);
      outputs.push_back(run_steps(cell, steps, now, direction > 0));
      for (std::size_t i = 0; i < now.size(); ++i) last[i].push_back(std::move(now[i]));
    }
    output = outputs.size() == 1 ? outputs[0] : at::cat(outputs, -1);
    if (network.dropout > 0 && network.train && layer + 1 < layers) {
      output = at::dropout(output, network.dropout, true);
    }
  }
  std::vector<Tensor> stacked;
  for (const auto& each : last) stacked.push_back(at::stack(each, 0));
  return {output, stacked};
}

}  // namespace reprise::libtorch
