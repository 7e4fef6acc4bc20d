// A pipeline over two accelerators; skipped where there are fewer. What is not particular to real
// devices is tested on the simulated one (tests/fake_device/pipeline_test.cpp).
#include <ATen/DeviceAccelerator.h>
#include <reprise/memory.h>

#include "tests/pipeline/testing.h"

namespace reprise::pipeline {
namespace {

class PipelineAccelerators : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto type = at::accelerator::getAccelerator();
    const int count = type ? at::accelerator::deviceCount() : 0;
    if (count < 2) GTEST_SKIP() << "there are " << count << " accelerators, and this needs two";
    devices_ = {{*type, 0}, {*type, 1}};
  }
  static torch::nn::Sequential model_of() {
    torch::manual_seed(1);
    torch::nn::Sequential model;
    for (int i = 0; i < 8; ++i) {
      model->push_back(torch::nn::Linear(512, 512));
      model->push_back(torch::nn::ReLU(torch::nn::ReLUOptions(true)));
      model->push_back(torch::nn::Tanh());
    }
    return model;
  }
  std::vector<c10::Device> devices_;
};

TEST_F(PipelineAccelerators, GradientsAreThoseOfOneDeviceInEverySchedule) {
  const at::Tensor x = torch::randn({1024, 512}, devices_[0]);
  const at::Tensor target = torch::randn({1024, 512}, devices_[0]);
  for (const char* schedule : {"gpipe", "1f1b", "zero-bubble"}) {
    const bool is_split = schedule == std::string("zero-bubble");
    PipelineOptions options{.balance = is_split ? std::vector<std::int64_t>{6, 6, 6, 6}
                                                : std::vector<std::int64_t>{12, 12},
                            .devices = {devices_[0], devices_[0]},
                            .chunks = 8,
                            .schedule = schedule};
    const auto one = model_of(), two = model_of();
    const Outcome expected =
        outcome_of(one, Pipeline(one, options).step(x, target, square_loss).loss);
    options.devices = devices_;
    const at::Tensor loss =
        Pipeline(two, options).step(x, target.to(devices_[1]), square_loss).loss;
    Outcome outcome = outcome_of(two, loss.to(devices_[0]));
    for (at::Tensor& gradient : outcome.gradients) gradient = gradient.to(devices_[0]);
    expect_same(expected, outcome, schedule);
  }
}

TEST_F(PipelineAccelerators, StagesHoldTheBytesThatTheyAreGiven) {
  const auto model = model_of();
  const at::Tensor x = torch::randn({4096, 512}, devices_[0]);
  const at::Tensor target = torch::randn({4096, 512}, devices_[1]);
  PipelineOptions options{
      .balance = {12, 12}, .devices = devices_, .chunks = 8, .schedule = "1f1b"};
  const auto all = Pipeline(model, options).plan(x, target, square_loss).peaks;
  options.bytes = {all[0] * 0.8, all[1] * 0.8};
  Pipeline pipe(model, options);
  pipe.step(x, target, square_loss);
  Bytes resident;
  for (const at::Tensor& each : model->parameters()) {
    resident += Bytes(static_cast<std::int64_t>(each.nbytes()));  // of half of them, with gradients
  }
  const PeakScope first(devices_[0]), second(devices_[1]);
  pipe.step(x, target, square_loss);
  EXPECT_LE(first.peak_above_start() + resident, options.bytes[0]);
  EXPECT_LE(second.peak_above_start() + resident, options.bytes[1]);
}

}  // namespace
}  // namespace reprise::pipeline
