// What backward does not need is not run again: frozen layers, unused experts, and, where it is
// asked for, regions whose gradients are zero.
#include <gtest/gtest.h>
#include <reprise/checkpoint.h>
#include <reprise/experimental/pgac.h>
#include <reprise/memory.h>
#include <torch/torch.h>

#include <array>
#include <cmath>
#include <memory>
#include <tuple>

#include "tests/refusal.h"
#include "tests/region/testing.h"

namespace reprise {
namespace {

using namespace reprise::testing;
using torch::nn::Linear;

CheckpointOptions skipping() { return {.skip_zero_gradients = true}; }

// A function that counts its runs.
struct CountedFunction {
  std::shared_ptr<int> runs = std::make_shared<int>(0);
  std::function<at::Tensor(const at::Tensor&)> f;
  at::Tensor operator()(const at::Tensor& x) const {
    ++*runs;
    return f(x);
  }
};

// As same_bits(), but that +0 is -0.
::testing::AssertionResult same_values(const Tensors& actual, const Tensors& expected) {
  Tensors a, b;
  for (const at::Tensor& tensor : actual) a.push_back(tensor + 0);
  for (const at::Tensor& tensor : expected) b.push_back(tensor + 0);
  return same_bits(a, b);
}

TEST(SkippedRegions, AFrozenLayerOnFrozenInputIsNotRunAgain) {
  Linear frozen(8, 8), trained(8, 8);
  for (at::Tensor& parameter : frozen->parameters()) parameter.requires_grad_(false);
  const CountedFunction first{.f = [&](const at::Tensor& x) { return torch::gelu(frozen(x)); }};
  const CountedFunction second{.f = [&](const at::Tensor& x) { return torch::gelu(trained(x)); }};
  at::Tensor x = checkpoint(first, torch::randn({4, 8}));
  checkpoint(second, x).sum().backward();
  EXPECT_EQ(*first.runs, 1);
  EXPECT_EQ(*second.runs, 2);
}

TEST(SkippedRegions, FrozenLayersBelowThoseThatTrainAreNotRunAgainUnderAMask) {
  torch::nn::Sequential model;
  for (int i = 0; i < 5; ++i) model->push_back(Linear(8, 8));
  auto runs = std::make_shared<std::array<int, 5>>();
  struct CountedLinearImpl : torch::nn::Module {
    CountedLinearImpl(int place, std::shared_ptr<std::array<int, 5>> runs)
        : place_(place), runs_(std::move(runs)), inner_(register_module("inner", Linear(8, 8))) {}
    at::Tensor forward(const at::Tensor& x) {
      ++(*runs_)[place_];
      return torch::gelu(inner_(x));
    }
    int place_;
    std::shared_ptr<std::array<int, 5>> runs_;
    Linear inner_;
  };
  std::vector<torch::nn::ModuleHolder<CountedLinearImpl>> layers;
  for (int i = 0; i < 5; ++i) {
    layers.emplace_back(std::make_shared<CountedLinearImpl>(i, runs));
    if (i < 2) {
      for (at::Tensor& parameter : layers.back()->parameters()) parameter.requires_grad_(false);
    }
  }
  Pgac pgac;
  const at::Tensor x = torch::randn({4, 8});
  pgac.run(layers, x).sum().backward();
  pgac.set_mask({false, false, true, false, true});
  runs->fill(0);
  pgac.run(layers, x).sum().backward();
  EXPECT_EQ(*runs, (std::array<int, 5>{1, 1, 1, 2, 1}));
}

TEST(SkippedRegions, AnUnusedExpertIsNotRunAgain) {
  Linear a(8, 8), b(8, 8);
  const CountedFunction first{.f = [&](const at::Tensor& x) { return torch::gelu(a(x)); }};
  const CountedFunction second{.f = [&](const at::Tensor& x) { return torch::gelu(b(x)); }};
  const at::Tensor x = torch::randn({4, 8});
  const at::Tensor used = checkpoint(first, x), unused = checkpoint(second, x);
  used.sum().backward();
  EXPECT_EQ(*first.runs, 2);
  EXPECT_EQ(*second.runs, 1);
}

// A region in the middle of a model whose result is weighted.
struct Weighted {
  Linear before{8, 8}, inside{8, 8}, after{8, 8};
  CountedFunction region{.f = [this](const at::Tensor& x) {
    return torch::dropout(torch::gelu(inside(torch::layer_norm(x, {8}))), 0.1, true);
  }};

