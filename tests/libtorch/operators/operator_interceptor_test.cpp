// The contract of operator interceptors, which both variants keep: ctest runs this program once as
// LibTorch allows and once with REPRISE_INTERCEPTOR=generic.
#include "libtorch/operators/operator_interceptor.h"

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <reprise/error.h>
#include <torch/library.h>

#include <cstdlib>
#include <thread>

#include "tests/libtorch/operators/interceptor_testing.h"
#include "tests/region/testing.h"

namespace reprise {
namespace {

using libtorch::OperatorCall;
using libtorch::OperatorInterceptorScope;
using libtorch::Reach;
using ::testing::Contains;
using ::testing::ElementsAre;
using testing::intercept_by;
using ::testing::IsEmpty;
using testing::leaf;
using ::testing::Not;
using testing::operators_of;
using testing::same_bits;
using testing::Seen;

TEST(OperatorInterceptor, TheVariantIsTheOneThatTheEnvironmentAsksFor) {
  const char* const forced = std::getenv("REPRISE_INTERCEPTOR");
  EXPECT_EQ(libtorch::operator_interceptor_variant(), forced != nullptr ? forced : "fake");
}

TEST(OperatorInterceptor, SeesTheOperatorsBelowAutogradAndNotTheComposites) {
  const at::Tensor x = leaf({3, 4}), w = leaf({5, 4}), b = leaf({5});
  EXPECT_THAT(operators_of([&] { at::linear(x, w, b); }), ElementsAre("t", "addmm"));
  EXPECT_THAT(operators_of([&] { x.view({12}).detach(); }), ElementsAre("view", "detach"));
  EXPECT_THAT(operators_of([&] { at::matmul(x, w.t()); }), ElementsAre("t", "mm"));
}

TEST(OperatorInterceptor, SeesFactoryFunctionsWhole) {
  EXPECT_THAT(operators_of([] { at::ones({2}); }), ElementsAre("ones"));
  EXPECT_THAT(operators_of([] { at::empty({2}); }), ElementsAre("empty.memory_format"));
  EXPECT_THAT(operators_of([] { at::arange(3); }), ElementsAre("arange"));
}

TEST(OperatorInterceptor, SeesInPlaceOperatorsAndReadsOfValues) {
  const at::Tensor x = at::ones({2});
  EXPECT_THAT(operators_of([&] { x.mul_(2).sum().item<float>(); }),
              ElementsAre("mul_.Scalar", "sum", "_local_scalar_dense"));
}

// Autograd saves what an operator is about to overwrite as a copy of its own.
TEST(OperatorInterceptor, SeesWhatAutogradsOwnKernelsCall) {
  const at::Tensor x = leaf({3}), y = leaf({3});
  const auto multiply = [&] { x.exp().mul_(y); };
  EXPECT_THAT(operators_of(multiply), ElementsAre("exp", "clone", "mul_.Tensor"));
  OperatorInterceptorScope outer(intercept_by([](OperatorCall&) {}));
  EXPECT_THAT(operators_of(multiply), ElementsAre("exp", "clone", "mul_.Tensor"));
}

at::Tensor sine_of_sine(const at::Tensor& x) { return x.sin().sin(); }

// With a kernel of its own for autograd, an operator is what that calls.
TEST(OperatorInterceptor, SeesWhatAnAutogradKernelOfSomebodyElseCalls) {
  torch::Library library(torch::Library::FRAGMENT, "reprise_own", std::nullopt, __FILE__, __LINE__);
  library.def("sine_of_sine(Tensor x) -> Tensor");
  torch::Library kernels(torch::Library::IMPL, "reprise_own", c10::DispatchKey::AutogradCPU,
                         __FILE__, __LINE__);
  kernels.impl("sine_of_sine", &sine_of_sine);
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow("reprise_own::sine_of_sine", "")
                      .typed<at::Tensor(const at::Tensor&)>();
  const at::Tensor x = leaf({2});
  EXPECT_THAT(operators_of([&] { op.call(x); }), ElementsAre("sin", "sin"));
}

TEST(OperatorInterceptor, SeesAnOperatorWithPartsWholeWhereABackendHasAKernelOfIt) {
  const at::Tensor x = at::ones({2}), gradient = at::ones({2});
  const auto call = [&] { at::silu_backward(gradient, x); };
  EXPECT_THAT(operators_of(call), ElementsAre("silu_backward"));
  EXPECT_THAT(operators_of([&] {
                const c10::InferenceMode mode;
                call();
              }),
              ElementsAre("silu_backward"));
}

TEST(OperatorInterceptor, LeavesCompositesOfOtherLayoutsAsTheyAre) {
  if (!at::hasMKLDNN()) GTEST_SKIP() << "LibTorch was built without oneDNN";
  const at::Tensor x = leaf({2, 3});
  operators_of([&] { EXPECT_TRUE(same_bits(x.detach().to_mkldnn().to_dense(), x.detach())); });
}

// Sparse kernels are whole where they are seen, and what they call is theirs in both variants.
TEST(OperatorInterceptor, CallsOfSparseKernelsArePartOfTheirOperator) {
  const at::Tensor sparse = at::eye(3).to_sparse(), x = at::ones({3, 3});
  for (const std::string& name : operators_of([&] { at::mm(sparse, x); })) EXPECT_EQ(name, "mm");
}

TEST(OperatorInterceptor, SeesThePartsThatAutocastCalls) {
  const at::Tensor x = leaf({3, 4}), w = leaf({5, 4});
  const auto names = operators_of([&] {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::linear(x, w);
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  });
  EXPECT_THAT(names, ElementsAre("_to_copy", "_to_copy", "t", "mm"));
}

TEST(OperatorInterceptor, SeesPartsInInferenceModeToo) {
  const at::Tensor x = at::ones({3, 4}), w = at::ones({5, 4});
  EXPECT_THAT(operators_of([&] {
                c10::InferenceMode mode;
                at::linear(x, w);
              }),
              ElementsAre("t", "mm"));
}

TEST(OperatorInterceptor, SeesNothingOnceItsScopeIsClosed) {
  const auto seen = std::make_shared<Seen>();
  { OperatorInterceptorScope scope(seen); }
  at::ones({2}).sin();
  EXPECT_THAT(seen->take(), IsEmpty());
}

TEST(OperatorInterceptor, ShowsArgumentsAndResults) {
  const at::Tensor x = leaf({2, 3});
  at::Tensor seen_argument, seen_result;
  OperatorInterceptorScope scope(intercept_by([&](OperatorCall& call) {
    seen_argument = call.arguments()[0].toTensor();
    call.proceed();
    seen_result = call.results()[0].toTensor();
  }));
  const at::Tensor y = x.sin();
  EXPECT_TRUE(seen_argument.is_same(x));
  EXPECT_TRUE(seen_result.is_same(y));
}

TEST(OperatorInterceptor, AnAnswerTakesTheOperatorsPlaceBelowAutograd) {
  const at::Tensor x = leaf({2, 3});
  const at::Tensor other = at::full({2, 3}, 5.0);
  at::Tensor y;
  {
    OperatorInterceptorScope scope(
        intercept_by([&](OperatorCall& call) { call.answer({other.alias()}); }));
    y = x.exp();
  }
  EXPECT_TRUE(same_bits(y, other));
  // Autograd has its node all the same, and saved the answer: d exp(x) = exp(x).
  y.sum().backward();
  EXPECT_TRUE(same_bits(x.grad(), other));
  EXPECT_FALSE(other.requires_grad());
}

TEST(OperatorInterceptor, AnswersSeveralResultsAndLists) {
  const at::Tensor x = leaf({4, 3});
  const at::Tensor variance = at::ones({4}), mean = at::zeros({4});
  std::tuple<at::Tensor, at::Tensor> pair;
  {
    OperatorInterceptorScope scope(intercept_by([&](OperatorCall& call) {
      call.answer({variance, mean});
    }));
    pair = at::var_mean(x, at::IntArrayRef({1}));
  }
  EXPECT_TRUE(same_bits(std::get<0>(pair), variance));
  EXPECT_TRUE(same_bits(std::get<1>(pair), mean));
  const std::vector<at::Tensor> parts{at::ones({2, 3}), at::zeros({2, 3})};
  const std::vector<at::Tensor> plain{x.detach(), x.detach()};
  std::vector<at::Tensor> answered;
  {
    OperatorInterceptorScope scope(
        intercept_by([&](OperatorCall& call) { call.answer({c10::IValue(parts)}); }));
    answered = at::_foreach_add(plain, 1);
  }
  EXPECT_TRUE(same_bits(answered, parts));
}

TEST(OperatorInterceptor, TheInnermostIsAskedFirstAndItsProceedAsksTheNext) {
  std::vector<std::string> order;
  const auto logging = [&](const char* name) {
    return intercept_by([&order, name](OperatorCall& call) {
      order.push_back(std::string(name) + " before");
      call.proceed();
      order.push_back(std::string(name) + " after");
    });
  };
  const at::Tensor x = leaf();
  OperatorInterceptorScope outer(logging("outer"));
  OperatorInterceptorScope inner(logging("inner"));
  x.sin();
  EXPECT_THAT(order, ElementsAre("inner before", "outer before", "outer after", "inner after"));
}

TEST(OperatorInterceptor, AnAnsweredCallIsNotShownToTheOuterOnes) {
  const auto outer_seen = std::make_shared<Seen>();
  const at::Tensor x = at::ones({2}), kept = at::zeros({2});
  OperatorInterceptorScope outer(outer_seen);
  OperatorInterceptorScope inner(intercept_by([&](OperatorCall& call) { call.answer({kept}); }));
  x.sin();
  EXPECT_THAT(outer_seen->take(), IsEmpty());
}

TEST(OperatorInterceptor, OperatorsThatItCallsItselfAreSeenByTheOuterOnesAlone) {
  const auto outer_seen = std::make_shared<Seen>();
  int inner_calls = 0;
  const at::Tensor x = at::ones({2}), expected = x.cos();
  OperatorInterceptorScope outer(outer_seen);
  OperatorInterceptorScope inner(intercept_by([&](OperatorCall& call) {
    ++inner_calls;
    call.answer({call.arguments()[0].toTensor().cos()});
  }));
  EXPECT_EQ(x.sin().const_data_ptr<float>()[1], expected.const_data_ptr<float>()[1]);
  EXPECT_THAT(outer_seen->take(), ElementsAre("cos"));
  EXPECT_EQ(inner_calls, 1);
}

TEST(OperatorInterceptor, KernelsOwnCallsArePartOfTheirOperator) {
  OperatorInterceptorScope outer(intercept_by([](OperatorCall&) {}));
  // randn fills by normal_, nested inside two interceptors as inside one.
  EXPECT_THAT(operators_of([] { at::randn({2}); }), ElementsAre("randn"));
}

TEST(OperatorInterceptor, ABackwardInsideIsSeenOnlyWhereAskedFor) {
  const auto step = [] {
    const at::Tensor x = leaf();
    const at::Tensor y = x.sin().sum();
    y.backward();
  };
  EXPECT_THAT(operators_of(step, Reach::kFunction), Not(Contains("cos")));
  EXPECT_THAT(operators_of(step, Reach::kBackwardAsWell), Contains("cos"));
}

TEST(OperatorInterceptor, AScopeOpenedInsideABackwardSeesThatBackwardsCode) {
  const auto seen = std::make_shared<Seen>();
  const at::Tensor x = leaf();
  const at::Tensor y = x.sin();
  y.register_hook([&](const at::Tensor& gradient) {
    OperatorInterceptorScope scope(seen);
    return gradient.mul(2);
  });
  y.sum().backward();
  EXPECT_THAT(seen->take(), ElementsAre("mul.Scalar"));
}

TEST(OperatorInterceptor, OtherThreadsAreNotSeen) {
  const auto names = operators_of([] { std::thread([] { at::ones({2}).sin(); }).join(); });
  EXPECT_THAT(names, IsEmpty());
}

TEST(OperatorInterceptor, ThreadsWithScopesOfTheirOwnDoNotDisturbEachOther) {
  constexpr int kRuns = 50;
  std::vector<std::vector<std::string>> names(4);
  std::vector<std::thread> threads;
  for (auto& mine : names) {
    threads.emplace_back([&mine] {
      mine = operators_of([] {
        const at::Tensor x = at::ones({2});
        for (int run = 0; run < kRuns; ++run) x.sin();
      });
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& mine : names) EXPECT_EQ(mine.size(), kRuns + 1);
}

TEST(OperatorInterceptor, AnErrorOfAnOperatorPassesThroughAndLeavesNothingSwitched) {
  const at::Tensor x = at::ones({2, 3});
  const auto seen = std::make_shared<Seen>();
  {
    OperatorInterceptorScope scope(seen);
    EXPECT_THROW(x.mm(x), c10::Error);
    x.sin();
  }
  EXPECT_THAT(seen->take(), ElementsAre("mm", "sin"));
  x.cos();
  EXPECT_THAT(seen->take(), IsEmpty());
}

TEST(OperatorInterceptor, AnErrorOfAnInterceptorPassesThroughWithItsType) {
  struct Mine : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  const at::Tensor x = leaf();
  const auto outer_seen = std::make_shared<Seen>();
  OperatorInterceptorScope outer(outer_seen);
  {
    OperatorInterceptorScope scope(intercept_by([](OperatorCall&) { throw Mine("no"); }));
    EXPECT_THROW(x.sin(), Mine);
  }
  x.cos();
  EXPECT_THAT(outer_seen->take(), ElementsAre("cos"));
}

TEST(OperatorInterceptor, GradientsOfAnInterceptedStepAreThePlainOnes) {
  const at::Tensor x = leaf({6, 4}), w = leaf({4, 4});
  const auto forward = [&] {
    at::Tensor y = at::dropout(at::linear(x, w), 0.5, true);
    y = y.relu_().view({2, 3, 4}).transpose(1, 2);
    return at::layer_norm(y.contiguous(), {3}).softmax(-1).pow(2);
  };
  const auto plain = testing::gradients_of(forward, {x, w});
  OperatorInterceptorScope scope(intercept_by([](OperatorCall&) {}), Reach::kBackwardAsWell);
  EXPECT_TRUE(same_bits(testing::gradients_of(forward, {x, w}), plain));
}

at::Tensor doubled(const at::Tensor& x) { return x * 2; }

TEST(OperatorInterceptor, SeesAnOperatorThatIsRegisteredLater) {
  operators_of([] {});
  torch::Library library(torch::Library::FRAGMENT, "reprise_late", std::nullopt, __FILE__,
                         __LINE__);
  library.def("doubled(Tensor x) -> Tensor");
  torch::Library kernels(torch::Library::IMPL, "reprise_late", c10::DispatchKey::CPU, __FILE__,
                         __LINE__);
  kernels.impl("doubled", &doubled);
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow("reprise_late::doubled", "")
                      .typed<at::Tensor(const at::Tensor&)>();
  const at::Tensor x = at::ones({2});
  EXPECT_THAT(operators_of([&] { op.call(x); }), ElementsAre("reprise_late::doubled"));
}

}  // namespace
}  // namespace reprise
