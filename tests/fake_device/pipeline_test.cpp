// Pipelines on accelerators: each worker has streams of its own, and nothing but events orders them.
#include <reprise/pipeline.h>

#include "tests/fake_device/tape_testing.h"
#include "tests/refusal.h"

namespace reprise::testing_support {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kWidth = 16, kInside = 64, kSamples = 8 * 16, kChunks = 8;

class PipelineOnFakeDevices : public OnFakeDevice {
 protected:
  // `blocks` times five layers, whose insides outweigh what goes from stage to stage. The same
  // numbers each time.
  static torch::nn::Sequential model_of(std::int64_t blocks, std::int64_t inside = kInside) {
    torch::manual_seed(3);
    torch::nn::Sequential model;
    for (std::int64_t i = 0; i < blocks; ++i) {
      model->push_back(torch::nn::Linear(kWidth, kWidth));
      model->push_back(torch::nn::Linear(kWidth, inside));
      model->push_back(torch::nn::ReLU(torch::nn::ReLUOptions(true)));
      model->push_back(torch::nn::Tanh());
      model->push_back(torch::nn::Linear(inside, kWidth));
    }
    return model;
  }
  static at::Tensor loss_of(const at::Tensor& output, const at::Tensor& target) {
    return (output - target).square().mean();
  }
  static std::vector<at::Tensor> gradients_of(const torch::nn::Sequential& model) {
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : model->parameters()) {
      gradients.push_back(parameter.grad().cpu());
    }
    return gradients;
  }
  static std::vector<std::int64_t> waits() {
    std::vector<std::int64_t> waits;
    for (c10::DeviceIndex i = 0; i < kFakeDevices; ++i) {
      waits.push_back(FakeStreams::of(i).waits());
    }
    return waits;
  }

  const at::Tensor x_ = at::randn({kSamples, kWidth}), target_ = at::randn({kSamples, kWidth});
};

TEST_F(PipelineOnFakeDevices, GradientsAreThoseOnTheHostInEverySchedule) {
  struct Case {
    const char* schedule;
    std::vector<std::int64_t> balance;
    std::vector<c10::Device> devices;
  };
  for (const Case& each : std::vector<Case>{{"gpipe", {4, 6, 5}, {fake(0), fake(1), fake(2)}},
                                            {"1f1b", {4, 6, 5}, {fake(2), fake(0), fake(1)}},
                                            {"1f1b", {7, 8}, {fake(1), fake(1)}},
                                            {"1f1b", {4, 6, 5}, {fake(1), c10::kCPU, fake(0)}},
                                            {"interleaved-1f1b", {3, 4, 5, 3}, {fake(0), fake(1)}},
                                            {"zero-bubble", {3, 4, 5, 3}, {fake(0), fake(1)}},
                                            {"zbv", {3, 4, 5, 3}, {fake(0), fake(1)}},
                                            {"dualpipev", {3, 4, 5, 3}, {fake(0), fake(1)}}}) {
    PipelineOptions options{.balance = each.balance,
                            .devices = each.devices,
                            .chunks = kChunks,
                            .checkpoint_stop = 5,
                            .schedule = each.schedule};
    const auto on_device = model_of(3);
    Pipeline pipe(on_device, options);
    const at::Tensor target =
        target_.to(each.devices[each.schedule == std::string("zbv") ||
                                        each.schedule == std::string("dualpipev")
                                    ? 0
                                    : each.devices.size() - 1]);
    std::vector<at::Tensor> gradients;
    at::Tensor loss;
    {
      const WorkIsLate late;
      loss = pipe.step(x_.to(each.devices.front()), target, loss_of).loss;
      gradients = gradients_of(on_device);
    }
    const auto on_host = model_of(3);
    options.devices.assign(each.devices.size(), c10::kCPU);
    EXPECT_TRUE(at::equal(Pipeline(on_host, options).step(x_, target_, loss_of).loss, loss.cpu()))
        << each.schedule;
    EXPECT_TRUE(same_bits(gradients_of(on_host), gradients)) << each.schedule;
    EXPECT_EQ(FakeMemory::hazards(), std::vector<std::string>{}) << each.schedule;
  }
}

