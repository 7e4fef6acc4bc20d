// The use count of an argument that its caller alone holds, as both variants of the interceptor
// show it: what autograd's engine adds up is such an argument, and no state of a thread matters.
#include "libtorch/operators/argument_holders.h"

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "tests/libtorch/operators/interceptor_testing.h"

namespace reprise {
namespace {

using libtorch::count_holders_of_an_argument;
using libtorch::holders_of_an_argument;
using libtorch::OperatorCall;
using libtorch::OperatorInterceptorScope;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::intercept_by;
using torch::autograd::variable_list;

// The use counts of the first arguments of additions without a graph, the engine's among them.
std::vector<std::size_t> counts_in(const std::function<void()>& code) {
  std::vector<std::size_t> counts;
  const OperatorInterceptorScope scope(
      intercept_by([&](OperatorCall& call) {
        if (call.schema().name() != "aten::add" || c10::GradMode::is_enabled()) return;
        const c10::IValue& first = call.arguments()[0];
        counts.push_back(first.toTensor().use_count());
      }),
      libtorch::Reach::kBackwardAsWell);
  code();
  return counts;
}

TEST(ArgumentHolders, AreThoseOfTheFirstGradientThatTheEngineAddsUp) {
  const at::Tensor x = torch::rand({4}, at::kMeta).requires_grad_();
  const auto step = [&] {
    const at::Tensor y = x.sin();
    (y.cos().sum() + y.exp().sum()).backward();
  };
  EXPECT_THAT(counts_in(step), ElementsAre(holders_of_an_argument()));
  // One more than that is somebody else's.
  at::Tensor held;
  const auto holding = [&] {
    // Backward comes to the last one first.
    const at::Tensor y = x.sin(), first = y.cos(), last = y.exp();
    last.grad_fn()->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
        [&held](const variable_list& gradients, const variable_list&) {
          held = gradients[0];
          return gradients;
        }));
    (first.sum() + last.sum()).backward();
  };
  EXPECT_THAT(counts_in(holding), ElementsAre(holders_of_an_argument() + 1));
  EXPECT_TRUE(held.defined());
}

TEST(ArgumentHolders, AreTheSameInEachStateOfAThread) {
  const std::size_t plain = holders_of_an_argument();
  std::vector<std::size_t> found;
  const auto count = [&] { found.push_back(count_holders_of_an_argument()); };
  {
    const c10::InferenceMode mode;
    count();
  }
  at::autocast::set_autocast_enabled(at::kCPU, true);
  count();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  // Around another interceptor's work, and in the middle of it.
  int seen = 0;
  {
    const OperatorInterceptorScope scope(intercept_by([&](OperatorCall&) {
      ++seen;
      count();
    }));
    count();
    EXPECT_EQ(seen, 0);
    at::zeros({2}).exp();
  }
  EXPECT_EQ(seen, 2);
  EXPECT_THAT(found, ElementsAre(plain, plain, plain, plain, plain));
}

TEST(ArgumentHolders, AreCountedByManyThreadsAtOnce) {
  constexpr int kTimes = 20;
  std::vector<std::vector<std::size_t>> found(4);
  std::vector<std::thread> threads;
  for (auto& mine : found) {
    threads.emplace_back([&mine] {
      for (int i = 0; i < kTimes; ++i) {
        mine.push_back(i == 0 ? holders_of_an_argument() : count_holders_of_an_argument());
      }
    });
  }
  for (std::thread& each : threads) each.join();
  EXPECT_THAT(found, Each(Each(holders_of_an_argument())));
}

}  // namespace
}  // namespace reprise
