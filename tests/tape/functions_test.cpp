// Custom functions that compute through pointers: called through reprise::apply they are run again
// as a whole.

#include <gmock/gmock.h>
#include <reprise/checkpoint.h>
#include <reprise/selective.h>
#include <torch/torch.h>

#include <cmath>

#include "tests/tape/testing.h"

namespace reprise {
namespace {

using at::Tensor;
using testing::is_right_when_all_is_dropped;
using testing::leaf;
using testing::same_bits;
using testing::Tensors;
using torch::autograd::AutogradContext;

template <class F>
Tensor filled(const Tensor& x, const F& f) {
  Tensor y = at::empty_like(x);
  const float* const from = x.const_data_ptr<float>();
  float* const to = y.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < x.numel(); ++i) to[i] = f(from[i]);
  return y;
}

struct Power : torch::autograd::Function<Power> {
  static inline int runs = 0;
  static Tensor forward(AutogradContext* context, const Tensor& x, double shift,
                        std::vector<std::int64_t> shape) {
    ++runs;
    context->save_for_backward({x});
    context->saved_data["shift"] = shift;
    return filled(x,
                  [&](float value) {
                    return (value + static_cast<float>(shift)) *
                           (value + static_cast<float>(shift));
                  })
        .view(shape);
  }
  static Tensors backward(AutogradContext* context, Tensors gradients) {
    const Tensor x = context->get_saved_variables()[0];
    return {gradients[0].view(x.sizes()) * (x + context->saved_data["shift"].toDouble()) * 2,
            Tensor(), Tensor()};
  }
};

Tensor power(const Tensor& x) {
  return reprise::apply<Power>(x, 0.5, std::vector<std::int64_t>(x.sizes().vec()));
}

struct Layers {
  Tensors weights{leaf({64, 64}), leaf({64, 64}), leaf({64, 64}), leaf({64, 64}), leaf({64, 64})};
  Tensor x = at::randn({256, 64});

  Tensor operator()() const { return blocks(power); }
  Tensor blocks(Tensor (*function)(const Tensor&)) const {
    Tensor h = x;
    for (const Tensor& weight : weights) {
      h = at::tanh(at::matmul(h, weight));
      h = h + function(h);
    }
    return h;
  }
};

TEST(Functions, AreRunAgainAsAWhole) {
  const Layers layers;
  EXPECT_TRUE(is_right_when_all_is_dropped(layers, layers.weights));
}

TEST(Functions, ThatFillTheirResultsLeaveNothingThatCannotBeDropped) {
  const Layers layers;
  const Tensors plain = testing::plain_gradients(layers, layers.weights);
  const auto run = [&] { testing::plain_gradients(layers, layers.weights); };
  for (const double share : {1.1, 0.9, 0.75, 0.6}) {
    for (const bool learn : {false, true}) {
      MemoryBudget budget(testing::limit_at(share, run),
                          {.plan_repeated_steps = learn, .verify = true});
      for (int i = 0; i < 3; ++i) {
        EXPECT_TRUE(same_bits(testing::gradients_under(budget, layers, layers.weights), plain));
        EXPECT_LE(budget.report().peak, budget.limit());
        EXPECT_EQ(budget.report().other_threads, Bytes(0)) << "replays are the step's";
        EXPECT_EQ(budget.report().dropped > 0, share < 1);
      }
    }
  }
}

// The memory that they fill by pointer has no producer: each block keeps one of its activations.
TEST(Functions, ThatAreCalledDirectlyKeepOneActivationForEach) {
  Layers layers;
  for (int i = 0; i < 5; ++i) layers.weights.push_back(leaf({64, 64}));
  const auto f = [&] {
    return layers.blocks([](const Tensor& x) {
      return Power::apply(x, 0.5, std::vector<std::int64_t>(x.sizes().vec()));
    });
  };
  const Tensors plain = testing::plain_gradients(f, layers.weights);
  const auto run = [&] { testing::plain_gradients(f, layers.weights); };
  for (const double share : {1.1, 0.9, 0.7, 0.6}) {
    MemoryBudget budget(testing::limit_at(share, run),
                        {.plan_repeated_steps = false, .verify = true});
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(same_bits(testing::gradients_under(budget, f, layers.weights), plain));
      EXPECT_LE(budget.report().peak, budget.limit());
      EXPECT_EQ(budget.report().dropped > 0, share < 1);
    }
  }
}

