// Calls of oneDNN's LSTM layers.
#include "tests/libtorch/meta/shape_cases.h"

namespace reprise::testing {
namespace {

using at::Tensor;

constexpr std::int64_t kLstmMode = 2;

struct LstmCall {
  explicit LstmCall(Draw& draw)
      : steps(draw.number(1, 40)),
        batch(draw.number(1, 9)),
        input(draw.number(1, 300)),
        hidden(draw.pick<std::int64_t>({1, 16, 24, 64, 100, 130, 256})),
        reverse(draw.coin()),
        has_biases(draw.coin()) {
    x = at::rand({steps, batch, input});
    states = {at::rand({batch, hidden}), at::rand({batch, hidden})};
    weights = {at::rand({4 * hidden, input}), at::rand({4 * hidden, hidden}),
               has_biases ? at::rand({4 * hidden}) : at::zeros({4 * hidden}),
               has_biases ? at::rand({4 * hidden}) : at::zeros({4 * hidden})};
  }

  Arguments forward(bool train) const {
    return {x,       weights[0], weights[1], weights[2], weights[3], states[0], states[1], reverse,
            Sizes{}, kLstmMode,  hidden,     1,          has_biases, false,     false,     train};
  }
  Arguments backward(Draw& draw) const {
    const auto [y, last, cell, workspace] =
        at::mkldnn_rnn_layer(x, weights[0], weights[1], weights[2], weights[3], states[0],
                             states[1], reverse, {}, kLstmMode, hidden, 1, has_biases, false, false,
                             /*train=*/true);
    const auto maybe = [&](const Tensor& tensor) {
      return draw.coin() ? c10::IValue(at::rand_like(tensor)) : kNone;
    };
    return {
        x,         weights[0], weights[1], weights[2],       weights[3],  states[0],   states[1],
        y,         last,       cell,       at::rand_like(y), maybe(last), maybe(cell), reverse,
        kLstmMode, hidden,     1,          has_biases,       true,        false,       Sizes{},
        false,     workspace};
  }

  std::int64_t steps, batch, input, hidden;
  bool reverse, has_biases;
  Tensor x;
  std::vector<Tensor> states, weights;
};

}  // namespace

std::vector<ShapeCase> recurrent_cases() {
  return {
      {"aten::mkldnn_rnn_layer", [](Draw& d) { return LstmCall(d).forward(d.coin()); }},
      {"aten::mkldnn_rnn_layer_backward", [](Draw& d) { return LstmCall(d).backward(d); }},
  };
}

}  // namespace reprise::testing