TEST_F(PipelineOnFakeDevices, ForwardAndBackwardTooAndTheInputMayBeOnTheHost) {
  const auto on_host = model_of(2), on_device = model_of(2);
  PipelineOptions options{.balance = {4, 6}, .chunks = kChunks};
  const at::Tensor output = Pipeline(on_host, options).forward(x_);
  loss_of(output, target_).backward();
  options.devices = {fake(0), fake(1)};
  const WorkIsLate late;
  const at::Tensor on = Pipeline(on_device, options).forward(x_);
  EXPECT_EQ(on.device(), fake(1));
  loss_of(on, target_.to(fake(1))).backward();
  EXPECT_TRUE(at::equal(output, on.cpu()));
  EXPECT_TRUE(same_bits(gradients_of(on_host), gradients_of(on_device)));
}

TEST_F(PipelineOnFakeDevices, TheHostWaitsForNothingAndEachStepRecordsAsManyEvents) {
  const auto model = model_of(4);
  for (const char* schedule : {"gpipe", "1f1b"}) {
    Pipeline pipe(model, {.balance = {10, 10},
                          .devices = {fake(0), fake(1)},
                          .chunks = kChunks,
                          .schedule = schedule});
    const at::Tensor x = x_.to(fake(0)), target = target_.to(fake(1));
    pipe.step(x, target, loss_of);
    const WorkIsLate late;
    std::vector<std::int64_t> events;
    const auto before = waits();
    for (int i = 0; i < 3; ++i) {
      const std::int64_t recorded = FakeEvents::recorded;
      pipe.step(x, target, loss_of);
      events.push_back(FakeEvents::recorded - recorded);
    }
    EXPECT_EQ(waits(), before) << schedule;
    EXPECT_EQ(events, std::vector<std::int64_t>(3, events.front())) << schedule;
  }
}

TEST_F(PipelineOnFakeDevices, WithoutEventsTheHostWaitsInstead) {
  const auto on_host = model_of(2);
  const auto on_device = model_of(2);
  PipelineOptions options{.balance = {4, 6}, .chunks = kChunks, .schedule = "1f1b"};
  Pipeline(on_host, options).step(x_, target_, loss_of);
  options.devices = {fake(0), fake(1)};
  Pipeline pipe(on_device, options);
  FakeStreams::has_events = false;
  const auto before = waits();
  pipe.step(x_.to(fake(0)), target_.to(fake(1)), loss_of);
  EXPECT_GT(waits()[0], before[0]);
  FakeStreams::has_events = true;
  EXPECT_TRUE(same_bits(gradients_of(on_host), gradients_of(on_device)));
  FakeMemory::hazards();  // the watch does not know what the host has waited for on another device
}

TEST_F(PipelineOnFakeDevices, CopiesRunOnStreamsOfTheirOwn) {
  const auto model = model_of(2);
  Pipeline pipe(
      model,
      {.balance = {4, 6}, .devices = {fake(0), fake(1)}, .chunks = kChunks, .schedule = "1f1b"});
  const at::Tensor x = x_.to(fake(0)), target = target_.to(fake(1));
  pipe.step(x, target, loss_of);
  FakeMemory::forget_named();
  pipe.step(x, target, loss_of);
  // Each micro-batch's output is copied off by one stream, and its gradient by another.
  for (const int device : {0, 1}) {
    std::map<c10::StreamId, std::int64_t> times;
    for (const c10::StreamId stream : FakeMemory::named(fake(device).index())) ++times[stream];
    EXPECT_GE(times.size(), 2U);
    EXPECT_GE(std::ranges::count_if(times, [](const auto& each) { return each.second >= kChunks; }),
              2)
        << device;
  }
}