TEST(Functions, MakeTheirResultAgainWhenItIsRead) {
  const at::NoGradGuard no_grad;
  MemoryBudget budget(GiB(64), testing::paranoid());
  auto step = budget.step();
  const Tensor x = at::randn({64}).exp();
  const Tensor y = power(x);
  const int before = Power::runs;
  const Tensor z = y.sin();
  EXPECT_EQ(Power::runs, before + 1);
  step.finish();
  EXPECT_TRUE(z.equal(x.add(0.5).square().sin()));
}

struct Noise : torch::autograd::Function<Noise> {
  static Tensor forward(AutogradContext*, const Tensor& x) {
    const Tensor noise = at::rand_like(x);
    auto generator = at::globalContext().defaultGenerator(c10::kCPU);
    const float drawn = at::rand({1}, generator).item<float>();
    return filled(x, [&](float value) { return value * drawn; }).mul_(noise.sum());
  }
  static Tensors backward(AutogradContext*, Tensors gradients) { return gradients; }
};

struct NoiseByPointer : torch::autograd::Function<NoiseByPointer> {
  static Tensor forward(AutogradContext*, const Tensor& x) {
    const Tensor noise = at::rand_like(x);
    const float* const values = noise.const_data_ptr<float>();
    return filled(x, [&](float value) { return value * values[0] + values[1]; });
  }
  static Tensors backward(AutogradContext*, Tensors gradients) { return gradients; }
};

TEST(Functions, DrawTheSameAgain) {
  const Tensor w = leaf({64, 32});
  const auto f = [&] {
    Tensor h = w.exp();
    for (int i = 0; i < 3; ++i) {
      h = reprise::apply<Noise>(h).sin() + at::rand_like(h);
      h = reprise::apply<NoiseByPointer>(h).sin() * at::rand_like(h);
    }
    return h;
  };
  const Tensors plain = testing::plain_gradients(f, {w});
  const Tensor after = at::rand({4});
  for (const bool is_paranoid : {true, false}) {
    MemoryBudget budget(
        is_paranoid ? GiB(64) : testing::limit_at(0.9, [&] { testing::plain_gradients(f, {w}); }),
        {.min_bytes = Bytes(1), .paranoid = is_paranoid});
    EXPECT_TRUE(same_bits(testing::gradients_under(budget, f, {w}), plain));
    EXPECT_GT(budget.report().replayed, 0);
    EXPECT_TRUE(at::rand({4}).equal(after));
  }
}

// What it reads beside its arguments may be changed by then.
Tensor& captured() {
  static auto* tensor = new Tensor;
  return *tensor;
}
struct Captures : torch::autograd::Function<Captures> {
  static inline int runs = 0;
  static Tensor forward(AutogradContext*, const Tensor& x) {
    ++runs;
    const float factor = captured().sum().item<float>();
    return filled(x, [&](float value) { return value * factor; });
  }
  static Tensors backward(AutogradContext*, Tensors gradients) { return gradients; }
};

struct InPlace : torch::autograd::Function<InPlace> {
  static inline int runs = 0;
  static Tensor forward(AutogradContext*, const Tensor& x) {
    ++runs;
    Tensor y = filled(x, [](float value) { return value + 1; });
    x.mul_(2);
    return y;
  }
  static Tensors backward(AutogradContext*, Tensors gradients) { return gradients; }
};

struct ByAddress : torch::autograd::Function<ByAddress> {
  static inline int runs = 0;
  static Tensor forward(AutogradContext*, const Tensor& x, const float* factor) {
    ++runs;
    return filled(x, [&](float value) { return value * *factor; });
  }
  static Tensors backward(AutogradContext*, Tensors gradients) { return {gradients[0], Tensor()}; }
};

TEST(Functions, ThatDependOnMoreThanTheirArgumentsAreNotRunAgain) {
  const at::NoGradGuard no_grad;
  for (const bool is_old : {false, true}) {
    EXPECT_TRUE(testing::does_the_same_when_all_is_dropped([&] {
      captured() = is_old ? at::ones({8}) : at::ones({8}).exp();
      Tensor x = at::randn({64}).exp();
      Tensor a = reprise::apply<Captures>(x);
      captured().add_(1);
      Tensor b = reprise::apply<InPlace>(x);
      Tensor c;
      {
        const float factor = 3;
        c = reprise::apply<ByAddress>(x, &factor);
      }
      return Tensors{a.sin(), b.sin(), c.sin(), x.sin()};
    }));
  }
  const int captures = Captures::runs, in_place = InPlace::runs, by_address = ByAddress::runs;
  MemoryBudget budget(GiB(64), testing::paranoid());
  auto step = budget.step();
  captured() = at::ones({8});
  const Tensor x = at::randn({64}).exp();
  const Tensor a = reprise::apply<Captures>(x), b = reprise::apply<InPlace>(x);
  const float factor = 2;
  const Tensor c = reprise::apply<ByAddress>(x, &factor);
  const Tensor sum = a.sin() + b.sin() + c.sin();
  step.finish();
  EXPECT_EQ(Captures::runs, captures + 1);
  EXPECT_EQ(InPlace::runs, in_place + 1);
  EXPECT_EQ(ByAddress::runs, by_address + 1);
  captured() = Tensor();
}

