// Who may outlive whom, and on which threads and under which settings a pipeline is called.
#include <ATen/autocast_mode.h>

#include <thread>

#include "tests/pipeline/testing.h"

namespace reprise::pipeline {
namespace {

TEST(Pipeline, BackwardMayRunAfterThePipelineIsGoneAndOnAnotherThread) {
  torch::manual_seed(1);
  const auto model = blocks_of(2);
  const at::Tensor x = torch::randn({6, 8});
  std::vector<Outcome> outcomes;
  for (const bool elsewhere : {false, true}) {
    at::Tensor loss;
    {
      Pipeline pipe(model, {.balance = {5, 5}, .chunks = 3});
      Pipeline moved = std::move(pipe);
      torch::manual_seed(2);
      loss = moved.forward(x).sum();
    }
    if (elsewhere) {
      std::thread([&] { loss.backward(); }).join();
    } else {
      loss.backward();
    }
    outcomes.push_back(outcome_of(model, loss));
  }
  expect_same(outcomes[0], outcomes[1], "on another thread");
}

TEST(Pipeline, TwoMiniBatchesMayBeInFlight) {
  torch::manual_seed(1);
  const auto model = blocks_of(1, false);
  Pipeline pipe(model, {.balance = {2, 3}, .chunks = 2});
  const at::Tensor x = torch::randn({4, 8});
  const at::Tensor y = torch::randn({4, 8});
  pipe.forward(y).sum().backward();
  pipe.forward(x).sum().backward();
  const Outcome apart = outcome_of(model, at::Tensor());
  const at::Tensor first = pipe.forward(x).sum();
  const at::Tensor second = pipe.forward(y).sum();
  second.backward();
  first.backward();
  expect_same(apart, outcome_of(model, at::Tensor()), "both in flight");
}

TEST(Pipeline, RunsInInferenceMode) {
  auto model = blocks_of(1, false);
  Pipeline pipe(model, {.balance = {2, 3}, .chunks = 2});
  const c10::InferenceMode inference;
  const at::Tensor x = torch::randn({4, 8});
  EXPECT_TRUE(at::allclose(pipe.forward(x), model->forward(x)));
}

TEST(Pipeline, WorkersHaveTheCallersAutocastAndThreads) {
  std::vector<at::ScalarType> types;
  std::vector<int> threads;
  PipelineLayer layer{.name = "spy", .forward = [&](std::vector<at::Tensor> x) {
                        types.push_back(at::mm(x.front(), x.front()).scalar_type());
                        threads.push_back(at::get_num_threads());
                        return x;
                      }};
  layer.is_training = [] { return true; };
  const int before = at::get_num_threads();
  for (const int asked : {0, 1}) {
    Pipeline pipe({layer},
                  {.balance = {1}, .checkpoint = CheckpointMode::kAlways, .threads = asked});
    types.clear();
    threads.clear();
    at::Tensor output;
    at::autocast::set_autocast_enabled(at::kCPU, true);
    output = pipe.forward(torch::randn({4, 4}).requires_grad_());
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    output.sum().backward();
    EXPECT_THAT(types, ::testing::Each(at::kBFloat16));
    EXPECT_THAT(threads, ::testing::Each(asked == 0 ? before : asked));
    EXPECT_EQ(at::get_num_threads(), before);
  }
}

TEST(Pipeline, HooksOfParametersAreCalledOnceAMicroBatch) {
  auto model = blocks_of(1, false);
  std::atomic<int> calls{0};
  model->parameters()[0].register_hook([&](const at::Tensor&) { ++calls; });
  Pipeline pipe(model, {.balance = {2, 3}, .chunks = 3});
  pipe.forward(torch::randn({6, 8})).sum().backward();
  EXPECT_EQ(calls, 3);
}

TEST(Pipeline, HooksOfTensorsAreCalledOnceWhereGradientsComeApart) {
  torch::manual_seed(1);
  torch::nn::Sequential model;
  std::atomic<int> calls{0};
  for (int i = 0; i < 4; ++i) {
    auto linear = torch::nn::Linear(4, 4);
    model->push_back(linear);
    model->push_back(torch::nn::Functional(std::function<at::Tensor(at::Tensor)>([&](at::Tensor x) {
      x.register_hook([&](const at::Tensor& gradient) { return ++calls, gradient * 2; });
      return x.tanh();
    })));
  }
  const at::Tensor x = torch::randn({8, 4});
  for (const std::int64_t stop : {0, 4}) {
    Pipeline pipe(model, {.balance = {2, 2, 2, 2},
                          .devices = {c10::kCPU, c10::kCPU},
                          .chunks = 4,
                          .checkpoint_stop = stop,
                          .schedule = "zbv"});
    calls = 0;
    const Outcome plain = plain_step(model, x, x, 4, backward_order(pipe.schedule(4)));
    EXPECT_EQ(calls.exchange(0), 16);
    expect_same(plain, outcome_of(model, pipe.step(x, x, square_loss).loss), "hooks");
    EXPECT_EQ(calls, 16);
  }
}

TEST(Pipeline, OutputsMayHaveOtherRowsThanInputs) {
  for (const std::int64_t chunks : {1, 2}) {
    auto linear = torch::nn::Linear(4, 4);
    torch::nn::Sequential model(linear, torch::nn::Functional(std::function<at::Tensor(at::Tensor)>(
                                            [](at::Tensor x) { return x.flatten(0, 1); })));
    Pipeline pipe(model, {.balance = {1, 1}, .chunks = chunks});
    const at::Tensor output = pipe.forward(torch::ones({4, 3, 4}));
    EXPECT_EQ(output.size(0), 12);
    output.sum().backward();
    EXPECT_TRUE(at::equal(linear->bias.grad(), torch::full({4}, 12.0)));
  }
}

TEST(Pipeline, AMicroBatchWithoutAGradientCountsAsZeros) {
  int calls = 0;
  PipelineLayer layer{
      .name = "half", .forward = [&](std::vector<at::Tensor> x) {
        return std::vector<at::Tensor>{++calls == 1 ? x.front().detach() : x.front() * 1};
      }};
  const at::Tensor x = torch::ones({4, 1}).requires_grad_();
  Pipeline({layer}, {.balance = {1}, .chunks = 2}).forward(x).sum().backward();
  EXPECT_TRUE(at::equal(x.grad().flatten(), torch::tensor({0.0F, 0.0F, 1.0F, 1.0F})));
}

TEST(Pipeline, InsideOfARegionIsRefused) {
  auto model = blocks_of(1, false);
  Pipeline pipe(model, {.balance = {2, 3}});
  at::Tensor x = torch::randn({2, 8});
  EXPECT_THAT(
      refusal_of([&] { checkpoint([&](const at::Tensor& y) { return pipe.forward(y); }, x); }),
      ::testing::HasSubstr("cannot run inside of checkpoint()"));
  x.requires_grad_();
  EXPECT_THAT(refusal_of([&] { pipe.step(x, x, square_loss); }),
              ::testing::HasSubstr("an input requires grad"));
}

TEST(Pipeline, AnErrorOfTheEventObserverEndsTheStep) {
  auto model = blocks_of(1, false);
  bool fails = true;
  Pipeline pipe(model, {.balance = {2, 3}, .chunks = 2, .on_event = [&](const PipelineEvent&) {
                          if (fails) throw UsageError("the log is full");
                        }});
  const at::Tensor x = torch::randn({4, 8});
  EXPECT_EQ(refusal_of([&] { pipe.step(x, x, square_loss); }), "the log is full");
  fails = false;
  EXPECT_TRUE(pipe.step(x, x, square_loss).loss.defined());
}

}  // namespace
}  // namespace reprise::pipeline
