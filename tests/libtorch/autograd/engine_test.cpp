// The front of autograd's engine: that it is in place when a scope needs it, whoever replaced the
// engine meanwhile, and that it forwards everything but the question for hooks.
#include "libtorch/autograd/engine.h"

#include <reprise/memory.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <thread>

#include "libtorch/base/thread_state.h"
#include "tests/libtorch/operators/hooks_testing.h"

namespace reprise::libtorch {
namespace {

using namespace reprise::testing;
using torch::autograd::Engine;

Engine& current() { return Engine::get_default_engine(); }

TEST(EngineFront, ServesScopesOfAnyNumberOfThreadsWithOneFront) {
  ensure_engine_front();
  const Engine* front = &current();
  EXPECT_NE(front, &Engine::get_base_engine());
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(ensure_engine_front);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(&current(), front);
}

TEST(EngineFront, OffersNoHooksWithoutAScope) {
  ensure_engine_front();
  EXPECT_EQ(current().get_default_saved_variable_hooks(), nullptr);
  const torch::autograd::SavedVariable saved(leaf(), /*is_output=*/false);
  EXPECT_FALSE(saved.has_hooks());
}

TEST(EngineFront, OffersHooksInsideAScopeAndNoneInsideNoSavedTensorHooks) {
  HookCounts counts;
  const CountingHooks scope(counts);
  EXPECT_NE(current().get_default_saved_variable_hooks(), nullptr);
  EXPECT_TRUE(torch::autograd::SavedVariable(leaf(), false).has_hooks());
  const NoSavedTensorHooksScope none;
  EXPECT_EQ(current().get_default_saved_variable_hooks(), nullptr);
  EXPECT_FALSE(torch::autograd::SavedVariable(leaf(), false).has_hooks());
}

// As `import torch` does after the library was loaded: another engine is set over the front.
TEST(EngineFront, IsPutBackWhereAnotherEngineWasSetOverIt) {
  HookCounts before, after;
  { const CountingHooks scope(before); }
  torch::autograd::set_default_engine_stub(&Engine::get_base_engine);
  EXPECT_EQ(&current(), &Engine::get_base_engine());
  const at::Tensor x = leaf();
  at::Tensor y;
  {
    const CountingHooks scope(after);
    EXPECT_NE(&current(), &Engine::get_base_engine());
    y = x.sin();
  }
  y.sum().backward();
  EXPECT_EQ(after.packs, 1);
  EXPECT_EQ(after.unpacks, 1);
  EXPECT_TRUE(same_bits(x.grad(), x.detach().cos()));
}

// An engine with hooks and anomaly data of its own, as PyTorch's is.
class OtherEngine final : public Engine {
 public:
  ~OtherEngine() override { stop(); }
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    ++asked;
    return nullptr;
  }
  std::unique_ptr<torch::autograd::AnomalyMetadata> make_anomaly_metadata() override {
    ++anomalies;
    return Engine::make_anomaly_metadata();
  }
  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots,
                                         const torch::autograd::variable_list& inputs,
                                         bool keep_graph, bool create_graph, bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override {
    ++executed;
    return Engine::execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }
  std::atomic<int> asked = 0, anomalies = 0, executed = 0;
};

OtherEngine& other_engine() {
  static auto* engine = new OtherEngine;
  return *engine;
}
Engine& other_stub() { return other_engine(); }

TEST(EngineFront, ForwardsToTheEngineThatWasInForce) {
  // LibTorch starts the pool for nested backward calls once a process, for the engine that comes
  // first: it must be the one that the other tests use.
  Engine::get_base_engine().initialize_device_threads_pool();
  torch::autograd::set_default_engine_stub(&other_stub);
  HookCounts counts;
  const at::Tensor x = leaf();
  const int asked = other_engine().asked, executed = other_engine().executed;
  {
    const CountingHooks scope(counts);
    ASSERT_NE(&current(), &other_stub());
    const at::Tensor y = x.sin();
    EXPECT_EQ(other_engine().asked, asked) << "ours are the innermost";
  }
  {
    const torch::autograd::DetectAnomalyGuard anomaly;
    x.sin().sum().backward();
  }
  EXPECT_GT(other_engine().asked, asked);
  EXPECT_EQ(other_engine().executed, executed + 1);
  EXPECT_GT(other_engine().anomalies, 0);
  torch::autograd::set_default_engine_stub(&Engine::get_base_engine);
  ensure_engine_front();
}

// Calls `look` with every gradient that arrives, so inside of a backward call.
template <class F>
void backward_with(F look, bool with_inputs = false) {
  const Tensors inputs = {leaf()};
  at::Tensor y = inputs[0].sin();
  y.register_hook([look](const at::Tensor&) { look(); });
  if (with_inputs) {
    y.sum().backward({}, /*retain_graph=*/false, /*create_graph=*/false, inputs);
  } else {
    y.sum().backward();
  }
}

TEST(BackwardCalls, HaveAnIdThatNestedOnesDoNotShare) {
  EXPECT_EQ(current_backward_id(), -1);
  std::int64_t outer = -1, inner = -1, after = -1;
  backward_with([&] {
    outer = current_backward_id();
    const torch::AutoGradMode grad_mode(true);
    backward_with([&] { inner = current_backward_id(); });
    after = current_backward_id();
  });
  EXPECT_NE(outer, -1);
  EXPECT_NE(inner, -1);
  EXPECT_NE(outer, inner);
  EXPECT_EQ(after, outer);
  EXPECT_EQ(current_backward_id(), -1);
}

TEST(BackwardCalls, KnowWhetherTheyWereGivenInputs) {
  bool accumulates = false;
  backward_with([&] { accumulates = backward_accumulates(); });
  EXPECT_TRUE(accumulates);
  backward_with([&] { accumulates = backward_accumulates(); }, /*with_inputs=*/true);
  EXPECT_FALSE(accumulates);
}

TEST(BackwardCalls, RunCallbacksAtTheirEnd) {
  std::vector<std::string> order;
  at::Tensor x = leaf();
  x.register_hook([&](const at::Tensor&) { order.push_back("leaf"); });
  at::Tensor y = x.sin();
  y.register_hook([&](const at::Tensor&) {
    at_end_of_backward([&] { order.push_back("end"); });
    order.push_back("output");
  });
  y.sum().backward();
  EXPECT_EQ(order, (std::vector<std::string>{"output", "leaf", "end"}));
}

TEST(BackwardCalls, DropTheirCallbacksOnAnError) {
  bool called = false;
  at::Tensor x = leaf();
  x.register_hook([](const at::Tensor&) { throw std::out_of_range("hook"); });
  at::Tensor y = x.sin();
  y.register_hook([&](const at::Tensor&) { at_end_of_backward([&] { called = true; }); });
  EXPECT_EQ(error_of<std::out_of_range>([&] { y.sum().backward(); }), "hook");
  EXPECT_FALSE(called);
  backward_with([] {});
  EXPECT_FALSE(called);
}

// Backward of both branches: the second one's hook throws when the first one's gradient waits.
void fail_with_a_gradient_waiting() {
  const at::Tensor x = leaf({64, 1024});
  const at::Tensor first = x.sin(), second = x.cos();
  second.register_hook([](const at::Tensor&) { throw std::out_of_range("hook"); });
  const at::Tensor y = (first.exp() + second.exp()).sum();
  EXPECT_EQ(error_of<std::out_of_range>([&] { y.backward(); }), "hook");
}

TEST(BackwardCalls, LeaveNoGradientsBehindWhereTheyFail) {
  ensure_engine_front();
  fail_with_a_gradient_waiting();
  const Bytes before = live_bytes();
  for (int i = 0; i < 3; ++i) fail_with_a_gradient_waiting();
  EXPECT_EQ(live_bytes(), before);
}

TEST(BackwardCalls, LeaveNothingBehindInsideOfAnotherCallThatGoesOn) {
  ensure_engine_front();
  const Bytes before = live_bytes();
  int called = 0;
  backward_with([&] {
    const torch::AutoGradMode grad_mode(true);
    fail_with_a_gradient_waiting();
    ++called;
  });
  EXPECT_EQ(called, 1);
  EXPECT_EQ(live_bytes(), before);
}

TEST(BackwardCalls, ThatFailedBeforeTheFrontWasThereLeaveNothingOnceItIs) {
  std::thread([] {
    torch::autograd::set_default_engine_stub(&Engine::get_base_engine);
    const Bytes before = live_bytes();
    fail_with_a_gradient_waiting();
    EXPECT_GT(live_bytes(), before) << "LibTorch frees it by itself: the front need not";
    ensure_engine_front();
    const at::AutoGradMode no_grad(false);
    free_leftovers_of_backward();
    EXPECT_EQ(live_bytes(), before);
    EXPECT_FALSE(at::GradMode::is_enabled());
  }).join();
}

TEST(BackwardCalls, RefuseCallbacksOutsideOfThem) {
  EXPECT_TRUE(contains(error_of<c10::Error>([] { at_end_of_backward([] {}); }), "backward pass"));
}

}  // namespace
}  // namespace reprise::libtorch