  // The gradients of x and of all parameters.
  Tensors step(double weight, const CheckpointOptions* options) {
    *region.runs = 0;
    torch::manual_seed(7);
    at::Tensor x = torch::randn({4, 8}).requires_grad_();
    const at::Tensor h = torch::tanh(before(x));
    const at::Tensor made = options != nullptr ? checkpoint(*options, region, h) : region(h);
    (after(h + weight * made)).square().sum().backward();
    Tensors gradients{x.grad()};
    for (const Linear& each : {before, inside, after}) {
      for (const at::Tensor& parameter : each->parameters()) {
        gradients.push_back(parameter.grad());
        parameter.mutable_grad() = at::Tensor();
      }
    }
    return gradients;
  }
};

TEST(SkippedRegions, ARegionWithZeroGradientsIsNotRunAgainIfItIsAskedFor) {
  torch::manual_seed(1);
  Weighted model;
  const CheckpointOptions plain, skips = skipping();
  const Tensors expected = model.step(0, nullptr);
  EXPECT_TRUE(same_values(model.step(0, &plain), expected));
  EXPECT_EQ(*model.region.runs, 2) << "not asked for";
  const Tensors found = model.step(0, &skips);
  EXPECT_EQ(*model.region.runs, 1);
  EXPECT_TRUE(same_values(found, expected));
  for (const at::Tensor& gradient : found) EXPECT_TRUE(gradient.defined());
}

TEST(SkippedRegions, ARegionWithOtherGradientsIsRunAgain) {
  torch::manual_seed(1);
  Weighted model;
  const CheckpointOptions skips = skipping();
  EXPECT_TRUE(same_bits(model.step(0.5, &skips), model.step(0.5, nullptr)));
  model.step(0.5, &skips);
  EXPECT_EQ(*model.region.runs, 2);
}

TEST(SkippedRegions, NaNIsNoZero) {
  torch::manual_seed(1);
  Weighted model;
  const CheckpointOptions skips = skipping();
  const Tensors found = model.step(std::nan(""), &skips);
  EXPECT_EQ(*model.region.runs, 2);
  EXPECT_TRUE(found[3].isnan().all().item<bool>());
}

TEST(SkippedRegions, RegionsInsideASkippedOneAreSkipped) {
  Linear inner_layer(8, 8), outer_layer(8, 8);
  const CountedFunction inner{
      .f = [&](const at::Tensor& x) { return torch::gelu(inner_layer(x)); }};
  const CountedFunction outer{
      .f = [&](const at::Tensor& x) { return torch::gelu(outer_layer(checkpoint(inner, x))); }};
  at::Tensor x = torch::randn({4, 8}).requires_grad_();
  (checkpoint(skipping(), outer, x) * 0).sum().backward();
  EXPECT_EQ(*outer.runs, 1);
  EXPECT_EQ(*inner.runs, 1);
  for (const Linear& each : {inner_layer, outer_layer}) {
    EXPECT_EQ(each->weight.grad().abs().sum().item<float>(), 0);
  }
  EXPECT_EQ(x.grad().abs().sum().item<float>(), 0);
  // Inside of one that is not.
  const CountedFunction around{.f = [&](const at::Tensor& y) {
    const at::Tensor made = checkpoint(skipping(), inner, y);
    return made * 0 + y.sin();
  }};
  *inner.runs = 0;
  checkpoint(around, x).sum().backward();
  EXPECT_EQ(*around.runs, 2);
  EXPECT_EQ(*inner.runs, 2) << "with the region around it, but not for itself";
}

TEST(SkippedRegions, ALaterBackwardWithOtherGradientsIsNotSkipped) {
  Linear layer(8, 8);
  const CountedFunction region{.f = [&](const at::Tensor& x) { return torch::gelu(layer(x)); }};
  at::Tensor x = torch::randn({4, 8}).requires_grad_();
  const at::Tensor y = checkpoint(skipping(), region, x);
  y.backward(torch::zeros_like(y), /*retain_graph=*/true);
  EXPECT_EQ(*region.runs, 1);
  EXPECT_EQ(x.grad().abs().sum().item<float>(), 0);
  y.backward(torch::ones_like(y), /*retain_graph=*/true);
  EXPECT_EQ(*region.runs, 2);
  const at::Tensor z = region(x);
  const at::Tensor expected = torch::autograd::grad({z}, {x}, {torch::ones_like(z)})[0];
  EXPECT_TRUE(same_bits({x.grad()}, {expected}));
  y.backward(torch::zeros_like(y));
  EXPECT_TRUE(same_bits({x.grad()}, {expected}));
}

TEST(SkippedRegions, CreateGraphRunsAgain) {
  const CountedFunction region{.f = [](const at::Tensor& x) { return x.pow(3); }};
  at::Tensor x = torch::randn({4}).requires_grad_();
  const at::Tensor weight = torch::zeros({4}).requires_grad_();
  const at::Tensor y = (checkpoint(skipping(), region, x) * weight).sum();
  const at::Tensor first = torch::autograd::grad({y}, {x}, {}, true, /*create_graph=*/true)[0];
  const at::Tensor second = torch::autograd::grad({first.sum()}, {weight})[0];
  EXPECT_TRUE(torch::allclose(second, 3 * x.square()));
}

struct TimesTwo : torch::autograd::Function<TimesTwo> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    return x * 2;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const at::Tensor x = context->get_saved_variables()[0];
    EXPECT_TRUE(x.ne(0).all().item<bool>()) << "what forward saved, not nothing";
    return {gradients[0] * 2};
  }
};