TEST_F(PipelineOnFakeDevices, AfterAnErrorAllStreamsAreAtRestAndTheNextStepWorks) {
  auto model = model_of(2);
  auto layers = detail::pipeline_layers<at::Tensor>(model);
  std::atomic<int> left = -1;
  layers[5].forward = [&left, inner = layers[5].forward](std::vector<at::Tensor> x) {
    if (left-- == 0) throw std::runtime_error("layer 5 broke");
    return inner(std::move(x));
  };
  Pipeline pipe(
      layers,
      {.balance = {4, 6}, .devices = {fake(0), fake(1)}, .chunks = kChunks, .schedule = "1f1b"});
  const at::Tensor x = x_.to(fake(0)), target = target_.to(fake(1));
  pipe.step(x, target, loss_of);
  const auto good = gradients_of(model);
  model->zero_grad();
  {
    const WorkIsLate late;
    const auto before = waits();
    left = 3;
    EXPECT_THROW(pipe.step(x, target, loss_of), std::runtime_error);
    EXPECT_GT(waits()[0], before[0]);
    EXPECT_GT(waits()[1], before[1]);
    left = -1;
  }
  model->zero_grad();
  pipe.step(x, target, loss_of);
  EXPECT_TRUE(same_bits(good, gradients_of(model)));
}

TEST_F(PipelineOnFakeDevices, DevicesThatAreNotThereAreRefused) {
  const auto model = model_of(1);
  EXPECT_THAT(refusal_of([&] {
                Pipeline(model, {.balance = {2, 3}, .devices = {fake(0), fake(8)}});
              }),
              HasSubstr("there is no device fake:8; this machine has 8 of that type"));
  Pipeline(model, {.balance = {2, 3}, .devices = {c10::Device("fake"), fake(7)}});
  EXPECT_EQ(model->parameters().front().device(), fake(0));
}

TEST_F(PipelineOnFakeDevices, PeakOfEachStageIsThePredictedOne) {
  // An input that may wait is less than a percent of a stage.
  const auto model = model_of(6, 512);
  const at::Tensor x = at::randn({8 * 256, kWidth}).to(fake(0)),
                   target = at::randn({8 * 256, kWidth}).to(fake(2));
  PipelineOptions options{
      .balance = {10, 10, 10}, .devices = {fake(0), fake(1), fake(2)}, .chunks = 8};
  for (const char* schedule : {"gpipe", "1f1b"}) {
    options.schedule = schedule;
    options.bytes.clear();
    const auto all = Pipeline(model, options).plan(x, target, loss_of).peaks;
    for (const double share : {1.0, 0.7}) {
      options.bytes.clear();
      for (const Bytes bytes : all) options.bytes.push_back(bytes * share);
      Pipeline pipe(model, options);
      const PipelineResidency plan = pipe.plan(x, target, loss_of);
      pipe.step(x, target, loss_of);
      std::array<Bytes, 3> resident;  // of each stage: its parameters and their gradients
      for (std::size_t l = 0; l < model->size(); ++l) {
        for (const at::Tensor& each : model->ptr(l)->parameters()) {
          resident[l / 10] += Bytes((static_cast<std::int64_t>(each.nbytes()) + 511) / 512 * 1024);
        }
      }
      std::vector<std::unique_ptr<PeakScope>> scopes;
      for (int i = 0; i < 3; ++i) scopes.push_back(std::make_unique<PeakScope>(fake(i)));
      pipe.step(x, target, loss_of);
      for (std::size_t i = 0; i < 3; ++i) {
        const Bytes measured = scopes[i]->peak_above_start() + resident[i];
        EXPECT_LE(measured, options.bytes[i])
            << schedule << ", " << share << ", stage " << i << "\n"
            << plan.text();
        EXPECT_GE(static_cast<double>(measured.count),
                  0.98 * static_cast<double>(plan.peaks[i].count))
            << schedule << ", " << share << ", stage " << i;
      }
    }
  }
}

}  // namespace
}  // namespace reprise::testing_support