struct Fails : torch::autograd::Function<Fails> {
  static Tensor forward(AutogradContext*, const Tensor& x) {
    const Tensor y = filled(x, [](float value) { return value; });
    throw std::out_of_range("forward");
  }
  static Tensors backward(AutogradContext*, Tensors gradients) { return gradients; }
};

TEST(Functions, ThatFailLeaveNothingBehind) {
  const Layers layers;
  const Tensors plain = testing::plain_gradients(layers, layers.weights);
  MemoryBudget budget(GiB(64), testing::paranoid());
  {
    auto step = budget.step();
    const Tensor h = layers.x.exp();
    EXPECT_EQ(testing::error_of<std::out_of_range>([&] { reprise::apply<Fails>(h); }), "forward");
    EXPECT_TRUE(power(h).sin().defined());
    step.finish();
  }
  EXPECT_TRUE(same_bits(testing::gradients_under(budget, layers, layers.weights), plain));
}

struct AsksForGradients : torch::autograd::Function<AsksForGradients> {
  static Tensor forward(AutogradContext* context, const Tensor& x) {
    const float factor = context->needs_input_grad(0) ? 2 : 3;
    return filled(x, [&](float value) { return value * factor; });
  }
  static Tensors backward(AutogradContext*, Tensors gradients) { return {gradients[0] * 2}; }
};

TEST(Functions, ThatAskWhichInputsNeedGradientsGetTheSameAnswerAgain) {
  const Tensor w = leaf({64, 32});
  EXPECT_TRUE(is_right_when_all_is_dropped(
      [&] {
        const Tensor h = reprise::apply<AsksForGradients>(w.exp());
        return (reprise::apply<AsksForGradients>(h.cos()) * h).sin();
      },
      {w}));
}

struct MakesFewerLater : torch::autograd::Function<MakesFewerLater> {
  static inline int runs = 0;
  static Tensors forward(AutogradContext*, const Tensor& x) {
    const auto copy = [&] { return filled(x, [](float value) { return value; }); };
    return ++runs == 1 ? Tensors{copy(), copy()} : Tensors{copy()};
  }
  static Tensors backward(AutogradContext*, Tensors gradients) { return {gradients[0]}; }
};

TEST(Functions, ThatMakeFewerResultsAgainAreAnError) {
  const at::NoGradGuard no_grad;
  MemoryBudget budget(GiB(64), testing::paranoid());
  auto step = budget.step();
  const Tensors y = reprise::apply<MakesFewerLater>(at::randn({64}).exp());
  EXPECT_THAT(testing::error_of<DeterminismError>([&] { y[1].sin(); }),
              ::testing::HasSubstr("made 1 results when it was run again, and more at first"));
}

TEST(Functions, InRegionsAndUnderPoliciesInsideOfSteps) {
  const Tensor w = leaf({64, 32});
  for (const auto& policy : {OperatorPolicy{function_name<Power>()}, save_matmuls()}) {
    const auto f = [&] {
      Tensor h = w.exp();
      for (int i = 0; i < 3; ++i) {
        h = checkpoint(
            {.context = selective(policy)},
            [](const Tensor& x) { return power(x.sin()).cos() + x; }, h);
      }
      return h;
    };
    EXPECT_TRUE(is_right_when_all_is_dropped(f, {w}));
  }
}

TEST(Functions, KeepTheAmbientStateOfTheirFirstRun) {
  const at::NoGradGuard no_grad;
  const c10::ScalarType before = c10::get_default_dtype_as_scalartype();
  EXPECT_TRUE(testing::does_the_same_when_all_is_dropped([&] {
    const Tensor x = at::randn({64}).exp();
    struct Typed : torch::autograd::Function<Typed> {
      static Tensor forward(AutogradContext*, const Tensor& x) {
        const double type = at::ones({1}).element_size();
        return filled(x, [&](float value) { return value * static_cast<float>(type); });
      }
      static Tensors backward(AutogradContext*, Tensors gradients) { return gradients; }
    };
    at::set_default_dtype(caffe2::TypeMeta::Make<double>());
    const Tensor y = reprise::apply<Typed>(x);
    at::set_default_dtype(c10::scalarTypeToTypeMeta(before));
    return Tensors{y.sin()};
  }));
}

}  // namespace
}  // namespace reprise
