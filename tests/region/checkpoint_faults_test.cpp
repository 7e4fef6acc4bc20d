// Exceptions at every place where a region calls somebody else's code: the type is kept, all state
// is as before, nothing leaks, and the next step works.
#include "tests/region/testing.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <reprise/saved_tensor_hooks.h>

#include <stdexcept>

namespace user {

// Copying it is somebody else's code, too: a region copies it for each run.
struct Fragile {
  at::Tensor tensor;
  std::shared_ptr<int> copies_left = std::make_shared<int>(1000);

  explicit Fragile(at::Tensor t) : tensor(std::move(t)) {}
  Fragile(const Fragile& other) : tensor(other.tensor), copies_left(other.copies_left) {
    if (--*copies_left < 0) throw std::length_error("no copy left");
  }
  Fragile(Fragile&&) = default;
  Fragile& operator=(const Fragile&) = default;
};

template <class F>
void reprise_visit_tensors(Fragile& fragile, F&& f) {
  f(fragile.tensor);
}

}  // namespace user

namespace reprise {
namespace {

using namespace reprise::testing;

struct Planned : std::runtime_error {
  Planned() : std::runtime_error("planned fault") {}
};

// All state that a region switches.
struct State {
  at::Tensor generator = at::detail::getDefaultCPUGenerator().get_state();
  bool grad_mode = c10::GradMode::is_enabled();
  bool autocast = at::autocast::is_autocast_enabled(at::kCPU);
  at::ScalarType autocast_dtype = at::autocast::get_autocast_dtype(at::kCPU);
  bool autocast_cache = at::autocast::is_autocast_cache_enabled();
  bool deterministic = at::globalContext().deterministicAlgorithms();
  caffe2::TypeMeta dtype = c10::get_default_dtype();
  bool checkpointing = is_checkpointing();
  bool recomputing = is_recomputing();
  int hooks = hooks_in_force();

  // 1 if a tensor saved now is shown to somebody.
  static int hooks_in_force() {
    const at::Tensor x = torch::ones({}).requires_grad_(true);
    const at::Tensor y = x.exp();
    return torch::autograd::SavedVariable(x, false).has_hooks() ? 1 : 0;
  }
};

void expect_same(const State& now, const State& before) {
  EXPECT_TRUE(same_bits(now.generator, before.generator));
  EXPECT_EQ(now.grad_mode, before.grad_mode);
  EXPECT_EQ(now.autocast, before.autocast);
  EXPECT_EQ(now.autocast_dtype, before.autocast_dtype);
  EXPECT_EQ(now.autocast_cache, before.autocast_cache);
  EXPECT_EQ(now.deterministic, before.deterministic);
  EXPECT_EQ(now.dtype, before.dtype);
  EXPECT_EQ(now.checkpointing, before.checkpointing);
  EXPECT_EQ(now.recomputing, before.recomputing);
  EXPECT_EQ(now.hooks, before.hooks);
}

at::Tensor body_of_faults(const at::Tensor& x) {
  return torch::dropout(x.sin().exp(), 0.5, true).tanh();
}

class CheckpointFaults : public ::testing::TestWithParam<Variant> {
 protected:
  void SetUp() override { torch::manual_seed(10); }

  void expect_next_step_works() {
    take_gradients({x_});
    EXPECT_TRUE(
        same_bits(gradients_of([&] { return checkpoint(options_, body_of_faults, x_); }, {x_}),
                  gradients_of([&] { return body_of_faults(x_); }, {x_})));
  }

