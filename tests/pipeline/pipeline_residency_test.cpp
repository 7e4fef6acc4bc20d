// What stages keep of micro-batches, planned from bytes: gradients stay the same, and the plan says
// what the step takes.
#include <reprise/memory.h>

#include "tests/pipeline/testing.h"

namespace reprise::pipeline {
namespace {

using ::testing::HasSubstr;

// Wide enough that a micro-batch's tensors outweigh what malloc rounds up.
torch::nn::Sequential wide_blocks(std::int64_t blocks, std::int64_t width = 128) {
  torch::nn::Sequential model;
  for (std::int64_t i = 0; i < blocks; ++i) {
    model->push_back(torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    model->push_back(torch::nn::Linear(width, width));
    model->push_back(torch::nn::GELU());
    model->push_back(torch::nn::Dropout(0.1));
  }
  for (const at::Tensor& parameter : model->parameters()) {
    parameter.mutable_grad() = at::zeros_like(parameter);
  }
  return model;
}

at::Tensor difference_loss(const at::Tensor& output, const at::Tensor& target) {
  return (output - target).square().mean();
}

// The bytes of a worker beside those of parameters, gradients and buffers, which are there before.
Bytes resident_of(const torch::nn::Sequential& model) {
  Bytes bytes;
  for (const at::Tensor& each : model->parameters()) {
    bytes += Bytes(2 * static_cast<std::int64_t>(each.nbytes()));
  }
  return bytes;
}

TEST(PipelineResidency, PeakOfAStageIsThePredictedOne) {
  torch::manual_seed(1);
  const auto model = wide_blocks(4);
  const at::Tensor x = torch::randn({8 * 256, 128}), target = torch::randn_like(x);
  const auto layers = static_cast<std::int64_t>(model->size());
  const Bytes resident = resident_of(model);
  for (const char* schedule : {"gpipe", "1f1b"}) {
    PipelineOptions options{.balance = {layers}, .chunks = 8, .schedule = schedule};
    const Bytes most = Pipeline(model, options).plan(x, target, difference_loss).peaks.front();
    for (const double share : {1.0, 0.8, 0.6, 0.45, 0.3}) {
      options.bytes = {most * share};
      Pipeline pipe(model, options);
      PipelineResidency plan;
      try {
        plan = pipe.plan(x, target, difference_loss);
      } catch (const BudgetError&) {
        continue;
      }
      pipe.step(x, target, difference_loss);
      const PeakScope scope;
      pipe.step(x, target, difference_loss);
      const Bytes measured = scope.peak_above_start() + resident;
      EXPECT_LE(measured, options.bytes.front()) << schedule << ", " << share;
      EXPECT_NEAR(static_cast<double>(measured.count), static_cast<double>(plan.peaks[0].count),
                  0.02 * static_cast<double>(plan.peaks[0].count));
    }
  }
}

struct PlanCase {
  const char* schedule;
  std::vector<std::int64_t> balance;
  std::vector<c10::Device> devices;
};

TEST(PipelineResidency, GradientsAreThoseOfThePlainLoopUnderEveryPlan) {
  torch::manual_seed(1);
  const auto model = blocks_of(3);
  const at::Tensor x = torch::randn({64, 8}), target = torch::randn({64, 8});
  const std::vector<c10::Device> two{c10::kCPU, c10::kCPU};
  int plans = 0, recomputing = 0;
  for (const PlanCase& each : std::vector<PlanCase>{{"gpipe", {15}, {}},
                                                    {"gpipe", {6, 9}, {}},
                                                    {"1f1b", {5, 5, 5}, {}},
                                                    {"1f1b", {1, 14}, {}},
                                                    {"looped-bfs", {4, 4, 4, 3}, two},
                                                    {"interleaved-1f1b", {4, 4, 4, 3}, two},
                                                    {"zero-bubble", {4, 4, 4, 3}, two},
                                                    {"zbv", {4, 4, 4, 3}, two},
                                                    {"dualpipev", {4, 4, 4, 3}, two}}) {
    PipelineOptions options{
        .balance = each.balance, .devices = each.devices, .chunks = 8, .schedule = each.schedule};
    const PipelineResidency all = Pipeline(model, options).plan(x, target, square_loss);
    for (const double share : {1.01, 0.95, 0.9, 0.85, 0.8}) {
      options.bytes.clear();
      for (const Bytes peak : all.peaks) options.bytes.push_back(peak * share);
      Pipeline pipe(model, options);
      try {
        const PipelineResidency plan = pipe.plan(x, target, square_loss);
        for (const auto& stage : plan.stages) {
          for (const auto& choice : stage.choices) recomputing += choice.recomputed_layers > 0;
        }
      } catch (const BudgetError&) {
        continue;
      }
      ++plans;
      torch::manual_seed(2);
      const Outcome plain = plain_step(model, x, target, 8, backward_order(pipe.schedule(8)));
      torch::manual_seed(2);
      expect_same(plain, outcome_of(model, pipe.step(x, target, square_loss).loss),
                  std::string(each.schedule) + ", share " + std::to_string(share));
    }
  }
  EXPECT_GE(plans, 18);
  EXPECT_GE(recomputing, 12);
}

TEST(PipelineResidency, ThePeakIsPredictedWhereInputAndWeightGradientsComeApart) {
  torch::manual_seed(1);
  const auto model = wide_blocks(4);
  const at::Tensor x = torch::randn({4 * 256, 128}), target = torch::randn_like(x);
  PipelineSchedule schedule{"apart", 2, 4, {{}}};
  for (std::int64_t i = 0; i < 4; ++i)
    schedule.workers[0].push_back({{0, PipelineWork::kForward, i}});
  for (std::int64_t i = 0; i < 4; ++i)
    schedule.workers[0].push_back({{1, PipelineWork::kForward, i}});
  for (const std::int64_t stage : {1, 0}) {
    for (const auto work : {PipelineWork::kInputGradient, PipelineWork::kWeightGradient}) {
      for (std::int64_t i = 0; i < 4; ++i) schedule.workers[0].push_back({{stage, work, i}});
    }
  }
  PipelineOptions options{.balance = {8, 8}, .chunks = 4, .custom_schedule = schedule};
  const Bytes most = Pipeline(model, options).plan(x, target, difference_loss).peaks.front();
  for (const double share : {1.0, 0.9, 0.85, 0.8, 0.75, 0.7}) {
    options.bytes = {most * share};
    Pipeline pipe(model, options);
    const PipelineResidency plan = pipe.plan(x, target, difference_loss);
    pipe.step(x, target, difference_loss);
    const PeakScope scope;
    pipe.step(x, target, difference_loss);
    const Bytes measured = scope.peak_above_start() + resident_of(model);
    EXPECT_LE(measured, options.bytes.front()) << plan.text() << share;
    EXPECT_GE(static_cast<double>(measured.count), 0.98 * static_cast<double>(plan.peaks[0].count));
  }
}

TEST(PipelineResidency, ForwardAndBackwardFollowAPlanToo) {
  torch::manual_seed(1);
  const auto model = wide_blocks(3, 32);
  const at::Tensor x = torch::randn({256, 32});
  PipelineOptions options{.balance = {6, 6}, .chunks = 4};
  const PipelineResidency all = Pipeline(model, options).plan(x);
  Pipeline plain(model, {.balance = {6, 6}, .chunks = 4, .checkpoint = CheckpointMode::kNever});
  options.bytes = {all.peaks[0] * 0.8, all.peaks[1] * 0.8};
  Pipeline pipe(model, options);
  std::vector<Outcome> outcomes;
  for (Pipeline* each : {&plain, &pipe}) {
    torch::manual_seed(2);
    const at::Tensor loss = each->forward(x).square().sum();
    loss.backward();
    outcomes.push_back(outcome_of(model, loss.detach()));
  }
  expect_same(outcomes[0], outcomes[1], "forward()");
  EXPECT_GT(pipe.timeline().workers[0].events.size(), 0U);
  EXPECT_GT(pipe.plan(x).stages[0].choices.size(), 0U);
}

TEST(PipelineResidency, AStageThatCannotFitIsRefusedBeforeTheStep) {
  torch::manual_seed(1);
  const auto model = wide_blocks(2);
  const at::Tensor x = torch::randn({512, 128});
  Pipeline pipe(model,
                {.balance = {4, 4}, .chunks = 4, .bytes = {GB(1), KB(300)}, .schedule = "1f1b"});
  const std::string refusal = refusal_of<BudgetError>([&] { pipe.step(x, x, difference_loss); });
  EXPECT_THAT(refusal, HasSubstr("stage 1 on worker 1 cannot fit in 300000 bytes (300.0 KB)"));
  EXPECT_THAT(refusal, HasSubstr("it needs at least "));
  EXPECT_THAT(refusal, HasSubstr("move layers to other stages"));
  EXPECT_TRUE(pipe.timeline().workers.empty()) << "a step was begun";
  for (const at::Tensor& parameter : model->parameters()) {
    EXPECT_EQ(parameter.grad().count_nonzero().item<std::int64_t>(), 0);
  }
}

TEST(PipelineResidency, OptionsThatDoNotFitAreRefused) {
  const auto model = wide_blocks(1, 8);
  EXPECT_THAT(refusal_of([&] {
                Pipeline(model, {.balance = {2, 2}, .bytes = {MB(1), MB(1), MB(1)}});
              }),
              HasSubstr("bytes has 3 numbers for the 2 workers"));
  EXPECT_THAT(refusal_of([&] {
                Pipeline(model, {.balance = {2, 2}, .bytes = {Bytes(0)}});
              }),
              HasSubstr("bytes[0] is 0; it must be at least 1"));
  EXPECT_THAT(refusal_of([&] {
                Pipeline(model, {.balance = {2, 2}, .checkpoint_stop = 1, .bytes = {MB(1)}});
              }),
              HasSubstr("both bytes and checkpoint_stop (1)"));
}

TEST(PipelineResidency, LayersOfSeveralTensorsAreRefusedByName) {
  PipelineLayer one{.name = "pair", .forward = [](std::vector<at::Tensor> x) {
                      return std::vector<at::Tensor>{x.front(), x.front() * 2};
                    }};
  PipelineLayer two{.name = "sum", .forward = [](std::vector<at::Tensor> x) {
                      return std::vector<at::Tensor>{x.front() + x.back()};
                    }};
  Pipeline pipe({one, two}, {.balance = {1, 1}, .bytes = {MB(1)}});
  EXPECT_THAT(refusal_of([&] {
                pipe.forward(torch::randn({2, 2}));
              }),
              HasSubstr("layer pair returns 2 tensors"));
}

}  // namespace
}  // namespace reprise::pipeline
