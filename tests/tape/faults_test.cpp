// An exception at each place where a step calls somebody else's code, one after the other: every
// operator before and after it ran, every allocation, every pack and unpack, every replay. After
// each, nothing is left behind, all state is as it was, and the next step is right.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <reprise/saved_tensor_hooks.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>
#include <unordered_set>

#include "libtorch/memory/memory_limit.h"
#include "libtorch/operators/operator_interceptor.h"
#include "tape/value.h"
#include "tests/tape/testing.h"

namespace reprise {
namespace {

using at::Tensor;
using testing::leaf;
using testing::paranoid;
using testing::same_bits;
using testing::Tensors;

struct Planned : std::runtime_error {
  Planned() : std::runtime_error("planned fault") {}
};

// Throws at the n-th of some events; counts them otherwise.
class Fuse {
 public:
  void arm(int n) { left_ = n; }
  void disarm() { left_ = 0; }
  void reset() { seen_ = 0; }
  int seen() const { return seen_; }
  bool is_armed() const { return left_ != 0; }
  void pass() {
    ++seen_;
    if (left_ != 0 && --left_ == 0) throw Planned();
  }

 private:
  int left_ = 0, seen_ = 0;
};

std::string generator_state() {
  const Tensor state = at::detail::getDefaultCPUGenerator().get_state();
  return {static_cast<const char*>(state.const_data_ptr()), state.nbytes()};
}

// Outside of the step: the tape has begun with the call when it throws.
class FailingOperators final : public libtorch::OperatorInterceptor {
 public:
  FailingOperators(Fuse& fuse, bool afterwards) : fuse_(fuse), afterwards_(afterwards) {}
  void intercept(libtorch::OperatorCall& call) override {
    if (!afterwards_) fuse_.pass();
    call.proceed();
    if (afterwards_) fuse_.pass();
    if (states != nullptr) states->insert(generator_state());
  }
  // Where draws leave the generator.
  std::unordered_set<std::string>* states = nullptr;

 private:
  Fuse& fuse_;
  const bool afterwards_;
};

class FailingAllocations final : public libtorch::LimitKeeper {
 public:
  explicit FailingAllocations(Fuse& fuse) : LimitKeeper(/*bound=*/0), fuse_(fuse) {}
  Room make_room(std::int64_t) override {
    fuse_.pass();
    return Room::kExceeded;
  }

 private:
  Fuse& fuse_;
};

// An operator that fails, when it runs or is run again.
Fuse* in_operator = nullptr;
Tensor doubled(const Tensor& tensor) {
  if (in_operator != nullptr) in_operator->pass();
  return tensor * 2;
}
TORCH_LIBRARY(reprise_fault_test, library) { library.def("doubled(Tensor tensor) -> Tensor"); }
TORCH_LIBRARY_IMPL(reprise_fault_test, CPU, library) { library.impl("doubled", doubled); }

class Doubled : public torch::autograd::Function<Doubled> {
 public:
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return call(x); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return {call(gradients[0])};
  }

 private:
  static Tensor call(const Tensor& tensor) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("reprise_fault_test::doubled", "")
                               .typed<Tensor(const Tensor&)>();
    return op.call(tensor);
  }
};

struct State {
  bool grad_mode = c10::GradMode::is_enabled();
  bool autocast = at::autocast::is_autocast_enabled(at::kCPU);
  bool intercepted = libtorch::innermost_interceptor() != nullptr;
  c10::DispatchKeySet included = c10::impl::tls_local_dispatch_key_set().included_;
  c10::DispatchKeySet excluded = c10::impl::tls_local_dispatch_key_set().excluded_;
  bool operator==(const State&) const = default;
};

enum class Kind { kParanoid, kTight, kLearned };