TEST(SkippedRegions, CustomFunctionsAreGivenWhatTheySaved) {
  const CountedFunction region{.f = [](const at::Tensor& x) { return TimesTwo::apply(x.exp()); }};
  at::Tensor x = torch::randn({4}).requires_grad_();
  (checkpoint(skipping(), region, x) * 0).sum().backward();
  EXPECT_EQ(*region.runs, 2);
  EXPECT_EQ(x.grad().abs().sum().item<float>(), 0);
}

TEST(SkippedRegions, SeveralResultsAreSkippedOnlyIfAllAreZero) {
  Linear layer(8, 8);
  int runs = 0;
  const auto region = [&](const at::Tensor& x) {
    ++runs;
    return std::make_tuple(torch::gelu(layer(x)), x.sin(), torch::arange(3));
  };
  at::Tensor x = torch::randn({4, 8}).requires_grad_();
  {
    const auto [a, b, number] = checkpoint(skipping(), region, x);
    (a.sum() * 0 + b.sum() * 0).backward();
    EXPECT_EQ(number.sum().item<int>(), 3);
  }
  EXPECT_EQ(runs, 1);
  {
    const auto [a, b, number] = checkpoint(skipping(), region, x);
    (a.sum() * 0 + b.sum()).backward();
  }
  EXPECT_EQ(runs, 3);
  const auto [a, b, number] = checkpoint(skipping(), region, x);
  (b.sum() * 0).backward();
  EXPECT_EQ(runs, 4) << "one has no gradient at all";
}

TEST(SkippedRegions, ResultsMayBeChangedInPlace) {
  torch::manual_seed(2);
  Linear layer(8, 8);
  at::Tensor x = torch::randn({4, 8}).requires_grad_();
  const auto run = [&](bool is_region) {
    const auto f = [&](const at::Tensor& y) { return layer(y); };
    at::Tensor y = is_region ? checkpoint(skipping(), f, x) : f(x);
    y.mul_(3).relu_();
    return torch::autograd::grad({y.sum()}, {x, layer->weight});
  };
  EXPECT_TRUE(same_bits(run(true), run(false)));
}

// A tensor that leaves the region otherwise than as its result has a gradient of its own.
TEST(SkippedRegions, WhatLeavesTheRegionAnotherWayHasItsGradient) {
  torch::manual_seed(3);
  const at::Tensor w = torch::randn({8, 8}).requires_grad_();
  at::Tensor x = torch::randn({4, 8}).requires_grad_();
  // Before or after the result's gradient has come, or by a root of its own.
  for (const int way : {0, 1, 2}) {
    const auto gradients = [&](const CheckpointOptions* options) {
      at::Tensor aside;
      const auto f = [&](const at::Tensor& t) {
        const at::Tensor h = torch::tanh(t.mm(w));
        const at::Tensor of_h = h.square().sum();
        if (!is_recomputing()) aside = of_h;
        return h.exp();
      };
      const at::Tensor y = options != nullptr ? checkpoint(*options, f, x) : f(x);
      x.mutable_grad() = at::Tensor();
      w.mutable_grad() = at::Tensor();
      if (way == 0) {
        (y.sum() * 0 + aside).backward();
      } else if (way == 1) {
        (aside.sin() + y.sum() * 0).backward();
      } else {
        torch::autograd::backward({(y * 0).sum(), aside}, {{}, {}});
      }
      return Tensors{x.grad(), w.grad()};
    };
    const CheckpointOptions skips = skipping();
    const Tensors expected = gradients(nullptr);
    EXPECT_GT(expected[1].abs().sum().item<float>(), 0.1F);
    EXPECT_TRUE(same_values(gradients(&skips), expected)) << way;
  }
}