  CheckpointOptions options_ = options_of(GetParam());
  at::Tensor x_ = leaf({30});
};
INSTANTIATE_TEST_SUITE_P(Variants, CheckpointFaults,
                         ::testing::Values(Variant::kNonReentrant, Variant::kReentrant),
                         variant_name);

TEST_P(CheckpointFaults, InForwardTheExceptionPassesThroughAndNothingStays) {
  const Bytes bytes = live_bytes();
  std::weak_ptr<int> alive;
  {
    auto token = std::make_shared<int>();
    alive = token;
    const auto fail = [token = std::move(token)](const at::Tensor& t) -> at::Tensor {
      body_of_faults(t);
      at::AutoDispatchBelowADInplaceOrView unrelated;
      throw Planned();
    };
    // The draws of a plain call would not be taken back either.
    torch::manual_seed(1);
    error_of<Planned>([&] { fail(x_); });
    const State plain;
    torch::manual_seed(1);
    EXPECT_EQ(error_of<Planned>([&] { checkpoint(options_, fail, x_); }), "planned fault");
    expect_same(State(), plain);
  }
  EXPECT_TRUE(alive.expired());
  EXPECT_EQ(live_bytes(), bytes);
  expect_next_step_works();
}

TEST_P(CheckpointFaults, InRecomputationTheExceptionKeepsItsTypeAndTheSameGraphWorksLater) {
  const Tensors expected = gradients_of([&] { return body_of_faults(x_); }, {x_});
  bool fail = true;
  torch::manual_seed(2016);
  const at::Tensor loss = checkpoint(
                              options_,
                              [&](const at::Tensor& t) {
                                const at::Tensor half = body_of_faults(t);
                                if (fail && is_recomputing()) throw Planned();
                                return half.sin();
                              },
                              x_)
                              .sum();
  const State before;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(error_of<Planned>([&] { loss.backward({}, /*retain_graph=*/true); }),
              "planned fault");
    expect_same(State(), before);
  }
  fail = false;
  take_gradients({x_});
  loss.backward();
  const Tensors actual = take_gradients({x_});
  EXPECT_TRUE(same_bits(actual, gradients_of([&] { return body_of_faults(x_).sin(); }, {x_})));
  expect_next_step_works();
}

TEST_P(CheckpointFaults, UnderAutocastAndOtherStateToo) {
  bool fail = true;
  at::Tensor loss;
  {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    loss = checkpoint(
               options_,
               [&](const at::Tensor& t) {
                 const at::Tensor product = t.unsqueeze(0).matmul(t.unsqueeze(1));
                 EXPECT_EQ(product.scalar_type(), at::kBFloat16);
                 if (fail && is_recomputing()) throw Planned();
                 return product.to(at::kFloat).exp();
               },
               x_)
               .sum();
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
  const State before;
  EXPECT_FALSE(before.autocast);
  error_of<Planned>([&] { loss.backward({}, true); });
  expect_same(State(), before);
  {
    const torch::NoGradGuard no_grad;
    const State without_grad;
    error_of<Planned>([&] { loss.backward({}, true); });
    expect_same(State(), without_grad);
  }
  expect_next_step_works();
}

TEST_P(CheckpointFaults, InAHookScopeAroundTheRegion) {
  const State before;
  for (const bool in_pack : {true, false}) {
    bool fail = true;
    std::weak_ptr<int> alive;
    {
      auto token = std::make_shared<int>();
      alive = token;
      at::Tensor loss;
      const auto forward = [&] {
        const SavedTensorHooksScope scope(
            [&](const at::Tensor& t) {
              if (in_pack && fail) throw Planned();
              return t;
            },
            [&](const at::Tensor& t) {
              if (fail) throw Planned();
              return t;
            });
        loss = checkpoint(
                   options_, [token](const at::Tensor& t) { return body_of_faults(t); }, x_)
                   .sum();
      };
      if (in_pack) {
        error_of<Planned>(forward);
      } else {
        forward();
        const State before_backward;
        error_of<Planned>([&] { loss.backward({}, /*retain_graph=*/true); });
        expect_same(State(), before_backward);
        fail = false;
        loss.backward();
        take_gradients({x_});
      }
      EXPECT_EQ(State().hooks, before.hooks);
      EXPECT_FALSE(is_checkpointing());
    }
    EXPECT_TRUE(alive.expired());
  }
  expect_next_step_works();
}

TEST_P(CheckpointFaults, InTheCopyOfAnArgumentForARecomputation) {
  user::Fragile fragile(x_);
  const std::shared_ptr<int> copies_left = fragile.copies_left;
  const at::Tensor loss =
      checkpoint(
          options_, [](const user::Fragile& f) { return f.tensor.sin().exp(); }, std::move(fragile))
          .sum();
  *copies_left = 0;
  const State before;
  error_of<std::length_error>([&] { loss.backward({}, /*retain_graph=*/true); });
  expect_same(State(), before);
  *copies_left = 10;
  loss.backward();
  const Tensors actual = take_gradients({x_});
  EXPECT_TRUE(same_bits(actual, gradients_of([&] { return x_.sin().exp(); }, {x_})));
}

TEST_P(CheckpointFaults, InAnInnerRegionOfANest) {
  bool fail = true;
  const at::Tensor loss = checkpoint(
                              options_,
                              [&](const at::Tensor& t) {
                                return checkpoint(
                                           options_,
                                           [&](const at::Tensor& u) {
                                             const at::Tensor v = u.exp();
                                             if (fail && is_recomputing()) throw Planned();
                                             return v.sin();
                                           },
                                           t.sin())
                                    .exp();
                              },
                              x_)
                              .sum();
  const State before;
  error_of<Planned>([&] { loss.backward({}, true); });
  expect_same(State(), before);
  fail = false;
  take_gradients({x_});
  loss.backward();
  const Tensors actual = take_gradients({x_});
  EXPECT_TRUE(same_bits(actual, gradients_of([&] { return x_.sin().exp().sin().exp(); }, {x_})));
}

TEST_P(CheckpointFaults, BadAllocKeepsItsType) {
  const at::Tensor loss = checkpoint(
                              options_,
                              [](const at::Tensor& t) {
                                if (is_recomputing()) throw std::bad_alloc();
                                return t.exp();
                              },
                              x_)
                              .sum();
  error_of<std::bad_alloc>([&] { loss.backward(); });
  expect_next_step_works();
}

TEST_P(CheckpointFaults, AHundredFailuresLeaveNoBytesBehind) {
  const auto fail_once = [&] {
    at::Tensor loss = checkpoint(
                          options_,
                          [](const at::Tensor& t) {
                            const at::Tensor half = body_of_faults(t);
                            if (is_recomputing()) throw Planned();
                            return half.exp();
                          },
                          x_)
                          .sum();
    error_of<Planned>([&] { loss.backward(); });
    take_gradients({x_});
  };
  fail_once();
  const Bytes before = live_bytes();
  for (int i = 0; i < 100; ++i) fail_once();
  EXPECT_EQ(live_bytes(), before);
}

enum class Where { kContext, kForward, kRecompute };

class CheckpointContextFaults : public ::testing::TestWithParam<Where> {};
INSTANTIATE_TEST_SUITE_P(Places, CheckpointContextFaults,
                         ::testing::Values(Where::kContext, Where::kForward, Where::kRecompute));

TEST_P(CheckpointContextFaults, AContextFunctionThatThrowsLeavesStateAsItWas) {
  torch::manual_seed(11);
  const at::Tensor x = leaf({30});
  bool fail = true;
  const auto maybe = [&](Where here) {
    if (fail && GetParam() == here) throw Planned();
  };
  CheckpointOptions options;
  options.context = [&] {
    maybe(Where::kContext);
    return RegionContexts{.forward = [&] { return maybe(Where::kForward), ContextScope(); },
                          .recompute = [&] { return maybe(Where::kRecompute), ContextScope(); }};
  };
  at::Tensor loss;
  const auto forward = [&] { loss = checkpoint(options, body_of_faults, x).sum(); };
  if (GetParam() == Where::kRecompute) {
    forward();
    const State before;
    error_of<Planned>([&] { loss.backward({}, /*retain_graph=*/true); });
    expect_same(State(), before);
    fail = false;
    loss.backward();
  } else {
    const State before;
    error_of<Planned>(forward);
    expect_same(State(), before);
    fail = false;
    forward();
    loss.backward();
  }
  EXPECT_TRUE(take_gradients({x})[0].defined());
}

}  // namespace
}  // namespace reprise
