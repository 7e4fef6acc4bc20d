// A function that is left half way, or that covers its own tracks: what it switched by hand, the
// generators that it set back, the threads beside it, the views it was given.
#include <ATen/autocast_mode.h>
#include <reprise/random_state.h>
#include <reprise/saved_tensor_hooks.h>

#include <thread>

#include "tests/region/testing.h"

namespace reprise {
namespace {

using namespace reprise::testing;

TEST(CheckpointLeftState, AutocastSwitchedByHandIsPutBackWhenTheFunctionIsLeft) {
  for (const bool preserve : {true, false}) {
    const at::Tensor x = leaf({8, 8});
    const at::Tensor w = leaf({8, 8});
    CheckpointOptions options = with_early_stop(EarlyStop::kAlways);
    options.preserve_ambient_state = preserve;
    const auto f = [&](const at::Tensor& t) {
      at::autocast::increment_nesting();
      at::autocast::set_autocast_enabled(at::kCPU, true);
      at::Tensor y = t.mm(w).to(at::kFloat).sin();
      if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
      at::autocast::set_autocast_enabled(at::kCPU, false);
      return y;
    };
    checkpoint(options, f, x).sum().backward();
    EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
    at::autocast::increment_nesting();
    EXPECT_EQ(at::autocast::decrement_nesting(), 0);
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
}

TEST(CheckpointLeftState, AFunctionThatSetsTheGeneratorBackItselfIsReplayed) {
  const at::Tensor x = leaf({200});
  const auto f = [](const at::Tensor& t) {
    const RandomState before = RandomState::of_devices({});
    const at::Tensor y = torch::dropout(t, 0.5, /*train=*/true).exp();
    before.restore();
    return y;
  };
  // Between forward and backward the generator moves on.
  const auto step = [&](bool region) {
    torch::manual_seed(5);
    const at::Tensor loss = (region ? checkpoint(f, x) : f(x)).sum();
    torch::rand({3});
    return torch::autograd::grad({loss}, {x});
  };
  EXPECT_TRUE(same_bits(step(true), step(false)));
}

TEST(CheckpointLeftState, AReplayOfAnOwnGeneratorLeavesTheDefaultOneAlone) {
  const at::Tensor x = leaf({50});
  at::Generator own = at::detail::createCPUGenerator(3);
  CheckpointOptions options;
  options.generators = {own};
  // Draws from the default generator during the replay must not be undone by it.
  bool draw = false;
  const auto f = [&](const at::Tensor& t) {
    if (draw) std::thread([] { torch::rand({4}); }).join();
    return (t * torch::rand({50}, own)).sin();
  };
  torch::manual_seed(8);
  const at::Tensor loss = checkpoint(options, f, x).sum();
  draw = true;
  loss.backward();
  const at::Tensor after = torch::rand({4});
  torch::manual_seed(8);
  torch::rand({4});
  EXPECT_TRUE(torch::equal(after, torch::rand({4})));
}

TEST(CheckpointLeftState, AnArgumentThatIsAViewOfACallersListIsKept) {
  const at::Tensor a = leaf();
  const at::Tensor b = leaf();
  const auto f = [](at::TensorList tensors) { return (tensors[0] * tensors[1]).sin(); };
  at::Tensor loss;
  {
    std::vector<at::Tensor> list{a, b};
    loss = checkpoint(f, at::TensorList(list)).sum();
    list.assign({at::Tensor(), at::Tensor()});
  }
  EXPECT_TRUE(same_bits(torch::autograd::grad({loss}, {a, b}),
                        torch::autograd::grad({(a * b).sin().sum()}, {a, b})));
}

TEST(CheckpointLeftState, AChangedArgumentIsNamedUnderHooksToo) {
  const at::Tensor x = leaf() * 1;
  const auto itself = [](const at::Tensor& t) { return t; };
  at::Tensor loss;
  {
    SavedTensorHooksScope scope(itself, itself);
    loss = checkpoint([](const at::Tensor& t) { return t.sin(); }, x).sum();
  }
  {
    at::NoGradGuard no_grad;
    x.mul_(2);
  }
  const std::string text = error_of<DeterminismError>([&] { loss.backward(); });
  EXPECT_NE(text.find("tensor argument 0"), std::string::npos) << text;
}

TEST(CheckpointLeftState, AnExceptionOfAnyTypeInARecomputationReachesTheCaller) {
  for (const Variant variant : {Variant::kNonReentrant, Variant::kReentrant}) {
    const at::Tensor x = leaf();
    bool fail = false;
    const auto f = [&](const at::Tensor& t) {
      if (fail) throw 42;
      return t.sin().cos();
    };
    const at::Tensor loss = checkpoint(options_of(variant), f, x).sum();
    fail = true;
    const std::string text = error_of<Error>([&] { loss.backward({}, /*retain_graph=*/true); });
    EXPECT_NE(text.find("no std::exception"), std::string::npos) << text;
    fail = false;
    loss.backward();
    EXPECT_TRUE(torch::allclose(x.grad(), -(x.sin().sin() * x.cos()).detach()));
  }
}

}  // namespace
}  // namespace reprise
