// Hooks that go wrong: what is returned is checked, in-place changes stay autograd's own errors,
// and an exception from a hook leaves the thread as it was, so that the next step works.
#include "tests/libtorch/operators/hooks_testing.h"

#include <ATen/DeviceAccelerator.h>
#include <reprise/error.h>

namespace reprise {
namespace {

using namespace reprise::testing;

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

class SavedTensorHooksErrors : public ::testing::Test {
 protected:
  void SetUp() override { torch::manual_seed(8); }

  // Whatever went wrong before, the thread is as it was and a step without and with hooks works.
  void expect_the_next_step_works() {
    EXPECT_TRUE(torch::GradMode::is_enabled());
    const auto step = [&] { return (x_ * x_).exp(); };
    HookCounts counts;
    const Tensors plain = gradients_of(step, {x_});
    EXPECT_EQ(counts.packs, 0);
    const Tensors hooked = gradients_of(
        [&] {
          const CountingHooks scope(counts);
          return step();
        },
        {x_});
    EXPECT_EQ(counts.packs, 3);
    EXPECT_EQ(counts.unpacks, 3);
    EXPECT_EQ(counts.alive, 0);
    EXPECT_TRUE(same_bits(hooked, plain));
  }

  // The error of backward through sin, whose saved input comes back as `unpack` makes it.
  template <class Unpack>
  std::string unpack_error(Unpack unpack) {
    at::Tensor y;
    {
      const SavedTensorHooksScope scope([](const at::Tensor& t) { return t; }, unpack);
      y = x_.sin();
    }
    std::string text = error_of<UsageError>([&] { y.sum().backward(); });
    EXPECT_FALSE(x_.grad().defined());
    expect_the_next_step_works();
    return text;
  }

