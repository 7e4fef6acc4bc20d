// What is refused, and that a step which fails leaves the pipeline as it was.
#include "tests/pipeline/testing.h"

#include <atomic>

namespace reprise::pipeline {
namespace {

using ::testing::HasSubstr;

std::string refusal(const torch::nn::Sequential& model, PipelineOptions options) {
  return refusal_of([&] { Pipeline(model, std::move(options)); });
}

TEST(PipelineFaults, OptionsThatDoNotFitAreRefusedBeforeAnythingRuns) {
  const auto model = blocks_of(1);
  EXPECT_THAT(refusal(model, {}),
              HasSubstr("the balance (empty) gives 0 layers, and the model has 5"));
  EXPECT_THAT(refusal(model, {.balance = {2, 2}}), HasSubstr("(2 + 2) gives 4 layers"));
  EXPECT_THAT(refusal(model, {.balance = {5, 0}}), HasSubstr("balance[1] is 0"));
  EXPECT_THAT(refusal(model, {.balance = {5}, .chunks = 0}), HasSubstr("chunks is 0"));
  EXPECT_THAT(refusal(model, {.balance = {5}, .checkpoint_stop = -1}),
              HasSubstr("checkpoint_stop is -1"));
  EXPECT_THAT(refusal(model, {.balance = {5}, .threads = -2}), HasSubstr("threads is -2"));
  EXPECT_THAT(refusal(model, {.balance = {5}, .schedule = "2f2b"}), HasSubstr("2f2b"));
  EXPECT_THAT(
      refusal(model, {.balance = {2, 3}, .devices = {c10::Device(c10::kCUDA, 99), c10::kCPU}}),
      HasSubstr("there is no device cuda:99"));
  EXPECT_THAT(refusal(model, {.balance = {2, 2, 1}, .devices = {c10::kCPU, c10::kCPU}}),
              HasSubstr("3 stages cannot be shared evenly among 2 workers"));
  CheckpointOptions reentrant;
  reentrant.reentrant = true;
  EXPECT_THAT(refusal(model, {.balance = {5}, .regions = reentrant}),
              HasSubstr("regions.reentrant"));
  EXPECT_THAT(refusal_of([] { Pipeline(std::vector<PipelineLayer>(), {}); }),
              HasSubstr("no layers"));
}

TEST(PipelineFaults, SharedParametersMustBeInOneStage) {
  const torch::nn::Linear shared(4, 4);
  const std::vector<torch::nn::Linear> layers{shared, torch::nn::Linear(4, 4), shared};
  EXPECT_THAT(refusal_of([&] {
                Pipeline(layers, {.balance = {2, 1}});
              }),
              HasSubstr("shares a parameter with stage 0, and is in stage 1"));
  Pipeline(layers, {.balance = {3}});
}

TEST(PipelineFaults, BatchesThatCannotBeCutAreRefused) {
  Pipeline pipe(blocks_of(1), {.balance = {2, 3}, .chunks = 2});
  EXPECT_THAT(refusal_of([&] { pipe.forward(torch::tensor(1.0)); }),
              HasSubstr("input 0 has no dimension"));
  EXPECT_THAT(refusal_of([&] { pipe.forward(at::Tensor()); }), HasSubstr("input 0 is undefined"));
  EXPECT_THAT(refusal_of([&] { pipe.forward(torch::randn({0, 8})); }), HasSubstr("no samples"));
  EXPECT_THAT(refusal_of([&] {
                pipe.step(torch::randn({4, 8}), torch::randn({3, 8}), square_loss);
              }),
              HasSubstr("target 0 has 3 samples"));
  EXPECT_THAT(refusal_of([&] {
                pipe.step(torch::randn({4, 8}), torch::randn({4, 8}),
                          [](const at::Tensor& y, const at::Tensor&) { return y; });
              }),
              HasSubstr("has 16 elements"));
}

TEST(PipelineFaults, GradientsOfChosenTensorsAndSecondDerivativesAreRefused) {
  Pipeline pipe(blocks_of(1), {.balance = {2, 3}, .chunks = 2});
  const at::Tensor x = torch::randn({4, 8}).requires_grad_();
  EXPECT_THAT(refusal_of([&] { torch::autograd::grad({pipe.forward(x).sum()}, {x}); }),
              HasSubstr("gradients of chosen tensors"));
  EXPECT_THAT(refusal_of([&] { pipe.forward(x).sum().backward({}, true, true); }),
              HasSubstr("create_graph=true"));
}

TEST(PipelineFaults, TheFirstErrorOfAStageEndsTheStepAndTheNextOneWorks) {
  torch::manual_seed(1);
  auto model = blocks_of(1, false);
  std::atomic<int> left{-1};
  for (const char* schedule : {"gpipe", "1f1b"}) {
    auto layers = detail::pipeline_layers<at::Tensor>(model);
    const auto inner = layers[3].forward;
    layers[3].forward = [&left, inner](std::vector<at::Tensor> x) {
      if (left-- == 0) throw std::runtime_error("layer 3 broke");
      return inner(std::move(x));
    };
    Pipeline pipe(layers, {.balance = {2, 3}, .chunks = 4, .schedule = schedule});
    const at::Tensor x = torch::randn({8, 8});
    const at::Tensor plain = pipe.step(x, x, square_loss).loss;
    const Outcome good = outcome_of(model, plain);
    // In forward, and in a recomputation.
    for (const int at : {0, 2, 3, 5}) {
      left = at;
      try {
        pipe.step(x, x, square_loss);
        ADD_FAILURE() << "the error is lost";
      } catch (const std::runtime_error& error) {
        EXPECT_STREQ(error.what(), "layer 3 broke");
      }
      left = -1;
      model->zero_grad();
      expect_same(good, outcome_of(model, pipe.step(x, x, square_loss).loss), "after a failure");
    }
  }
}

TEST(PipelineFaults, ActivationsDieWithTheGraph) {
  torch::manual_seed(1);
  const auto model = blocks_of(2);
  Pipeline pipe(model, {.balance = {5, 5}, .chunks = 2, .checkpoint = CheckpointMode::kNever});
  std::weak_ptr<int> alive;
  {
    at::Tensor output;
    {
      const auto token = std::make_shared<int>(1);
      alive = token;
      at::Tensor x = torch::randn({4, 8});
      output = pipe.forward(at::from_blob(x.data_ptr(), {4, 8}, [token, x](void*) {}));
    }
    EXPECT_FALSE(alive.expired());
  }
  EXPECT_TRUE(alive.expired());
}

}  // namespace
}  // namespace reprise::pipeline
