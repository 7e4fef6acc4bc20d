// Input and weight gradients made apart: what runs when, and what is freed in between.
#include <reprise/memory.h>

#include "libtorch/autograd/stage_graph.h"
#include "tests/pipeline/testing.h"

namespace reprise::pipeline {
namespace {

std::atomic<int> backwards{0};

// x * weight, whose backward counts its runs and asks which gradients are wanted.
struct Scale : torch::autograd::Function<Scale> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight) {
    context->save_for_backward({x, weight});
    return x * weight;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    ++backwards;
    const auto saved = context->get_saved_variables();
    const bool wants_weight = context->needs_input_grad(1);
    return {gradients[0] * saved[1],
            wants_weight ? (gradients[0] * saved[0]).sum(0) : at::Tensor()};
  }
};

struct ScaleLayerImpl : torch::nn::Module {
  ScaleLayerImpl() { weight = register_parameter("weight", torch::randn({4})); }
  at::Tensor forward(const at::Tensor& x) { return Scale::apply(x, weight); }
  at::Tensor weight;
};
TORCH_MODULE(ScaleLayer);

TEST(InputGradients, ACustomFunctionRunsOnceAndItsWeightGradientIsKept) {
  torch::manual_seed(1);
  torch::nn::Sequential model;
  for (int i = 0; i < 4; ++i) {
    model->push_back(torch::nn::Linear(4, 4));
    model->push_back(ScaleLayer());
    model->push_back(torch::nn::Tanh());
  }
  const at::Tensor x = torch::randn({8, 4});
  for (const char* schedule : {"zbv", "zero-bubble"}) {
    for (const std::int64_t stop : {0, 4}) {
      Pipeline pipe(model, {.balance = {3, 3, 3, 3},
                            .devices = {c10::kCPU, c10::kCPU},
                            .chunks = 4,
                            .checkpoint_stop = stop,
                            .schedule = schedule});
      const Outcome plain = plain_step(model, x, x, 4, backward_order(pipe.schedule(4)));
      backwards = 0;
      expect_same(plain, outcome_of(model, pipe.step(x, x, square_loss).loss), schedule);
      EXPECT_EQ(backwards, 16) << schedule << ", checkpoint_stop " << stop;
    }
  }
}

TEST(InputGradients, AWeightMayBeOfACustomFunctionAndOfALayerOfLibTorch) {
  torch::manual_seed(1);
  const at::Tensor weight = torch::randn({4}).requires_grad_();
  const auto run = [&](const at::Tensor& x) {
    return (Scale::apply(Scale::apply(x, weight), weight) * weight).tanh();
  };
  const at::Tensor x = torch::randn({8, 4}), gradient = torch::randn({8, 4});
  at::Tensor leaf = x.clone().requires_grad_();
  run(leaf).backward(gradient);
  const at::Tensor plain = weight.grad().clone();
  weight.mutable_grad().reset();

  libtorch::StageGraph graph;
  graph.leave({run(graph.enter({x}, {true}).front())});
  EXPECT_TRUE(at::equal(graph.backward_inputs({gradient}).front(), leaf.grad()));
  EXPECT_FALSE(weight.grad().defined()) << "weight gradients came too early";
  graph.backward_weights();
  EXPECT_TRUE(at::allclose(weight.grad(), plain));
}

TEST(InputGradients, WhatOnlyTheInputNeedsIsFreedBeforeTheWeightGradients) {
  constexpr std::int64_t kBytes = 1 << 18;
  const at::Tensor x = torch::randn({256, 256});
  const at::Tensor weight = torch::randn({256, 256}).requires_grad_();
  weight.mutable_grad() = at::zeros_like(weight);
  libtorch::StageGraph graph;
  const Bytes before = live_bytes();
  {
    at::Tensor y = graph.enter({x}, {true}).front();
    // Each saves its result, and has no weights.
    for (int i = 0; i < 6; ++i) y = y.tanh();
    y = at::mm(y, weight);
    for (int i = 0; i < 6; ++i) y = y.sigmoid();
    graph.leave({y});
  }
  EXPECT_NEAR(static_cast<double>((live_bytes() - before).count), 12 * kBytes, 4096);
  at::Tensor gradient = graph.backward_inputs({at::ones_like(x)}).front();
  gradient.reset();
  // The product's input, and the gradient that reached the product.
  EXPECT_NEAR(static_cast<double>((live_bytes() - before).count), 2 * kBytes, 4096);
  graph.backward_weights();
  EXPECT_NEAR(static_cast<double>((live_bytes() - before).count), 0, 4096);
}

}  // namespace
}  // namespace reprise::pipeline