  at::Tensor x_ = leaf({4, 5});
};

TEST_F(SavedTensorHooksErrors, AnotherShapeFromUnpackIsNamedBesideTheRightOne) {
  EXPECT_EQ(
      unpack_error([](const at::Tensor& t) { return t.t(); }),
      "SavedTensorHooksScope: unpack returned a tensor of Float [5, 4] where pack was given Float "
      "[4, 5]; it must give back the same shape and dtype");
}

TEST_F(SavedTensorHooksErrors, AnotherDtypeFromUnpackIsNamedBesideTheRightOne) {
  EXPECT_EQ(
      unpack_error([](const at::Tensor& t) { return t.to(at::kBFloat16); }),
      "SavedTensorHooksScope: unpack returned a tensor of BFloat16 [4, 5] where pack was given "
      "Float [4, 5]; it must give back the same shape and dtype");
}

TEST_F(SavedTensorHooksErrors, AnUndefinedTensorFromUnpackIsNamed) {
  EXPECT_EQ(
      unpack_error([](const at::Tensor&) { return at::Tensor(); }),
      "SavedTensorHooksScope: unpack returned an undefined tensor where pack was given Float [4, 5]; "
      "it must give back the same shape and dtype");
}

struct OwnError : std::logic_error {
  using std::logic_error::logic_error;
};

TEST_F(SavedTensorHooksErrors, AnExceptionFromPackKeepsItsTypeAndLeavesTheOuterScopeInForce) {
  HookCounts outer;
  {
    const CountingHooks outer_scope(outer);
    {
      const SavedTensorHooksScope scope(
          [](const at::Tensor& t) {
            if (t.dim() == 2) throw OwnError("no room for it");
            return t;
          },
          [](const at::Tensor& t) { return t; });
      EXPECT_EQ(error_of<OwnError>([&] { x_.sin(); }), "no room for it");
      EXPECT_TRUE(torch::GradMode::is_enabled());
    }
    EXPECT_EQ(outer.packs, 0);
    const at::Tensor y = x_.sin();
    EXPECT_EQ(outer.packs, 1);
  }
  EXPECT_EQ(outer.alive, 0);
  expect_the_next_step_works();
}

TEST_F(SavedTensorHooksErrors, AnExceptionThatUnwindsTheScopeClosesIt) {
  HookCounts counts;
  error_of<OwnError>([&] {
    const CountingHooks scope(counts);
    const at::Tensor y = x_.exp();
    throw OwnError("in the middle of forward");
  });
  EXPECT_EQ(counts.alive, 0);
  expect_the_next_step_works();
  EXPECT_EQ(counts.packs, 1);
}

TEST_F(SavedTensorHooksErrors, AnExceptionFromUnpackKeepsItsTypeAndBackwardCanBeTriedAgain) {
  bool fail = true;
  at::Tensor y;
  {
    const SavedTensorHooksScope scope([](const at::Tensor& t) { return t; },
                                      [&](const at::Tensor& t) {
                                        if (fail) throw OwnError("the disk is gone");
                                        return t;
                                      });
    y = x_.sin();
  }
  const auto backward = [&] { y.sum().backward({}, /*retain_graph=*/true); };
  EXPECT_EQ(error_of<OwnError>(backward), "the disk is gone");
  EXPECT_FALSE(x_.grad().defined());
  EXPECT_TRUE(torch::GradMode::is_enabled());
  fail = false;
  backward();
  EXPECT_TRUE(same_bits(take_gradients({x_}), {x_.detach().cos()}));
  expect_the_next_step_works();
}

TEST_F(SavedTensorHooksErrors, PinningNeedsAnAccelerator) {
  if (at::accelerator::getAccelerator().has_value())
    GTEST_SKIP() << "this build has an accelerator";
  EXPECT_EQ(
      error_of<UsageError>([] { const SaveOnCpuScope scope(/*pin_memory=*/true); }),
      "SaveOnCpuScope(pin_memory=true): this process has no accelerator to pin host memory for; "
      "pass false");
  expect_the_next_step_works();
}

// A forward pass and a change in place after it. The text of the error must be what it is without
// hooks, but for the operator: hooks remember the one that made the tensor, autograd names the one
// that changed it where autograd saw the change.
struct Change {
  const char* name;
  bool same_operator;
  at::Tensor (*forward)(at::Tensor& x);
  void (*change)(at::Tensor& x, at::Tensor& y);
};

class InPlaceChanges : public ::testing::TestWithParam<Change> {
 protected:
  struct Step {
    at::Tensor leaf, hidden, y;
  };
  // `hidden` is an activation that the step's operator takes as its input.
  Step forward() {
    torch::manual_seed(15);
    Step step;
    step.leaf = leaf();
    step.hidden = step.leaf.abs();
    step.y = GetParam().forward(step.hidden);
    return step;
  }
  static at::Tensor backward(const Step& step) {
    return torch::autograd::grad({step.y.sum()}, {step.leaf})[0];
  }
  std::string plain_error() {
    Step step = forward();
    GetParam().change(step.hidden, step.y);
    return error_of<c10::Error>([&] { backward(step); });
  }
};
INSTANTIATE_TEST_SUITE_P(
    Changes, InPlaceChanges,
    ::testing::Values(Change{"OfASavedInput", false, [](at::Tensor& x) { return x.sin(); },
                             [](at::Tensor& x, at::Tensor&) { x.mul_(2); }},
                      Change{"OfASavedOutput", true, [](at::Tensor& x) { return x.exp(); },
                             [](at::Tensor&, at::Tensor& y) { y.mul_(2); }},
                      Change{"ThroughAView", false, [](at::Tensor& x) { return x.sin(); },
                             [](at::Tensor& x, at::Tensor&) { x.select(0, 0).zero_(); }},
                      Change{"ThroughADetachedAlias", true, [](at::Tensor& x) { return x.sin(); },
                             [](at::Tensor& x, at::Tensor&) { x.detach().zero_(); }},
                      Change{"OfTheBaseOfASavedView", false,
                             [](at::Tensor& x) { return x.select(1, 2).sin(); },
                             [](at::Tensor& x, at::Tensor&) { x.add_(1); }}),
    [](const auto& info) { return std::string(info.param.name); });

// The text without ", which is output 0 of Mul,".
std::string without_operator(std::string text) {
  const std::size_t begin = text.find(", which is "), end = text.find(", is at version");
  EXPECT_TRUE(begin != std::string::npos && end != std::string::npos) << text;
  return begin < end ? text.erase(begin, end - begin) : text;
}

TEST_P(InPlaceChanges, AreAutogradsOwnErrorWhereTheMemoryComesBack) {
  HookCounts counts;
  Step step;
  {
    const CountingHooks scope(counts);
    step = forward();
  }
  GetParam().change(step.hidden, step.y);
  const std::string text = first_line(error_of<c10::Error>([&] { backward(step); }));
  EXPECT_TRUE(contains(text, "modified by an inplace operation"));
  const std::string plain = first_line(plain_error());
  EXPECT_EQ(without_operator(text), without_operator(plain));
  if (GetParam().same_operator) {
    EXPECT_EQ(text, plain);
  }
}

TEST_P(InPlaceChanges, DoNotReachCopies) {
  const Step unchanged = forward();
  const at::Tensor expected = backward(unchanged);
  HookCounts counts;
  Step step;
  {
    const CountingHooks scope(counts, Keeps::kCopy);
    step = forward();
  }
  {
    // Below autograd, so that the graph stays that of the unchanged values.
    const torch::NoGradGuard no_grad;
    at::Tensor hidden = step.hidden.detach(), y = step.y.detach();
    GetParam().change(hidden, y);
  }
  EXPECT_TRUE(same_bits(backward(step), expected));
}

TEST_F(SavedTensorHooksErrors, AChangeBetweenTwoBackwardCallsIsFoundByTheSecond) {
  HookCounts counts;
  const CountingHooks scope(counts);
  at::Tensor h = x_.abs();
  const at::Tensor y = h.sin().sum();
  y.backward({}, /*retain_graph=*/true);
  h.detach().mul_(2);
  EXPECT_TRUE(
      contains(error_of<c10::Error>([&] { y.backward(); }), "modified by an inplace operation"));
}

TEST_F(SavedTensorHooksErrors, AParameterThatIsUpdatedBetweenForwardAndBackwardIsAnError) {
  const auto update_too_early = [&] {
    const at::Tensor y = (x_ * x_).sum();
    {
      const torch::NoGradGuard no_grad;
      x_.sub_(0.1);
    }
    return first_line(error_of<c10::Error>([&] { y.backward(); }));
  };
  // Without hooks the counter starts at 0, with them at 1: all else is the same.
  const std::string plain = update_too_early();
  HookCounts counts;
  const CountingHooks scope(counts);
  const std::string hooked = update_too_early();
  EXPECT_TRUE(contains(hooked, "is at version 2; expected version 1 instead."));
  EXPECT_EQ(hooked.substr(0, hooked.find(" is at")), plain.substr(0, plain.find(" is at")));
}

TEST_F(SavedTensorHooksErrors, SaveOnCpuOnTheHostKeepsTheVersionCheck) {
  const SaveOnCpuScope offload;
  at::Tensor h = x_.abs();
  const at::Tensor y = h.sin().sum();
  h.detach().mul_(2);
  EXPECT_TRUE(
      contains(error_of<c10::Error>([&] { y.backward(); }), "modified by an inplace operation"));
}

}  // namespace
}  // namespace reprise
