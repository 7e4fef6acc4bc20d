// Layers that draw random numbers or write to their own buffers, under every strategy: the
// gradients stay those of the plain step, bit for bit, and so does the random state afterwards.
#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <vector>

#include "models/strategy.h"

namespace reprise::models {
namespace {

constexpr std::int64_t kLayers = 5;
// Large enough that a kernel takes longer than leaving a recomputation early does.
constexpr std::int64_t kBatch = 128, kWidth = 64;

using Activation = std::function<at::Tensor(const at::Tensor&)>;
struct Network {
  std::string name;
  Activation (*make)(torch::nn::Module& owner, std::int64_t layer);
};

Activation dropout(torch::nn::Module&, std::int64_t) {
  return [](const at::Tensor& x) { return at::dropout(x, 0.5, /*train=*/true).sin(); };
}

// Draws whose number differs from layer to layer, of several kinds.
Activation many_draws(torch::nn::Module&, std::int64_t layer) {
  return [layer](const at::Tensor& x) {
    at::Tensor y = at::alpha_dropout(x, 0.3, /*train=*/true);
    for (std::int64_t i = 0; i < layer; ++i) y = y + at::rand_like(y) * y.tanh();
    return at::feature_dropout(y, 0.2, /*train=*/true);
  };
}

Activation batch_norm(torch::nn::Module& owner, std::int64_t layer) {
  const auto norm =
      owner.register_module("norm" + std::to_string(layer), torch::nn::BatchNorm1d(kWidth));
  return [norm](const at::Tensor& x) { return norm->forward(x).tanh(); };
}

// pytorch#193671: the noise is saved before it is drawn.
Activation rrelu(torch::nn::Module&, std::int64_t) {
  return [](const at::Tensor& x) { return at::rrelu(x, 0.125, 0.5, /*training=*/true); };
}

struct Step {
  std::vector<at::Tensor> gradients;
  at::Tensor next_draw;
};

Step take_step(const Network& network, const std::string& strategy,
               const CheckpointOptions& options) {
  torch::manual_seed(3);
  torch::nn::Module owner;
  Layers layers;
  for (std::int64_t i = 0; i < kLayers; ++i) {
    const auto linear =
        owner.register_module("linear" + std::to_string(i), torch::nn::Linear(kWidth, kWidth));
    layers.push_back([linear, activation = network.make(owner, i)](const at::Tensor& x) {
      return activation(linear->forward(x));
    });
  }
  const auto x = torch::randn({kBatch, kWidth}, at::requires_grad());
  const auto y = Strategy::parse(strategy).run(layers, x, options);
  // Drawn between forward and backward, as a loss with noise would.
  (y * at::rand_like(y)).sum().backward();
  Step step{{x.grad()}, at::rand({4})};
  for (const at::Tensor& parameter : owner.parameters()) step.gradients.push_back(parameter.grad());
  return step;
}

void expect_bitwise_equal(const at::Tensor& expected, const at::Tensor& found) {
  EXPECT_TRUE(torch::equal(expected.view(at::kInt), found.view(at::kInt)));
}

struct NetworkCase {
  Network network;
  std::string strategy;
  DeterminismCheck check;
  bool reentrant;
};

class NetworkGradients : public testing::TestWithParam<NetworkCase> {};

TEST_P(NetworkGradients, AreBitwiseThoseOfThePlainStep) {
  CheckpointOptions options;
  options.reentrant = GetParam().reentrant;
  options.determinism_check = GetParam().check;
  const Step expected = take_step(GetParam().network, "none", {});
  const Step found = take_step(GetParam().network, GetParam().strategy, options);
  ASSERT_EQ(found.gradients.size(), expected.gradients.size());
  for (std::size_t i = 0; i < expected.gradients.size(); ++i) {
    SCOPED_TRACE(i);
    expect_bitwise_equal(expected.gradients[i], found.gradients[i]);
  }
  expect_bitwise_equal(expected.next_draw, found.next_draw);
}

std::vector<NetworkCase> network_cases() {
  std::vector<NetworkCase> cases;
  // pytorch#190758: masks that are drawn anew in the recomputation.
  for (const Network& network : {Network{"dropout", dropout}, Network{"draws", many_draws},
                                 Network{"batch_norm", batch_norm}, Network{"rrelu", rrelu}}) {
    for (const char* strategy : {"every-block", "segments:2", "sqrt", "from-input"}) {
      for (const auto check : {DeterminismCheck::kDefault, DeterminismCheck::kValues}) {
        for (const bool reentrant : {false, true}) {
          cases.push_back({network, strategy, check, reentrant});
        }
      }
    }
  }
  return cases;
}

std::string name_of_network_case(const testing::TestParamInfo<NetworkCase>& info) {
  std::string name = info.param.network.name + "_" + info.param.strategy +
                     (info.param.check == DeterminismCheck::kValues ? "_values" : "") +
                     (info.param.reentrant ? "_reentrant" : "");
  std::ranges::replace_if(
      name, [](char c) { return c == '-' || c == ':'; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, NetworkGradients, testing::ValuesIn(network_cases()),
                         name_of_network_case);

}  // namespace
}  // namespace reprise::models
