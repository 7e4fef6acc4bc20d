// Steps that an estimate cannot follow are refused by name, and leave no trace.
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <reprise/estimate.h>
#include <reprise/sequential.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <stdexcept>

#include "tests/refusal.h"

namespace reprise {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::int64_t kRows = 16, kColumns = 64;

struct Scaled : nn::Module {
  at::Tensor weight = register_parameter("weight", at::ones({kColumns, kColumns}));
  at::Tensor cache;

  at::Tensor loss(const at::Tensor& x) { return at::mm(x, weight).square().mean(); }
  // As modules do that learn sizes from their first input.
  at::Tensor lazy_loss(const at::Tensor& x) {
    if (!cache.defined()) cache = register_buffer("cache", at::zeros({kColumns}));
    return loss(x + cache);
  }
};

std::string refusal_by(nn::Module& module, const std::function<at::Tensor()>& loss,
                       const EstimateOptions& options = {}) {
  return refusal_of([&] { estimate_step(module, loss, options); });
}

class Autocast {
 public:
  explicit Autocast(at::ScalarType dtype) : outer_(at::autocast::get_autocast_dtype(at::kCPU)) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, dtype);
  }
  ~Autocast() {
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::set_autocast_dtype(at::kCPU, outer_);
    at::autocast::clear_cache();
  }

 private:
  at::ScalarType outer_;
};

TEST(RefusedStep, RunsUnderAutocast) {
  Scaled module;
  const auto x = at::rand({kRows, kColumns});
  const auto step = [&] {
    const Autocast cast(at::kBFloat16);
    return module.loss(x);
  };
  EXPECT_THAT(refusal_by(module, step),
              AllOf(HasSubstr("runs under autocast to BFloat16"), HasSubstr("convert the module")));
  // That of another device does nothing there.
  EXPECT_EQ(refusal_by(module, step, {.device = c10::kCUDA}), "");
}

TEST(RefusedStep, OnAMachineWithoutRates) {
  Scaled module;
  const auto refusal = [&](const Machine& machine) {
    return refusal_by(module,
                      [&] {
                        return module.loss(at::rand({kRows, kColumns}));
                      },
                      {.machine = machine});
  };
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  EXPECT_THAT(refusal({.flops = 0}),
              HasSubstr("the machine's flops is 0; it must be from 1 to 1e+24"));
  EXPECT_THAT(refusal({.flops = 1e-9}), HasSubstr("flops is 1e-09; it must be"));
  EXPECT_THAT(refusal({.low_precision_flops = std::nan("")}),
              HasSubstr("low_precision_flops is nan; it must be from 1 to 1e+24"));
  EXPECT_THAT(refusal({.bandwidth = kInfinite}),
              HasSubstr("bandwidth is inf; it must be from 1 to 1e+24"));
  EXPECT_THAT(refusal({.overhead = std::chrono::seconds(-1)}),
              HasSubstr("overhead is -1; it must be from 0 to 1"));
  EXPECT_THAT(refusal({.overhead = std::chrono::duration<double>(kInfinite)}),
              HasSubstr("overhead is inf; it must be from 0 to 1"));
}

TEST(RefusedStep, OfMonths) {
  Scaled module;
  const auto step = [&] { return module.loss(at::rand({1024, kColumns})); };
  for (const Machine& slow : {Machine{.flops = 1}, Machine{.bandwidth = 1e-0, .overhead = {}}}) {
    EXPECT_THAT(refusal_by(module,
                           [&] {
                             return module.loss(at::empty({1 << 20, kColumns}, at::kMeta));
                           },
                           {.machine = slow}),
                AllOf(HasSubstr("the step would take "), HasSubstr(" days at "),
                      HasSubstr("; give the machine's rates (--flops, --bandwidth)")));
  }
  EXPECT_EQ(refusal_by(module, step, {.machine = {.flops = 1e3}}), "");
}

// A layer that counts how often it runs.
struct CountedImpl : nn::Module {
  explicit CountedImpl(int* count) : runs(count) { register_module("linear", linear); }
  at::Tensor forward(const at::Tensor& x) {
    ++*runs;
    return linear(x).tanh();
  }
  nn::Linear linear{kColumns, kColumns};
  int* runs;
};
TORCH_MODULE(Counted);

