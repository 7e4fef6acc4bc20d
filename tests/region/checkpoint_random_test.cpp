// Random numbers in regions: the recomputation draws what forward drew, and leaves the generators
// as a step without regions leaves them.
#include "tests/region/testing.h"

#include <ATen/CPUGeneratorImpl.h>
#include <reprise/random_state.h>

#include <map>

namespace reprise {
namespace {

using namespace reprise::testing;

at::Tensor default_generator_state() { return at::detail::getDefaultCPUGenerator().get_state(); }

class CheckpointRandom : public ::testing::TestWithParam<Variant> {
 protected:
  void SetUp() override { torch::manual_seed(3); }
  CheckpointOptions options_ = options_of(GetParam());
  at::Tensor x_ = leaf({200});
};
INSTANTIATE_TEST_SUITE_P(Variants, CheckpointRandom,
                         ::testing::Values(Variant::kNonReentrant, Variant::kReentrant),
                         variant_name);

TEST_P(CheckpointRandom, RecomputeReplaysTheDropoutMask) {
  for (std::uint64_t round = 0; round < 5; ++round) {
    const at::Tensor x = leaf({20000});
    const auto body = [](const at::Tensor& t) { return dropout(t).exp() * dropout(t); };
    EXPECT_TRUE(
        same_bits(gradients_of([&] { return checkpoint(options_, body, dropout(x)); }, {x}, round),
                  gradients_of([&] { return body(dropout(x)); }, {x}, round)));
  }
}

TEST_P(CheckpointRandom, WithoutPreserveRngStateTheMaskIsDrawnAnew) {
  options_.preserve_rng_state = false;
  options_.determinism_check = DeterminismCheck::kNone;
  const auto body = [](const at::Tensor& t) { return dropout(t).exp(); };
  const Tensors expected = gradients_of([&] { return body(x_); }, {x_});
  EXPECT_FALSE(
      same_bits(gradients_of([&] { return checkpoint(options_, body, x_); }, {x_}), expected))
      << "the test's function does not depend on its random numbers";
  torch::manual_seed(5);
  const at::Tensor loss = checkpoint(options_, body, x_).sum();
  const at::Tensor before = default_generator_state();
  loss.backward();
  EXPECT_FALSE(same_bits(default_generator_state(), before));
}

TEST_P(CheckpointRandom, LaterBackwardCallsReplayTheSameMask) {
  const auto body = [](const at::Tensor& t) { return dropout(t).exp(); };
  const Tensors expected = gradients_of([&] { return body(x_); }, {x_}, 7);
  torch::manual_seed(7);
  const at::Tensor loss = checkpoint(options_, body, x_).sum();
  for (int i = 0; i < 3; ++i) {
    torch::rand({11});  // other draws in between
    loss.backward({}, /*retain_graph=*/true);
    EXPECT_TRUE(same_bits(take_gradients({x_}), expected)) << "backward " << i;
  }
}

TEST_P(CheckpointRandom, EachRegionReplaysItsOwnDraws) {
  const auto body = [](const at::Tensor& t) { return (dropout(t) + torch::randn_like(t)).tanh(); };
  const auto four = [&](auto&& f) { return f(dropout(f(f(dropout(f(x_)))))); };
  EXPECT_TRUE(same_bits(
      gradients_of(
          [&] { return four([&](const at::Tensor& t) { return checkpoint(options_, body, t); }); },
          {x_}),
      gradients_of([&] { return four(body); }, {x_})));
}

TEST_P(CheckpointRandom, NestedRegionsReplayTheirDrawsToo) {
  using Function = std::function<at::Tensor(const at::Tensor&)>;
  const Function inner = [](const at::Tensor& t) { return dropout(t).exp().tanh(); };
  // `wrap` makes regions of functions, or leaves them as they are.
  const auto nest = [&](const std::function<Function(Function)>& wrap) {
    const Function first = wrap(inner);
    const Function middle =
        wrap([=](const at::Tensor& t) { return dropout(first(dropout(t).sin())).sin(); });
    return wrap([=](const at::Tensor& t) { return dropout(middle(dropout(t).cos())); });
  };
  const Tensors expected =
      gradients_of([&] { return nest([](Function f) { return f; })(x_); }, {x_});
  for (const EarlyStop stop : {EarlyStop::kNever, EarlyStop::kWhenCheaper}) {
    options_.early_stop = stop;
    const auto region = [&](const Function& f) -> Function {
      return [f, options = options_](const at::Tensor& t) { return checkpoint(options, f, t); };
    };
    EXPECT_TRUE(same_bits(gradients_of([&] { return nest(region)(x_); }, {x_}), expected));
  }
}

TEST_P(CheckpointRandom, TheGeneratorIsAfterBackwardAsWithoutRegions) {
  const auto body = [](const at::Tensor& t) { return dropout(t).exp() * torch::rand_like(t); };
  gradients_of([&] { return body(x_); }, {x_});
  const at::Tensor expected_next = torch::randn({5});
  gradients_of([&] { return checkpoint(options_, body, x_); }, {x_});
  EXPECT_TRUE(same_bits(torch::randn({5}), expected_next));
}

TEST_P(CheckpointRandom, DrawsBetweenForwardAndBackwardAreNotTakenBack) {
  torch::manual_seed(8);
  const at::Tensor loss = checkpoint(options_, dropout, x_).sum();
  torch::rand({3});
  const at::Tensor before = default_generator_state();
  loss.backward();
  EXPECT_TRUE(same_bits(default_generator_state(), before));
}

TEST_P(CheckpointRandom, ACachedNormalSampleIsPartOfTheState) {
  // Normal draws come in pairs; the second of a pair waits in the generator.
  const auto body = [](const at::Tensor& t) {
    return (t * torch::randn({1}) + torch::randn({1})).exp();
  };
  const at::Tensor x = leaf({4});
  const auto step = [&](auto&& f) {
    torch::randn({1});
    const at::Tensor y = f(x);
    torch::randn({2});
    return y;
  };
  EXPECT_TRUE(same_bits(
      gradients_of(
          [&] { return step([&](const at::Tensor& t) { return checkpoint(options_, body, t); }); },
          {x}),
      gradients_of([&] { return step(body); }, {x})));
}

TEST_P(CheckpointRandom, AGeneratorOfTheUsersOwnIsReplayedAndPutBack) {
  at::Generator generator = at::detail::createCPUGenerator(11);
  const auto body = [&](const at::Tensor& t) { return (t * torch::rand({200}, generator)).exp(); };
  const auto run = [&](auto&& f) {
    generator.set_current_seed(11);
    const Tensors gradients = gradients_of([&] { return f(x_); }, {x_});
    return std::pair(gradients, generator.get_state());
  };
  const auto [expected, state] = run(body);
  // Listed or not.
  for (const std::vector<at::Generator>& listed : {std::vector<at::Generator>{}, {generator}}) {
    options_.generators = listed;
    const auto [actual, actual_state] =
        run([&](const at::Tensor& t) { return checkpoint(options_, body, t); });
    EXPECT_TRUE(same_bits(actual, expected)) << listed.size();
    EXPECT_TRUE(same_bits(actual_state, state)) << listed.size();
  }
}

TEST_P(CheckpointRandom, ARegionMayReseedTheGenerator) {
  const auto body = [](const at::Tensor& t) {
    torch::manual_seed(77);
    return dropout(t).exp();
  };
  torch::manual_seed(9);
  const at::Tensor loss = checkpoint(options_, body, x_).sum();
  torch::rand({5});
  const at::Tensor before = default_generator_state();
  loss.backward();
  EXPECT_TRUE(same_bits(default_generator_state(), before));
  const Tensors actual = take_gradients({x_});
  EXPECT_TRUE(same_bits(actual, gradients_of([&] { return body(x_); }, {x_})));
}

TEST(CheckpointRandomEarlyStop, LeavingTheFunctionEarlyPutsTheGeneratorBackToo) {
  const at::Tensor x = leaf({50});
  for (const EarlyStop stop : {EarlyStop::kNever, EarlyStop::kWhenCheaper, EarlyStop::kAlways}) {
    torch::manual_seed(4);
    const auto body = [](const at::Tensor& t) {
      const at::Tensor y = dropout(t).exp();
      return y + torch::rand({50});
    };
    const at::Tensor loss = checkpoint(with_early_stop(stop), body, x).sum();
    const at::Tensor before = default_generator_state();
    loss.backward();
    EXPECT_TRUE(same_bits(default_generator_state(), before));
    const Tensors actual = take_gradients({x});
    EXPECT_TRUE(same_bits(actual, gradients_of([&] { return body(x); }, {x}, 4)));
  }
}

TEST(DeviceStatesOfArguments, MetaAndCpuTensorsHaveNoDeviceStates) {
  std::map<std::string, std::vector<at::Tensor>> nested{{"foo", {torch::rand({10}, torch::kMeta)}},
                                                        {"bar", {torch::rand({10}), at::Tensor()}}};
  Tensors found;
  visit_tensors(nested, [&](at::Tensor& tensor) { found.push_back(tensor); });
  ASSERT_EQ(found.size(), 3u);
  EXPECT_TRUE(accelerator_devices(found).empty());
  const DeviceStates states = get_device_states(found);
  EXPECT_TRUE(states.devices.empty());
  EXPECT_TRUE(states.states.empty());
  set_device_states(states);
}

TEST(DeviceStatesOfArguments, SettingSkipsMetaDevicesAndRefusesListsOfDifferentLength) {
  const at::Tensor before = default_generator_state();
  set_device_states({.devices = {c10::Device(c10::kMeta)}, .states = {before}});
  EXPECT_TRUE(same_bits(default_generator_state(), before));
  const std::string text = error_of<UsageError>([&] {
    set_device_states({.devices = {c10::Device(c10::kMeta)}, .states = {before, before}});
  });
  EXPECT_TRUE(contains(text, "1"));
  EXPECT_TRUE(contains(text, "2"));
}

TEST(DeviceStatesOfArguments, ARegionWithMetaArgumentsRuns) {
  const at::Tensor x = leaf({6});
  const at::Tensor shape_only = torch::rand({6}, torch::kMeta);
  const auto body = [](const at::Tensor& t, const at::Tensor& meta) {
    return (t * torch::rand(meta.sizes())).exp();
  };
  EXPECT_TRUE(same_bits(gradients_of([&] { return checkpoint(body, x, shape_only); }, {x}),
                        gradients_of([&] { return body(x, shape_only); }, {x})));
}

}  // namespace
}  // namespace reprise
