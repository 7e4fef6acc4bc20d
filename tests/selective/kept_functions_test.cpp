// Custom autograd functions under a policy that keeps them: what they draw and write, and results
// that change.

#include <gmock/gmock.h>
#include <reprise/error.h>
#include <reprise/selective.h>

#include "tests/selective/kept_rightly.h"

namespace reprise {
namespace {

using at::Tensor;
using testing::contains;
using testing::error_of;
using testing::gradients_of;
using testing::same_bits;
using testing::Tensors;
using testing::with_policy;
using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

using KeptFunctions = testing::KeptRightly;

struct Masking : torch::autograd::Function<Masking> {
  static Tensor forward(AutogradContext* context, const Tensor& x) {
    const Tensor mask = at::bernoulli(at::full_like(x, 0.5));
    context->save_for_backward({mask});
    return x * mask;
  }
  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    return {context->get_saved_variables()[0] * gradients[0]};
  }
};
struct Square : torch::autograd::Function<Square> {
  static Tensor forward(AutogradContext* context, const Tensor& x) {
    context->save_for_backward({x});
    return x * x;
  }
  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    return {2 * context->get_saved_variables()[0] * gradients[0]};
  }
};
struct Doubling : torch::autograd::Function<Doubling> {
  static Tensor forward(AutogradContext* context, const Tensor& x) {
    const Tensor same = x.mul_(2);
    context->mark_dirty({same});
    return same;
  }
  static tensor_list backward(AutogradContext*, tensor_list gradients) {
    return {2 * gradients[0]};
  }
};
struct Counting : torch::autograd::Function<Counting> {
  static Tensor forward(AutogradContext*, const Tensor& x, const Tensor& count) {
    Tensor(count).add_(1);
    return x * 2;
  }
  static tensor_list backward(AutogradContext*, tensor_list gradients) {
    return {2 * gradients[0], Tensor()};
  }
};

// A list of names would mean kMustSave.
OperatorPolicy prefers(const char* name) {
  return OperatorPolicy([name](const SelectiveCheckpointContext& call) {
    return call.is(name) ? CheckpointPolicy::kPreferSave : CheckpointPolicy::kPreferRecompute;
  });
}

TEST_F(KeptFunctions, AFunctionThatDrawsLeavesTheGeneratorAsIfItHadRun) {
  EXPECT_TRUE(is_right(
      [this] {
        return [this](const Tensor& x) {
          return at::dropout(reprise::apply<Masking>(x.mm(w_)).exp(), 0.5, true).exp();
        };
      },
      {function_name<Masking>()}));
}

TEST_F(KeptFunctions, AFunctionThatWritesRunsAgainOrIsRefused) {
  const auto doubles = [this] {
    return [this](const Tensor& x) {
      const Tensor h = x.mm(w_).sin();
      reprise::apply<Doubling>(h);
      return h.mul(2).exp();
    };
  };
  const Tensor count = at::zeros({});
  const auto counts = [&, this] {
    return [&, this](const Tensor& x) {
      return (reprise::apply<Counting>(x.mm(w_), count) * (count + 1)).exp();
    };
  };
  EXPECT_TRUE(is_right(doubles, prefers("autograd::Doubling")));
  count.zero_();
  const Tensors plain = gradients_of([&] { return counts()(x_); }, {x_, w_});
  count.zero_();
  const auto options = with_policy(prefers("autograd::Counting"));
  EXPECT_TRUE(
      same_bits(gradients_of([&] { return checkpoint(options, counts(), x_); }, {x_, w_}), plain));
  EXPECT_EQ(count.item<float>(), 1);
  const OperatorPolicy strict([](const SelectiveCheckpointContext& call) {
    return call.is("autograd::Counting") ? CheckpointPolicy::kMustSave
                                         : CheckpointPolicy::kPreferRecompute;
  });
  EXPECT_TRUE(contains(
      error_of<UsageError>([&] { checkpoint(with_policy(strict), counts(), x_); }),
      "Counting, which changes its arguments in place: a kept result cannot take the place"));
}

TEST_F(KeptFunctions, AFunctionWhoseResultIsChangedRunsAgainPastTheRegionsHooks) {
  for (const EarlyStop stop : {EarlyStop::kNever, EarlyStop::kAlways}) {
    const auto f = [this](const Tensor& x) {
      const Tensor h = x.mm(w_).exp();
      return reprise::apply<Square>(h).add_(1).mm(h).exp();
    };
    const Tensors plain = gradients_of([&] { return f(x_); }, {x_, w_});
    CheckpointOptions options = with_policy(prefers("autograd::Square"));
    options.early_stop = stop;
    EXPECT_TRUE(
        same_bits(gradients_of([&] { return checkpoint(options, f, x_); }, {x_, w_}), plain));
  }
}

}  // namespace
}  // namespace reprise