TEST(SkippedRegions, ResultsThatShareMemoryStayWhatTheyAre) {
  at::Tensor x = torch::randn({4, 4}).requires_grad_();
  const auto both = [](const at::Tensor& t) {
    const at::Tensor h = t.sin();
    return std::make_tuple(h, h.view(16));
  };
  const auto run = [&](const CheckpointOptions& options) {
    auto [a, b] = checkpoint(options, both, x);
    b.mul_(3);
    return torch::autograd::grad({a.sum()}, {x});
  };
  EXPECT_TRUE(same_bits(run(skipping()), run({})));
  const auto view_of = [&](const CheckpointOptions& options) {
    const at::Tensor t = x * 1;
    at::Tensor b = checkpoint(
        options, [](const at::Tensor& y) { return y.view({16}); }, t);
    b.mul_(3);
    return torch::autograd::grad({t.sum()}, {x});
  };
  EXPECT_TRUE(same_bits(view_of(skipping()), view_of({})));
  const auto itself = [&](const CheckpointOptions& options) {
    const at::Tensor t = x * 1;
    at::Tensor b = checkpoint(
        options, [](const at::Tensor& y) { return y; }, t);
    b.mul_(3);
    return torch::autograd::grad({t.sum()}, {x});
  };
  EXPECT_TRUE(same_bits(itself(skipping()), itself({})));
}

TEST(SkippedRegions, HooksInsideSeeZeros) {
  int runs = 0, calls = 0;
  at::Tensor x = torch::randn({4}).requires_grad_();
  const auto f = counted(runs, [&](const at::Tensor& t) {
    const at::Tensor h = t.exp();
    if (!is_recomputing()) {
      h.register_hook([&](const at::Tensor& gradient) {
        ++calls;
        return gradient * 2;
      });
    }
    return h.sin();
  });
  (checkpoint(skipping(), f, x) * 0).sum().backward();
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(runs, 2);
}

TEST(SkippedRegions, TensorsOfTheProgramThatTheFunctionReadsGetZeros) {
  at::Tensor leaf = torch::randn({4}).requires_grad_(), x = torch::randn({4}).requires_grad_();
  const at::Tensor captured = leaf * 2;
  int calls = 0;
  captured.register_hook([&](const at::Tensor& gradient) {
    ++calls;
    EXPECT_EQ(gradient.abs().sum().item<float>(), 0);
  });
  int runs = 0;
  const auto f = counted(runs, [&](const at::Tensor& t) { return (t * captured).sin(); });
  const auto gradients =
      torch::autograd::grad({(checkpoint(skipping(), f, x) * 0).sum()}, {captured, x, leaf});
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(calls, 1);
  for (const at::Tensor& gradient : gradients) {
    EXPECT_EQ(gradient.abs().sum().item<float>(), 0);
  }
}

TEST(SkippedRegions, MetaTensorsAreRunAgain) {
  at::Tensor x = torch::randn({4}, at::device(at::kMeta)).requires_grad_();
  int runs = 0;
  const auto f = counted(runs, [](const at::Tensor& t) { return t.sin(); });
  (checkpoint(skipping(), f, x) * 0).sum().backward();
  EXPECT_EQ(runs, 2);
}

TEST(SkippedRegions, LeaveNothingBehind) {
  Linear layer(64, 64);
  at::Tensor x = torch::randn({64, 64}).requires_grad_();
  const auto step = [&](double weight) {
    at::Tensor loss = (checkpoint(skipping(), layer, x) * weight).sum();
    loss.backward();
    layer->zero_grad();
    x.mutable_grad() = at::Tensor();
  };
  step(0);
  const Bytes before = live_bytes();
  step(0);
  step(1);
  checkpoint(skipping(), layer, x);
  EXPECT_EQ(live_bytes(), before);
}

TEST(SkippedRegions, ReentrantOnesRefuseTheOption) {
  CheckpointOptions options = skipping();
  options.reentrant = true;
  EXPECT_TRUE(contains(refusal_of([&] {
                         checkpoint(
                             options, [](const at::Tensor& x) { return x; }, torch::ones(1));
                       }),
                       "skip_zero_gradients=true is only supported with reentrant=false"));
}

}  // namespace
}  // namespace reprise