// And keeps no plan for layers without memory, by which a real step would recompute nothing. Which
// layers a plan runs again depends on what was measured; how many runs measuring takes, and that
// there must be some again in so few bytes, does not.
TEST(RefusedStep, MeasuresAChain) {
  constexpr int kLayers = 12;
  const auto x = at::rand({256, kColumns}).requires_grad_();
  const Bytes budget(8 * 256 * kColumns * 4);
  int runs = 0;
  const auto runs_to_measure = [&](bool estimates_before) {
    nn::Sequential chain;
    for (int i = 0; i < kLayers; ++i) chain->push_back(Counted(&runs));
    const auto step = [&] { return checkpoint_sequential(chain, budget, x).sum(); };
    if (estimates_before) {
      EXPECT_THAT(refusal_by(*chain, step),
                  AllOf(HasSubstr("checkpoint_sequential()"), HasSubstr("give it a schedule")));
    }
    runs = 0;
    const at::Tensor measured = step();
    const int measuring = runs - kLayers;
    runs = 0;
    const at::Tensor planned = step();
    EXPECT_EQ(runs, kLayers);
    runs = 0;
    measured.backward();
    EXPECT_GT(runs, 0);
    runs = 0;
    planned.backward();
    EXPECT_GT(runs, 0);
    return measuring;
  };
  const int plain = runs_to_measure(false);
  EXPECT_GE(plain, kLayers);
  EXPECT_EQ(runs_to_measure(true), plain);
}

TEST(RefusedStep, LeavesABufferWithoutMemory) {
  const auto x = at::rand({kRows, kColumns});
  {
    Scaled module;
    EXPECT_THAT(refusal_by(module, [&] { return module.lazy_loss(x); }),
                AllOf(HasSubstr("\"cache\""), HasSubstr("before the estimate")));
  }
  {
    Scaled module;
    const auto fails = [&]() -> at::Tensor {
      module.lazy_loss(x);
      throw std::runtime_error("theirs");
    };
    EXPECT_THAT(refusal_by(module, fails), AllOf(HasSubstr("\"cache\""), HasSubstr("theirs")));
  }
  // Where it was there before, or nothing of the module has memory, nobody minds.
  Scaled module;
  module.lazy_loss(x);
  EXPECT_EQ(refusal_by(module, [&] { return module.lazy_loss(x); }), "");
  EXPECT_FALSE(module.cache.is_meta());
  std::optional<Scaled> unallocated;
  {
    const MetaTensorsScope meta;
    unallocated.emplace();
  }
  EXPECT_EQ(refusal_by(*unallocated, [&] { return unallocated->lazy_loss(x); }), "");
}

TEST(RefusedStep, TrainsATensorOutsideOfTheModule) {
  Scaled module;
  const auto outside = at::rand({kRows, kColumns}).requires_grad_();
  EXPECT_THAT(
      refusal_by(module, [&] { return module.loss(outside); }),
      AllOf(HasSubstr("[16, 64]"), HasSubstr("outside of the module"), HasSubstr("detach()")));
  EXPECT_FALSE(outside.grad().defined());
  const auto factor = at::ones({}).requires_grad_();
  EXPECT_EQ(refusal_by(module, [&] { return module.loss(outside.detach()) * factor; }), "");
  EXPECT_FALSE(factor.grad().defined());
  // One that no gradient comes to is no matter, nor one that is copied first.
  EXPECT_EQ(refusal_by(module, [&] { return module.loss(outside.detach()); }), "");
  EXPECT_EQ(refusal_by(module,
                       [&] {
                         const auto copy = outside.detach().clone().requires_grad_();
                         return module.loss(copy);
                       }),
            "");
}

TEST(RefusedStep, IsNotOfOneRealNumber) {
  Scaled module;
  const auto x = at::rand({kRows, kColumns});
  EXPECT_THAT(refusal_by(module,
                         [&] {
                           const auto y = module.loss(x);
                           return at::complex(y, y);
                         }),
              AllOf(HasSubstr("one real number"), HasSubstr("1 complex numbers")));
  EXPECT_THAT(refusal_by(module, std::function<at::Tensor()>()),
              HasSubstr("the function is empty"));
}

