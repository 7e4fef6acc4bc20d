// Running statistics of BatchNorm layers: those of a plain step on the mini-batch, in every mode.
#include <condition_variable>
#include <mutex>

#include "tests/pipeline/testing.h"

namespace reprise::pipeline {
namespace {

using ::testing::HasSubstr;
using torch::nn::BatchNorm1d;
using torch::nn::BatchNormOptions;
using torch::nn::Linear;

template <class Norm>
void expect_close(const Norm& found, const Norm& expected, const std::string& what) {
  EXPECT_TRUE(at::allclose(found->running_mean, expected->running_mean, 1e-5, 1e-5)) << what;
  EXPECT_TRUE(at::allclose(found->running_var, expected->running_var, 1e-5, 1e-5)) << what;
  EXPECT_TRUE(at::equal(found->num_batches_tracked, expected->num_batches_tracked)) << what;
}

// Samples and channels differ in mean and spread, as in torchgpipe's test.
at::Tensor tilted(at::Tensor x) {
  for (std::int64_t c = 0; c < x.size(1); ++c) x.select(1, c).mul_(std::pow(10, c));
  for (std::int64_t i = 0; i < x.size(0); ++i) x.select(0, i).add_(std::pow(1.5, i));
  return x;
}

template <class Norm>
void expect_as_without_a_pipeline(const std::vector<std::int64_t>& shape) {
  torch::manual_seed(1);
  for (const std::optional<double> momentum : {std::optional<double>(0.1), {}}) {
    for (const std::int64_t chunks : {1, 3, 4, 5}) {
      Norm plain(BatchNormOptions(shape[1]).momentum(momentum));
      Norm deferred(BatchNormOptions(shape[1]).momentum(momentum));
      Pipeline pipe(torch::nn::Sequential(deferred),
                    {.balance = {1}, .chunks = chunks, .deferred_batch_norm = true});
      for (int step = 0; step < 3; ++step) {
        const at::Tensor x = tilted(torch::rand(shape));
        plain->forward(x);
        pipe.forward(x).sum().backward();
        expect_close(deferred, plain,
                     std::to_string(chunks) + " chunks, step " + std::to_string(step));
      }
      plain->eval();
      pipe.eval();
      const at::Tensor x = torch::rand(shape);
      const torch::NoGradGuard no_grad;
      EXPECT_TRUE(at::allclose(pipe.forward(x), plain->forward(x), 1e-5, 1e-5));
      expect_close(deferred, plain, "evaluation");
    }
  }
}

TEST(DeferredBatchNorm, StatisticsAreThoseOfAPlainStepOnTheMiniBatch) {
  expect_as_without_a_pipeline<BatchNorm1d>({16, 3});
  expect_as_without_a_pipeline<BatchNorm1d>({13, 3, 5});
  expect_as_without_a_pipeline<torch::nn::BatchNorm2d>({16, 3, 4, 5});
  expect_as_without_a_pipeline<torch::nn::BatchNorm3d>({11, 2, 3, 2, 3});
}

torch::nn::Sequential norms() {
  return torch::nn::Sequential(Linear(6, 6), BatchNorm1d(6), Linear(6, 6), BatchNorm1d(6),
                               Linear(6, 6), BatchNorm1d(6), Linear(6, 6));
}

void reset(const torch::nn::Sequential& model) {
  for (const auto& module : model->modules(false)) {
    if (auto* norm = module->as<BatchNorm1d>()) norm->reset_running_stats();
  }
}

// torchgpipe #9: without checkpoints the statistics of BatchNorm drifted.
TEST(DeferredBatchNorm, HasTheSameBitsInEveryScheduleAndCheckpointMode) {
  torch::manual_seed(1);
  const auto model = norms();
  const at::Tensor x = torch::randn({15, 6});
  const at::Tensor target = torch::randn({15, 6});
  const std::vector<c10::Device> two{c10::kCPU, c10::kCPU};
  std::vector<at::Tensor> buffers;
  for (const std::string& schedule : schedules::names()) {
    const bool is_alone = schedule == "gpipe" || schedule == "1f1b";
    for (const std::int64_t stop : {0, 3, 4}) {
      Pipeline pipe(model, {.balance = is_alone ? std::vector<std::int64_t>{3, 4}
                                                : std::vector<std::int64_t>{2, 1, 2, 2},
                            .devices = two,
                            .chunks = 4,
                            .checkpoint_stop = stop,
                            .schedule = schedule,
                            .deferred_batch_norm = true});
      Outcome plain = plain_step(model, x, target, 4, backward_order(pipe.schedule(4)));
      reset(model);
      const Outcome outcome = outcome_of(model, pipe.step(x, target, square_loss).loss);
      if (buffers.empty()) buffers = outcome.buffers;
      plain.buffers = buffers;
      expect_same(plain, outcome, schedule + ", checkpoint_stop " + std::to_string(stop));
    }
  }
  EXPECT_EQ(buffers[2].item<std::int64_t>(), 1);
}

TEST(DeferredBatchNorm, HasTheSameBitsWhereLayersRunAgainByPlan) {
  torch::manual_seed(1);
  const auto model = norms();
  const at::Tensor x = torch::randn({4096, 6}), target = torch::randn({4096, 6});
  PipelineOptions options{
      .balance = {3, 4}, .chunks = 4, .schedule = "1f1b", .deferred_batch_norm = true};
  const Outcome kept = [&] {
    Pipeline pipe(model, options);
    return outcome_of(model, pipe.step(x, target, square_loss).loss);
  }();
  reset(model);
  options.bytes = {GB(1)};
  const Bytes most = Pipeline(model, options).plan(x, target, square_loss).peaks.front();
  options.bytes = {most * 0.85, GB(1)};
  Pipeline pipe(model, options);
  const auto choices = pipe.plan(x, target, square_loss).stages.front().choices;
  EXPECT_TRUE(std::ranges::any_of(choices, [](const auto& each) {
    return each.recomputed_layers > 0;
  })) << "something is recomputed";
  expect_same(kept, outcome_of(model, pipe.step(x, target, square_loss).loss), "planned");
}

TEST(DeferredBatchNorm, AStepThatFailsUpdatesNothing) {
  torch::manual_seed(1);
  const auto model = norms();
  auto layers = detail::pipeline_layers<at::Tensor>(model);
  int left = 2;
  layers[6].forward = [&left](const std::vector<at::Tensor>& x) {
    if (left-- == 0) throw std::runtime_error("the last layer broke");
    return x;
  };
  Pipeline pipe(layers, {.balance = {3, 4}, .chunks = 4, .deferred_batch_norm = true});
  const at::Tensor x = torch::randn({8, 6});
  const auto before = outcome_of(model, {}).buffers;
  EXPECT_THROW(pipe.forward(x), std::runtime_error);
  expect_same({{}, {}, before}, {{}, {}, outcome_of(model, {}).buffers}, "after the failure");
  pipe.forward(x);
  EXPECT_EQ(model->buffers()[2].item<std::int64_t>(), 1);
}

TEST(DeferredBatchNorm, ARegionInsideOfALayerCountsOnceToo) {
  torch::manual_seed(1);
  struct RegionImpl : torch::nn::Module {
    BatchNorm1d norm = register_module("norm", BatchNorm1d(3));
    at::Tensor forward(const at::Tensor& x) {
      return checkpoint([this](const at::Tensor& y) { return norm(y.sin()).tanh(); }, x);
    }
  };
  for (const std::int64_t stop : {0, 4}) {
    const auto layer = std::make_shared<RegionImpl>();
    BatchNorm1d plain(3);
    const at::Tensor x = torch::randn({8, 3}).requires_grad_();
    plain(x.sin());
    Pipeline pipe(
        std::vector<torch::nn::ModuleHolder<RegionImpl>>{layer},
        {.balance = {1}, .chunks = 4, .checkpoint_stop = stop, .deferred_batch_norm = true});
    pipe.forward(x).square().sum().backward();
    expect_close(layer->norm, plain, "checkpoint_stop " + std::to_string(stop));
    const at::Tensor gradient = x.grad().clone();
    x.mutable_grad().reset();
    for (const at::Tensor& part : x.chunk(4)) layer->forward(part).square().sum().backward();
    EXPECT_TRUE(at::equal(gradient, x.grad()));
  }
}

TEST(DeferredBatchNorm, ALayerThatRunsTwiceCountsTwice) {
  torch::manual_seed(1);
  BatchNorm1d norm(3), plain(3);
  Pipeline pipe(std::vector<BatchNorm1d>{norm, norm},
                {.balance = {2}, .chunks = 2, .deferred_batch_norm = true});
  const at::Tensor half = torch::randn({4, 3});
  const at::Tensor x = torch::cat({half, half});  // so that both halves are normalized alike
  plain(plain(x));
  pipe.forward(x);
  expect_close(norm, plain, "twice");
}

TEST(DeferredBatchNorm, CountsWithoutGradModeToo) {
  torch::manual_seed(1);
  BatchNorm1d norm(3), plain(3);
  Pipeline pipe(std::vector<BatchNorm1d>{norm},
                {.balance = {1}, .chunks = 4, .deferred_batch_norm = true});
  const torch::NoGradGuard no_grad;
  const at::Tensor x = torch::randn({8, 3});
  plain(x);
  pipe.forward(x);
  expect_close(norm, plain, "no grad mode");
}

TEST(DeferredBatchNorm, WithoutALayerToDeferIsRefused) {
  EXPECT_THAT(
      refusal_of([] { Pipeline(blocks_of(1), {.balance = {5}, .deferred_batch_norm = true}); }),
      HasSubstr("no layer has a BatchNorm module"));
  EXPECT_THAT(refusal_of([] {
                const BatchNorm1d without(BatchNormOptions(3).track_running_stats(false));
                Pipeline(std::vector<BatchNorm1d>{without},
                         {.balance = {1}, .deferred_batch_norm = true});
              }),
              HasSubstr("no layer has a BatchNorm module"));
}

// Two stages whose recomputations wait for each other: each has written to state of its own.
TEST(Pipeline, RecomputationsOfTwoStagesThatWriteToStateRunAtTheSameTime) {
  std::mutex mutex;
  std::condition_variable changed;
  int inside = 0;
  const auto layer = [&](const at::Tensor& count) {
    PipelineLayer made{.name = "count", .forward = [&, count](std::vector<at::Tensor> x) {
                         torch::NoGradGuard no_grad;
                         at::Tensor(count).add_(1);
                         if (is_recomputing()) {
                           std::unique_lock<std::mutex> lock(mutex);
                           ++inside;
                           changed.notify_all();
                           const auto both = [&] { return inside >= 2; };
                           EXPECT_TRUE(changed.wait_for(lock, std::chrono::minutes(1), both));
                         }
                         torch::AutoGradMode grad(true);
                         return std::vector<at::Tensor>{(x.front() * count.item<double>()).sin()};
                       }};
    made.buffers = {count};
    made.is_training = [] { return true; };
    return made;
  };
  const at::Tensor first = torch::ones({1}), second = torch::ones({1});
  // Forward of both, and only then backward: both stages recompute before the gradient is there.
  Pipeline pipe({layer(first), layer(second)},
                {.balance = {1, 1}, .checkpoint = CheckpointMode::kAlways});
  pipe.forward(torch::randn({2, 2}).requires_grad_()).sum().backward();
  EXPECT_EQ(first.item<double>(), 2);
  EXPECT_EQ(second.item<double>(), 2);
}

}  // namespace
}  // namespace reprise::pipeline