class TapeFaults : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override { at::manual_seed(3); }
  void TearDown() override { in_operator = nullptr; }

  Tensor forward() const {
    const Tensor mean = at::zeros({16}), variance = at::ones({16});
    Tensor h = at::dropout(x_.mm(w_).tanh(), 0.4, /*train=*/true);
    h = Doubled::apply(at::batch_norm(h, {}, {}, mean, variance, true, 0.1, 1e-5, false));
    Tensor rows = at::zeros({16, 16});
    for (int i = 0; i < 4; ++i) rows[i].copy_(h[i].sin());
    const Tensors parts = Doubled::apply(rows.mul(2).add_(h)).chunk(2, 1);
    Tensor root = at::rand({32, 16});
    const Tensor first = root.narrow(0, 0, 16).sin(), second = root.narrow(0, 16, 16).cos();
    root.add_(1);  // both are wanted as they are
    const Tensor joined = at::cat({parts[1], parts[0].exp()}, 1) * first + second;
    return joined.mm(w_) * h.detach().max().item<float>();
  }

  // What a failed backward has left in the thread's queue goes with the next one.
  void clean_up() const {
    testing::take_gradients({x_, w_});
    at::ones({}).requires_grad_().backward();
  }

  // What is done in a step; `around` lives as long as it.
  template <class Around>
  Tensors step(MemoryBudget& budget, const Around& around) const {
    testing::take_gradients({x_, w_});
    at::manual_seed(5);
    [[maybe_unused]] const auto scope = around();
    auto step = budget.step();
    const Tensor y = forward();
    y.sum().backward();
    step.finish();
    Tensors result = testing::take_gradients({x_, w_});
    result.push_back(y.detach());
    return result;
  }

  static bool is_learned() { return GetParam() == Kind::kLearned; }
  BudgetOptions options() const {
    BudgetOptions options = paranoid();
    options.paranoid = GetParam() == Kind::kParanoid;
    // Not by time, which no two runs have in common; and events are counted: no plan may come in
    // between.
    options.heuristic = Heuristic::kLru;
    options.plan_repeated_steps = is_learned();
    options.planning_time = std::chrono::duration<double>(0.5);
    return options;
  }
  // Everything dropped all the time, or as much as must be.
  template <class Around>
  Bytes limit(const Around& around) const {
    if (GetParam() == Kind::kParanoid) return GiB(64);
    return testing::limit_at(0.85, [&] {
      [[maybe_unused]] const auto scope = around();
      forward().sum().backward();
      testing::take_gradients({x_, w_});
    });
  }

  template <class Around>
  void learn(MemoryBudget& budget, const Around& around) const {
    if (!is_learned()) return;
    for (int i = 0; i < 3; ++i) step(budget, around);
    ASSERT_TRUE(budget.wait_for_plan(std::chrono::minutes(2)));
    step(budget, around);
    ASSERT_GT(budget.report().followed, 0);
  }

  // Fails at each event that `around` passes to the fuse, and once more at none.
  template <class Around>
  void fail_everywhere(Fuse& fuse, const Around& around) {
    std::unordered_set<std::string> states;
    const Tensors plain = plain_step(states);
    MemoryBudget budget(limit(around), options());
    ASSERT_NO_FATAL_FAILURE(learn(budget, around));
    fuse.reset();
    EXPECT_TRUE(same_bits(step(budget, around), plain));
    const int events = fuse.seen();
    ASSERT_GT(events, 3);
    EXPECT_GT(is_learned() ? budget.report().dropped : budget.report().replayed, 0);
    const State before;
    for (int n = 1; n <= events; ++n) {
      const Bytes bytes = live_bytes();
      fuse.arm(n);
      try {
        const Tensors gradients = step(budget, around);
        // Where a plan makes a value again before it is read, a fault leaves it to its reader.
        EXPECT_TRUE(fuse.is_armed() || (is_learned() && same_bits(gradients, plain)))
            << "the fault at " << n << " was swallowed";
      } catch (const Planned&) {
      }
      fuse.disarm();
      ASSERT_TRUE(State() == before) << n;
      ASSERT_TRUE(states.contains(generator_state())) << n;
      clean_up();
      ASSERT_EQ(live_bytes(), bytes) << n;
      ASSERT_EQ(tape::living_records(), 0) << n;
      if (n % 7 != 0) continue;
      ASSERT_TRUE(same_bits(step(budget, around), plain)) << n;
    }
    EXPECT_TRUE(same_bits(step(budget, around), plain));
    EXPECT_EQ(budget.report().followed > 0, is_learned());
  }

  Tensors plain_step(std::unordered_set<std::string>& states) const {
    Fuse none;
    auto watching = std::make_shared<FailingOperators>(none, true);
    watching->states = &states;
    testing::take_gradients({x_, w_});
    at::manual_seed(5);
    states.insert(generator_state());
    const libtorch::OperatorInterceptorScope scope(watching, libtorch::Reach::kBackwardAsWell);
    const Tensor y = forward();
    y.sum().backward();
    Tensors result = testing::take_gradients({x_, w_});
    result.push_back(y.detach());
    return result;
  }

  const Tensor x_ = leaf({16, 16}), w_ = leaf({16, 16});
};
std::string name_of(const ::testing::TestParamInfo<Kind>& info) {
  switch (info.param) {
    case Kind::kParanoid:
      return "Paranoid";
    case Kind::kTight:
      return "Tight";
    case Kind::kLearned:
      return "Learned";
  }
  throw std::logic_error("no such kind");
}
INSTANTIATE_TEST_SUITE_P(Budgets, TapeFaults,
                         ::testing::Values(Kind::kParanoid, Kind::kTight, Kind::kLearned), name_of);

TEST_P(TapeFaults, BeforeEachOperator) {
  Fuse fuse;
  fail_everywhere(fuse, [&] {
    return std::make_unique<libtorch::OperatorInterceptorScope>(
        std::make_shared<FailingOperators>(fuse, false), libtorch::Reach::kBackwardAsWell);
  });
}

TEST_P(TapeFaults, AfterEachOperator) {
  Fuse fuse;
  fail_everywhere(fuse, [&] {
    return std::make_unique<libtorch::OperatorInterceptorScope>(
        std::make_shared<FailingOperators>(fuse, true), libtorch::Reach::kBackwardAsWell);
  });
}

TEST_P(TapeFaults, InEachAllocation) {
  Fuse fuse;
  FailingAllocations failing(fuse);
  fail_everywhere(fuse, [&] { return std::make_unique<libtorch::LimitScope>(failing); });
}

TEST_P(TapeFaults, InEachPackAndUnpack) {
  Fuse fuse;
  fail_everywhere(fuse, [&] {
    return std::make_unique<SavedTensorHooksScope>(
        [&](const Tensor& t) {
          fuse.pass();
          return t.clone();
        },
        [&](const Tensor& t) {
          fuse.pass();
          return t.mul(1);
        });
  });
}

TEST_P(TapeFaults, InEachRunOfAnOperatorTheReplaysToo) {
  Fuse fuse;
  in_operator = &fuse;
  fail_everywhere(fuse, [] { return 0; });
}

TEST_P(TapeFaults, ManyLeaveNoBytesBehind) {
  Fuse fuse;
  in_operator = &fuse;
  MemoryBudget budget(limit([] { return 0; }), options());
  const auto fail = [&](int n) {
    fuse.arm(n);
    EXPECT_THROW(step(budget, [] { return 0; }), Planned);
    clean_up();
  };
  fail(2);
  const Bytes before = live_bytes();
  for (int i = 0; i < 100; ++i) fail(1 + i % 4);
  EXPECT_EQ(live_bytes(), before);
}

}  // namespace
}  // namespace reprise