TEST(RefusedStep, IsOfSparseOrPackedTensorsOrReplacesOne) {
  Scaled module;
  const auto x = at::rand({kRows, kColumns});
  const auto sparse = at::eye(kRows).to_sparse();
  EXPECT_THAT(refusal_by(module, [&] { return at::mm(sparse, x.mm(module.weight)).sum(); }),
              AllOf(HasSubstr("sparse tensors"), HasSubstr("to_dense()")));
  const auto lengths = at::full({kRows}, 4, at::kLong);
  EXPECT_THAT(
      refusal_by(
          module,
          [&] {
            const auto sequence = x.mm(module.weight).view({kRows, 8, 8});
            return nn::utils::rnn::pack_padded_sequence(sequence, lengths, true).data().sum();
          }),
      HasSubstr("reads values of a tensor"));
  auto outside = at::rand({4});
  EXPECT_THAT(refusal_by(module,
                         [&] {
                           outside.set_data(at::rand({9}));
                           return module.loss(x);
                         }),
              AllOf(HasSubstr("set_data()"), HasSubstr("copy_()")));
}

// Attention asks whether its query and key are equal: those of different sizes are not.
TEST(EstimateStep, KnowsThatTensorsOfDifferentSizesAreNotEqual) {
  Scaled module;
  const auto x = at::rand({kRows, kColumns});
  EXPECT_EQ(refusal_by(module,
                       [&] {
                         EXPECT_FALSE(at::equal(x, x.t()));
                         EXPECT_TRUE(at::equal(x, x));
                         return module.loss(x);
                       }),
            "");
  EXPECT_THAT(refusal_by(module,
                         [&] {
                           at::equal(x, at::rand({kRows, kColumns}));
                           return module.loss(x);
                         }),
              HasSubstr("reads values of a tensor"));
}

TEST(RefusedStep, HasNoKernelInBackwardOnly) {
  struct NoKernelInBackward : torch::autograd::Function<NoKernelInBackward> {
    static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
      return x * 2;
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                   torch::autograd::variable_list gradients) {
      return {std::get<1>(at::linalg_eig(gradients[0]))};
    }
  };
  Scaled module;
  EXPECT_THAT(
      refusal_by(module, [&] { return module.loss(NoKernelInBackward::apply(module.weight)); }),
      AllOf(HasSubstr("calls aten::linalg_eig"), HasSubstr("docs/extending.md")));
}

TEST(MetaTensors, SaysWhatHasNoValueAndWhatHasNoKernel) {
  const MetaTensorsScope meta;
  const auto x = at::ones({3, 3});
  EXPECT_THAT(refusal_of([&] { x.sum().item<double>(); }),
              AllOf(HasSubstr("item()"), HasSubstr("reads values of a tensor"),
                    Not(HasSubstr("_local_scalar_dense"))));
  EXPECT_THAT(refusal_of([&] { x.nonzero(); }), HasSubstr("reads values of a tensor"));
  EXPECT_THAT(refusal_of([&] { at::linalg_eig(x); }),
              AllOf(HasSubstr("calls aten::linalg_eig"), HasSubstr("docs/extending.md")));
}

TEST(RefusedStep, ReadsMemory) {
  Scaled module;
  const auto x = at::rand({kRows, kColumns});
  const auto refusal = [&](const std::function<void(const at::Tensor&)>& read) {
    return refusal_by(module, [&] {
      const at::Tensor loss = module.loss(x);
      read(loss);
      return loss;
    });
  };
  EXPECT_THAT(refusal([](const at::Tensor& y) { y.item<double>(); }), HasSubstr("item()"));
  EXPECT_THAT(refusal([](const at::Tensor& y) { y.data_ptr<float>(); }),
              HasSubstr("reads values of a tensor"));
  EXPECT_THAT(refusal([](const at::Tensor& y) {
                const at::Tensor row = y.view(1);
                row.accessor<float, 1>();
              }),
              HasSubstr("reads values of a tensor"));
}

}  // namespace
}  // namespace reprise
