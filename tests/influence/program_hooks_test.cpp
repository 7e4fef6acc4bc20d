// What a program counts by hooks: on parameters, as a reducer of gradients sets them, and on
// tensors inside layers. Measuring and probing must not be seen by it.
#include <reprise/experimental/pgac.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>

#include "tests/influence/lossy_layers.h"

namespace reprise {
namespace {

using namespace reprise::testing;
using torch::nn::Sequential;

// Calls of a hook on each parameter, and of one on the node that adds up its gradient.
class CountedHooks {
 public:
  explicit CountedHooks(const Tensors& parameters)
      : tensors_(parameters.size()), nodes_(parameters.size()) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].register_hook([this, i](const at::Tensor&) { ++tensors_[i]; });
      kept_.push_back(torch::autograd::impl::grad_accumulator(parameters[i]));
      using torch::autograd::variable_list;
      kept_.back()->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
          [this, i](const variable_list& outputs, const variable_list&) {
            ++nodes_[i];
            return outputs;
          }));
    }
  }
  void expect_each(int calls, const std::string& where) const {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      EXPECT_EQ(tensors_[i], calls) << where << ", parameter " << i;
      EXPECT_EQ(nodes_[i], calls) << where << ", parameter " << i;
    }
  }

 private:
  using Node = decltype(torch::autograd::impl::grad_accumulator(at::Tensor()));
  std::vector<int> tensors_, nodes_;
  std::vector<Node> kept_;
};

TEST(ProgramHooks, OnParametersAreCalledOnceABackwardUnderAnyOptions) {
  PgacOptions in_turn = lossy_options(0.5);
  in_turn.lossy->audit_every = 1;
  PgacOptions bounded = in_turn;
  bounded.budget = MB(4);
  for (const PgacOptions& options :
       {PgacOptions{.quantile = 1, .gamma = GammaSchedule::constant(2)},
        PgacOptions{.budget = MB(4)}, in_turn, bounded}) {
    Sequential model = gelu_layers();
    const at::Tensor sample = wide_sample();
    const CountedHooks hooks(model->parameters());
    Pgac pgac(options);
    for (int step = 0; step < 8; ++step) {
      step_under(pgac, model, sample);
      pgac.observe(step);
      hooks.expect_each(step + 1, "step " + std::to_string(step) +
                                      (options.lossy ? ", lossy" : ", exact") +
                                      (options.budget ? ", with a budget" : ""));
    }
  }
}

// A parameter's gradient in backward of another tensor, and of parts of a step.
TEST(ProgramHooks, ProbedLayersGiveGradientsToWhoeverAsks) {
  Sequential model = gelu_layers(3);
  const at::Tensor sample = wide_sample();
  const auto asked_of = [&](const at::Tensor& y) {
    const at::Tensor loss = y.square().mean();
    Tensors found = torch::autograd::grad({loss}, {model->parameters()[7], sample}, {}, true);
    for (const at::Tensor& each : torch::autograd::grad({loss}, model->parameters(), {})) {
      found.push_back(each);
    }
    return found;
  };
  const Tensors plain = asked_of(model->forward(sample));
  PgacOptions options = lossy_options(1e-6);  // all layers stay as they are
  options.lossy->audit_every = 1;
  Pgac pgac(options);
  for (int step = 0; step < 6; ++step) {
    EXPECT_TRUE(same_bits(asked_of(pgac.run(model, sample)), plain)) << step;
    pgac.observe(step);
  }
}

// Retained gradients are added up.
TEST(ProgramHooks, InsideALayerSeeTheStepsGradientOnce) {
  struct WatchedImpl : torch::nn::Module {
    WatchedImpl() { block = register_module("block", GeluBlock()); }
    at::Tensor forward(const at::Tensor& x) {
      inner = block->in(x);
      inner.retain_grad();
      const at::Tensor hooked = torch::gelu(inner);
      hooked.register_hook([this](const at::Tensor&) { ++calls; });
      return block->out(block->norm(hooked));
    }
    GeluBlock block = nullptr;
    at::Tensor inner;
    int calls = 0;
  };
  using Watched = torch::nn::ModuleHolder<WatchedImpl>;
  torch::manual_seed(3);
  std::vector<Watched> layers(3);
  const at::Tensor sample = wide_sample();
  const auto retained_under = [&](const auto& run) {
    run().square().mean().backward();
    Tensors retained;
    for (Watched& layer : layers) {
      EXPECT_EQ(std::exchange(layer->calls, 0), 1);
      retained.push_back(layer->inner.grad());
      layer->inner = at::Tensor();
    }
    return retained;
  };
  const Tensors plain = retained_under([&] {
    at::Tensor x = sample;
    for (Watched& layer : layers) x = layer->forward(x);
    return x;
  });
  PgacOptions options = lossy_options(1e-6);
  options.lossy->audit_every = 1;
  Pgac pgac(options);
  for (int step = 0; step < 6; ++step) {
    EXPECT_TRUE(same_bits(retained_under([&] { return pgac.run(layers, sample); }), plain)) << step;
    pgac.observe(step);
  }
}

}  // namespace
}  // namespace reprise
