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

void zero_gradients(const torch::nn::Sequential& model) {
  torch::NoGradGuard no_grad;
  for (const at::Tensor& parameter : model->parameters()) parameter.mutable_grad().zero_();
}

// The bytes of a worker beside those of parameters, gradients and buffers, which are there before.
Bytes resident_of(const torch::nn::Sequential& model) {
  Bytes bytes;
  for (const at::Tensor& each : model->parameters()) {
    bytes += Bytes(2 * static_cast<std::int64_t>(each.nbytes()));
  }
  return bytes;
}

TEST(PipelineResidency, PeakOfAStageIsThePredictedOneAndNeverAboveTheBytes) {
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
      printf("%s share %.2f: given %ld predicted %ld measured %ld\n%s", schedule, share, options.bytes[0].count, plan.peaks[0].count, measured.count, plan.text().c_str());
      EXPECT_LE(measured, options.bytes.front()) << schedule << ", " << share;
      EXPECT_NEAR(static_cast<double>(measured.count), static_cast<double>(plan.peaks[0].count),
                  0.02 * static_cast<double>(plan.peaks[0].count));
    }
  }
}

}  // namespace
}  // namespace reprise::pipeline
