// Gradients of a tensor that is used several times are added up in place, as on real devices, and
// nothing else is: peaks beside measured ones.
#include <gmock/gmock.h>
#include <reprise/checkpoint.h>
#include <reprise/estimate.h>
#include <torch/torch.h>

#include <functional>
#include <string>

#include "tests/estimate/measured.h"

namespace reprise {
namespace {

namespace nn = torch::nn;

constexpr std::int64_t kUsedRows = 512, kUsedWidth = 128;

struct TwoLayers : nn::Module {
  nn::Linear first{kUsedWidth, kUsedWidth}, second{kUsedWidth, kUsedWidth};
  TwoLayers() {
    register_module("first", first);
    register_module("second", second);
  }
  at::Tensor x = at::rand({kUsedRows, kUsedWidth});
};

struct UsesCase {
  std::string name;
  std::function<at::Tensor(TwoLayers&)> loss;
};

class PeakOfATensorUsedOften : public ::testing::TestWithParam<UsesCase> {};

TEST_P(PeakOfATensorUsedOften, IsThatOfTheRealStep) {
  TwoLayers layers;
  const auto loss = [&] { return GetParam().loss(layers); };
  testing::expect_near(estimate_step(layers, loss), testing::measured_peak(layers, loss));
}

at::Tensor unrolled_by_hand(TwoLayers& layers) {
  constexpr std::int64_t kSteps = 16;
  const auto sequence = layers.first(layers.x).view({kSteps, kUsedRows / kSteps, kUsedWidth});
  auto state = at::zeros({kUsedRows / kSteps, kUsedWidth});
  for (std::int64_t t = 0; t < kSteps; ++t) {
    state = at::tanh(sequence.select(0, t) + layers.second(state));
  }
  return state.sum();
}

at::Tensor heads_one_by_one(TwoLayers& layers) {
  const auto heads = layers.first(layers.x).view({kUsedRows, 4, kUsedWidth / 4});
  at::Tensor sum;
  for (std::int64_t i = 0; i < 4; ++i) {
    const auto head = heads.select(1, i).tanh();
    sum = sum.defined() ? sum + head : head;
  }
  return sum.sum();
}

// The node that sums, not the engine, has an add of its own that nobody does in place.
struct AddsInItsNode : torch::autograd::Function<AddsInItsNode> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x * 2;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0] * 1.5 + gradients[0] * 0.5};
  }
};

at::Tensor adds_in_a_node(TwoLayers& layers) {
  return AddsInItsNode::apply(layers.first(layers.x)).square().sum();
}

// A gradient that two inputs share may not be added to.
at::Tensor gradient_shared(TwoLayers& layers) {
  const auto h = layers.first(layers.x);
  return (h + h).square().sum();
}

at::Tensor hooked(TwoLayers& layers) {
  auto h = layers.first(layers.x).square();
  h.register_hook([](const at::Tensor& gradient) { return gradient + gradient; });
  return h.square().sum();
}

std::vector<UsesCase> uses_cases() {
  const auto region = [](TwoLayers& layers, bool is_reentrant) {
    const auto block = [&](const at::Tensor& x) {
      const auto h = layers.second(x);
      return h.slice(1, 0, kUsedWidth / 2) * h.slice(1, kUsedWidth / 2, kUsedWidth) *
             h.select(1, 0).sum();
    };
    return checkpoint({.reentrant = is_reentrant}, block, layers.first(layers.x)).sum();
  };
  return {
      {"Slices",
       [](TwoLayers& layers) {
         const auto h = layers.first(layers.x);
         return (h.slice(1, 0, 64) * h.slice(1, 64, 128)).sum();
       }},
      {"HeadsOneByOne", heads_one_by_one},
      {"Unrolled", unrolled_by_hand},
      {"WeightUsedFourTimes",
       [](TwoLayers& layers) {
         at::Tensor h = layers.x.slice(0, 0, 16);
         for (int i = 0; i < 4; ++i) h = at::tanh(h.mm(layers.first->weight));
         return h.sum();
       }},
      {"GradientShared", gradient_shared},
      {"AddsInANode", adds_in_a_node},
      {"Hooked", hooked},
      {"InARegion", [region](TwoLayers& layers) { return region(layers, false); }},
      {"InAReentrantRegion", [region](TwoLayers& layers) { return region(layers, true); }},
  };
}

INSTANTIATE_TEST_SUITE_P(All, PeakOfATensorUsedOften, ::testing::ValuesIn(uses_cases()),
                         [](const auto& info) { return info.param.name; });

// As a write in place, which planners take for a new value.
TEST(EstimateStep, NotesGradientsThatAreAddedUpAsWritten) {
  nn::Module module;
  const auto w = module.register_parameter("w", at::rand({64, 64}));
  const auto step = [&] { return w.cos().sum() + w.sin().sum(); };
  const Estimate found = estimate_step(module, step);
  EXPECT_GT(found.trace.plain_peak(), found.state());
  EXPECT_NEAR(static_cast<double>(found.trace.plain_peak().count),
              static_cast<double>(found.peak.count), 2.0 * 64 * 64 * 4);
}

}  // namespace
}  // namespace reprise
