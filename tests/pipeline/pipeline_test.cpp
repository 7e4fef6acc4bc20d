// Gradients of a pipeline are those of the same micro-batches run one after another.
#include "tests/pipeline/testing.h"

namespace reprise::pipeline {
namespace {

using ::testing::HasSubstr;

struct Case {
  std::string schedule;
  std::vector<std::int64_t> balance;
  std::vector<c10::Device> devices;
};

std::vector<Case> cases() {
  const std::vector<c10::Device> two{c10::kCPU, c10::kCPU};
  return {{"gpipe", {7, 8}, {}},
          {"gpipe", {15}, {}},
          {"gpipe", {4, 4, 4, 3}, {}},
          {"1f1b", {7, 8}, {}},
          {"1f1b", {5, 5, 5}, {}},
          {"looped-bfs", {4, 4, 4, 3}, two},
          {"interleaved-1f1b", {4, 4, 4, 3}, two},
          {"zero-bubble", {4, 4, 4, 3}, two},
          {"zbv", {4, 4, 4, 3}, two},
          {"dualpipev", {4, 4, 4, 3}, two}};
}

TEST(Pipeline, StepIsTheSameMicroBatchesOneAfterAnotherInEveryScheduleAndMode) {
  torch::manual_seed(1);
  const auto model = blocks_of(3);
  const at::Tensor x = torch::randn({16, 8});
  const at::Tensor target = torch::randn({16, 8});
  for (const Case& each : cases()) {
    for (const std::int64_t stop : {0, 3, 7, 8}) {
      Pipeline pipe(model, {.balance = each.balance,
                            .devices = each.devices,
                            .chunks = 8,
                            .checkpoint_stop = stop,
                            .schedule = each.schedule});
      torch::manual_seed(2);
      const Outcome plain = plain_step(model, x, target, 8, backward_order(pipe.schedule(8)));
      torch::manual_seed(2);
      const StepResult result = pipe.step(x, target, square_loss);
      expect_same(plain, outcome_of(model, result.loss),
                  each.schedule + ", checkpoint_stop " + std::to_string(stop));
    }
  }
}

TEST(Pipeline, ForwardAndBackwardAreTheSameMicroBatchesOneAfterAnother) {
  torch::manual_seed(1);
  const auto model = blocks_of(2);
  const at::Tensor target = torch::randn({12, 8});
  for (const auto mode :
       {CheckpointMode::kAlways, CheckpointMode::kExceptLast, CheckpointMode::kNever}) {
    Pipeline pipe(model, {.balance = {3, 4, 3}, .chunks = 4, .checkpoint = mode});
    at::Tensor x = torch::randn({12, 8}).requires_grad_();
    torch::manual_seed(2);
    const std::uint64_t seed = seed_of_pipeline();
    std::vector<at::Tensor> outputs, cut;
    for (const at::Tensor& part : x.chunk(4)) {
      cut.push_back(part);
      outputs.push_back(run_layers(model, part, seed, static_cast<std::int64_t>(outputs.size())));
    }
    const at::Tensor whole = torch::cat(outputs).detach().requires_grad_();
    const at::Tensor loss = square_loss(whole, target);
    loss.backward();
    const auto gradients = whole.grad().chunk(4);
    for (std::size_t i = 4; i-- > 0;) outputs[i].backward(gradients[i]);
    const Outcome plain = outcome_of(model, loss);
    const at::Tensor plain_x = x.grad().clone();
    x.mutable_grad().reset();

    torch::manual_seed(2);
    const at::Tensor output = pipe.forward(x);
    const at::Tensor again = square_loss(output, target);
    again.backward();
    expect_same(plain, outcome_of(model, again), "forward()");
    EXPECT_TRUE(at::equal(plain_x, x.grad()));
    x.mutable_grad().reset();
  }
}

TEST(Pipeline, AKeptGraphGivesTheSameGradientsAgain) {
  torch::manual_seed(1);
  const auto model = blocks_of(1);
  Pipeline pipe(model, {.balance = {2, 3}, .chunks = 3});
  const at::Tensor loss = pipe.forward(torch::randn({6, 8})).sum();
  loss.backward({}, /*retain_graph=*/true);
  const Outcome first = outcome_of(model, loss);
  loss.backward();
  expect_same(first, outcome_of(model, loss), "second backward");
  EXPECT_THAT(refusal_of([&] { loss.backward(); }), HasSubstr("retain_graph=true"));
}

TEST(Pipeline, EvaluationRecordsNothing) {
  torch::manual_seed(1);
  auto model = blocks_of(1);
  Pipeline pipe(model, {.balance = {2, 3}, .chunks = 3, .checkpoint = CheckpointMode::kAlways});
  EXPECT_EQ(pipe.checkpoint_stop(3), 3);
  pipe.eval();
  EXPECT_EQ(pipe.checkpoint_stop(3), 0);
  const at::Tensor x = torch::randn({6, 8});
  torch::NoGradGuard no_grad;
  const at::Tensor output = pipe.forward(x);
  EXPECT_FALSE(output.requires_grad());
  EXPECT_TRUE(at::equal(
      output, torch::cat({model->forward(x.slice(0, 0, 2)), model->forward(x.slice(0, 2, 4)),
                          model->forward(x.slice(0, 4, 6))})));
  EXPECT_THAT(refusal_of([&] { pipe.step(x, x, square_loss); }), HasSubstr("grad mode is off"));
}

TEST(Pipeline, TheLastMicroBatchMayBeSmallerAndThereMayBeFewer) {
  torch::manual_seed(1);
  const auto model = blocks_of(1);
  for (const std::int64_t samples : {1, 2, 5, 7}) {
    const at::Tensor x = torch::randn({samples, 8});
    const at::Tensor target = torch::randn({samples, 8});
    for (const char* schedule : {"gpipe", "1f1b"}) {
      Pipeline pipe(model, {.balance = {2, 3}, .chunks = 4, .schedule = schedule});
      torch::manual_seed(2);
      const Outcome plain =
          plain_step(model, x, target, 4,
                     backward_order(pipe.schedule(static_cast<std::int64_t>(x.chunk(4).size()))));
      torch::manual_seed(2);
      const StepResult result = pipe.step(x, target, square_loss, {.outputs = true});
      EXPECT_EQ(result.outputs.front().sizes(), x.sizes());
      expect_same(plain, outcome_of(model, result.loss), std::to_string(samples) + " samples");
    }
  }
}

struct PairImpl : torch::nn::Module {
  torch::nn::Linear linear{nullptr};
  PairImpl() { linear = register_module("linear", torch::nn::Linear(4, 4)); }
  std::tuple<at::Tensor, at::Tensor> forward(std::tuple<at::Tensor, at::Tensor> x) {
    return {linear(std::get<1>(x)).tanh(), std::get<0>(x) + std::get<1>(x)};
  }
};
TORCH_MODULE(Pair);

TEST(Pipeline, LayersMayTakeAndReturnTuples) {
  torch::manual_seed(1);
  const std::vector<Pair> layers{Pair(), Pair(), Pair()};
  using Two = std::tuple<at::Tensor, at::Tensor>;
  auto pipe = Pipeline::of<Two>(layers, {.balance = {2, 1}, .chunks = 2});
  const at::Tensor a = torch::randn({4, 4});
  const at::Tensor b = torch::randn({4, 4});
  const auto [c, d] = pipe.forward(Two(a, b));
  Two plain(a, b);
  for (Pair layer : layers) plain = layer->forward(plain);
  EXPECT_TRUE(at::allclose(c, std::get<0>(plain)));
  (c.sum() + d.sum()).backward();
  for (const Pair& layer : layers) EXPECT_TRUE(layer->linear->weight.grad().defined());
}

TEST(Pipeline, BatchNormCountsEachMicroBatchOnceInEveryMode) {
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(8, 8), torch::nn::BatchNorm1d(8),
                              torch::nn::Linear(8, 8), torch::nn::BatchNorm1d(8));
  const at::Tensor x = torch::randn({12, 8});
  const at::Tensor target = torch::randn({12, 8});
  const auto reset = [&] {
    for (const auto& module : model->modules(false)) {
      if (auto* norm = module->as<torch::nn::BatchNorm1d>()) norm->reset_running_stats();
    }
  };
  for (const std::int64_t stop : {0, 3, 4}) {
    reset();
    Pipeline pipe(model,
                  {.balance = {2, 2}, .chunks = 4, .checkpoint_stop = stop, .schedule = "1f1b"});
    const Outcome plain = plain_step(model, x, target, 4, backward_order(pipe.schedule(4)));
    reset();
    expect_same(plain, outcome_of(model, pipe.step(x, target, square_loss).loss),
                "checkpoint_stop " + std::to_string(stop));
  }
}

TEST(Pipeline, LayersKnowWhetherTheyAreCheckpointedOrRecomputed) {
  std::vector<std::string> seen;
  std::mutex mutex;
  PipelineLayer layer{.name = "spy", .forward = [&](std::vector<at::Tensor> x) {
                        const std::lock_guard<std::mutex> lock(mutex);
                        seen.push_back(std::string(is_checkpointing() ? "C" : "-") +
                                       (is_recomputing() ? "R" : "-"));
                        return std::vector<at::Tensor>{x.front().sin()};
                      }};
  layer.is_training = [] { return true; };
  Pipeline pipe({layer}, {.balance = {1}, .chunks = 2});
  pipe.forward(torch::randn({2, 2}).requires_grad_()).sum().backward();
  EXPECT_THAT(seen, ::testing::ElementsAre("C-", "--", "-R"));
}

TEST(Pipeline, RunsTwoStagesAtATime) {
  // Each stage waits for the other: one thread alone would wait forever.
  std::mutex mutex;
  std::condition_variable changed;
  int inside = 0;
  const auto meet = [&](std::vector<at::Tensor> x) {
    std::unique_lock<std::mutex> lock(mutex);
    ++inside;
    changed.notify_all();
    // The first forward of stage 0 and the last of stage 1 are alone: 2 of 6 visits.
    changed.wait(lock, [&] { return inside >= 2; });
    return x;
  };
  PipelineLayer layer{.name = "meet", .forward = meet};
  const PipelineLayer free{.name = "free", .forward = [](std::vector<at::Tensor> x) { return x; }};
  // Stage 0 passes its first micro-batch freely.
  int calls = 0;
  layer.forward = [&, meet](std::vector<at::Tensor> x) {
    return ++calls == 1 ? x : meet(std::move(x));
  };
  PipelineLayer second{.name = "meet", .forward = meet};
  Pipeline pipe({layer, second}, {.balance = {1, 1}, .chunks = 2});
  torch::NoGradGuard no_grad;
  pipe.forward(torch::randn({2, 2}));
  EXPECT_GE(inside, 2);
}

TEST(Pipeline, RecomputesBeforeTheGradientIsThere) {
  torch::manual_seed(1);
  const auto model = blocks_of(2);
  std::mutex mutex;
  std::vector<PipelineEvent> events;
  Pipeline pipe(model,
                {.balance = {5, 5}, .chunks = 4, .on_event = [&](const PipelineEvent& event) {
                   const std::lock_guard<std::mutex> lock(mutex);
                   events.push_back(event);
                 }});
  pipe.step(torch::randn({8, 8}), torch::randn({8, 8}), square_loss);
  std::map<std::pair<std::int64_t, std::int64_t>, int> recomputed;
  for (const PipelineEvent& event : events) {
    if (event.recompute) ++recomputed[{event.action.stage, event.action.micro_batch}];
  }
  EXPECT_EQ(recomputed.size(), 6);  // all but the last micro-batch, in two stages
  const PipelineTimeline timeline = pipe.timeline();
  ASSERT_EQ(timeline.workers.size(), 2);
  for (const auto& worker : timeline.workers) EXPECT_EQ(worker.events.size(), 11);
}

}  // namespace
}  // namespace reprise::pipeline
