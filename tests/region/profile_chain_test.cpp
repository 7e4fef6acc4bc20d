// profile_chain(): what it measures, what it joins, and that it leaves everything as it was.
#include <reprise/memory.h>
#include <reprise/planners.h>
#include <reprise/reprise.h>
#include <reprise/sequential.h>

#include "tests/region/chain_steps.h"
#include "tests/region/testing.h"

namespace reprise {
namespace {

using namespace reprise::testing;
using torch::nn::Sequential;

TEST(ProfileChain, LeavesTheModelAsItWas) {
  Sequential model = chain_network();
  plain_chain_step(model);
  Tensors before;
  for (const at::Tensor& buffer : model->buffers()) before.push_back(buffer.clone());
  for (const at::Tensor& parameter : model->parameters())
    before.push_back(parameter.grad().clone());
  const at::Tensor x = chain_sample();
  torch::manual_seed(1);
  const at::Tensor expected = at::rand({3});
  torch::manual_seed(1);
  const Bytes live = live_bytes();
  profile_chain(model, x);
  EXPECT_EQ(live_bytes(), live);
  EXPECT_TRUE(at::equal(at::rand({3}), expected));
  Tensors after;
  for (const at::Tensor& buffer : model->buffers()) after.push_back(buffer);
  for (const at::Tensor& parameter : model->parameters()) after.push_back(parameter.grad());
  EXPECT_TRUE(same_bits(after, before));
}

TEST(ProfileChain, RefusesLayersThatWriteToTheSample) {
  Sequential model(torch::nn::Dropout(torch::nn::DropoutOptions(0.5).inplace(true)),
                   torch::nn::Linear(64, 8));
  const at::Tensor x = chain_sample();
  const at::Tensor before = x.clone();
  const auto version = x._version();
  EXPECT_TRUE(contains(error_of<UsageError>([&] { profile_chain(model, x); }),
                       "layer 0 (Dropout) writes to the chain's input"));
  EXPECT_TRUE(at::equal(x, before));
  EXPECT_EQ(x._version(), version);
}

TEST(ProfileChain, JoinsLayersThatWriteToTheirInput) {
  torch::nn::Linear linear(64, 64);
  const std::vector<TensorFunction> functions = {
      [linear](const at::Tensor& x) mutable { return linear(x); },
      [](const at::Tensor& x) { return at::Tensor(x).add_(1).mul_(2).sin(); },
      [](const at::Tensor& x) { return x.tanh(); }};
  const Chain chain = profile_chain(functions, chain_sample(), linear->parameters());
  ASSERT_EQ(chain.stages.size(), 2);
  EXPECT_EQ(chain.stages[0].layers, 2);
}

TEST(ProfileChain, SeesWhatTheFirstLayerPassesOn) {
  Sequential model(torch::nn::Flatten(), torch::nn::Linear(64, 8));
  const Chain chain = profile_chain(model, chain_sample());
  ASSERT_EQ(chain.stages.size(), 1) << "the result lies on the sample";
  EXPECT_EQ(chain.stages[0].layers, 2);
}

TEST(ProfileChain, TakesGradientsInTheLayoutOfAStep) {
  torch::manual_seed(3);
  Sequential model;
  for (int i = 0; i < 4; ++i) {
    const int in = i == 0 ? 3 : 16;
    model->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(in, 16, 3).padding(1)));
    model->push_back(torch::nn::GroupNorm(torch::nn::GroupNormOptions(4, 16)));
    model->push_back(torch::nn::SiLU());
  }
  model->push_back(torch::nn::AdaptiveAvgPool2d(torch::nn::AdaptiveAvgPool2dOptions({1, 1})));
  model->push_back(torch::nn::Flatten());
  model->push_back(torch::nn::Linear(16, 5));
  model->push_back(torch::nn::Tanh());
  const at::Tensor x = at::randn({8, 3, 32, 32}).contiguous(at::MemoryFormat::ChannelsLast);
  const Chain chain = profile_chain(model, x);
  for (const char* name : {"keep_all", "sqrt", "revolve", "rotor"}) {
    const Schedule schedule = planner_named(name)(chain, kUnlimited);
    Bytes peak;
    {
      const PeakScope scope;
      const at::Tensor y = checkpoint_sequential(model, schedule, x);
      const at::Tensor loss = (y * 2).sum();
      loss.backward();
      peak = scope.peak_above_start();
    }
    model->zero_grad();
    const auto predicted = static_cast<double>(evaluate(chain, schedule).peak.count);
    EXPECT_NEAR(predicted / static_cast<double>(peak.count), 1, 0.02) << name;
  }
}

TEST(ProfileChain, CountsGradientsOfSharedParametersOnce) {
  torch::nn::Linear shared(64, 64);
  Sequential model(shared, torch::nn::Tanh(), shared, torch::nn::Tanh());
  const Chain chain = profile_chain(model, chain_sample());
  ASSERT_EQ(chain.stages.size(), 4);
  const Bytes once(65 * 64 * 4);
  EXPECT_EQ(chain.stages[0].parameter_gradients, Bytes(0));
  EXPECT_EQ(chain.stages[2].parameter_gradients, once);
  const auto predicted = static_cast<double>(evaluate(chain, planners::keep_all(chain)).peak.count);
  const auto measured = static_cast<double>(plain_chain_step(model).peak.count);
  EXPECT_NEAR(predicted / measured, 1, 0.02);
}

TEST(ProfileChain, PutsBackWhatItWasWhereALayerThrows) {
  torch::nn::BatchNorm1d norm(64);
  std::vector<TensorFunction> functions = {
      [norm](const at::Tensor& x) mutable { return norm(x) + at::rand_like(x); },
      [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("a layer's own"); }};
  torch::manual_seed(1);
  const at::Tensor expected = at::rand({3});
  torch::manual_seed(1);
  const at::Tensor mean = norm->running_mean.clone();
  EXPECT_THROW(profile_chain(functions, chain_sample(), norm->parameters(), norm->buffers()),
               std::runtime_error);
  torch::manual_seed(1);
  EXPECT_THROW(profile_chain(functions, at::ones({4, 64}), norm->parameters(), norm->buffers()),
               std::runtime_error);
  EXPECT_TRUE(at::equal(at::rand({3}), expected));
  EXPECT_TRUE(at::equal(norm->running_mean, mean));
}

TEST(ProfileChain, MeasuresBytesAndJoinsWhatSharesMemory) {
  Sequential model(torch::nn::Linear(64, 256), torch::nn::ReLU(torch::nn::ReLUOptions(true)),
                   torch::nn::Flatten(), torch::nn::Linear(256, 64));
  const Chain chain = profile_chain(model, chain_sample());
  ASSERT_EQ(chain.stages.size(), 2);
  EXPECT_EQ(chain.stages[0].name, "Linear + ReLU + Flatten");
  EXPECT_EQ(chain.stages[0].layers, 3);
  EXPECT_EQ(chain.stages[0].output, Bytes(512 * 256 * 4));
  EXPECT_EQ(chain.stages[0].output_gradient, Bytes(512 * 256 * 4));
  EXPECT_EQ(chain.stages[0].parameter_gradients, Bytes(256 * 65 * 4));
  EXPECT_EQ(chain.stages[1].layers, 1);
  EXPECT_EQ(chain.stages[1].output, Bytes(512 * 64 * 4));
  EXPECT_LT(chain.stages[1].saved, Bytes(128))
      << "its input is the output of the stage before; allocations are rounded up";
  EXPECT_TRUE(chain.stages[0].saves_output) << "for the activation's backward";
  EXPECT_FALSE(chain.stages[1].saves_output);
  EXPECT_TRUE(chain.stages[1].needs_input);
  EXPECT_EQ(chain.input_gradient, Bytes(0));
  EXPECT_GT(chain.stages[0].forward.count(), 0);
  EXPECT_GT(chain.stages[0].backward.count(), 0);
  EXPECT_EQ(profile_chain(model, chain_sample().requires_grad_()).input_gradient,
            Bytes(512 * 64 * 4));
  EXPECT_TRUE(contains(
      error_of<UsageError>([&] { profile_chain(model, chain_sample(), {.repetitions = 0}); }),
      "profile_chain: repetitions is 0; it must be at least 1"));
  EXPECT_TRUE(contains(
      error_of<UsageError>([&] { profile_chain(std::vector<TensorFunction>(), chain_sample()); }),
      "the list of layers is empty"));
}

}  // namespace
}  // namespace reprise
