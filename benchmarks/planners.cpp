// The planners of chains: how long the dynamic program takes, and what its schedules save beside
// segments of equal length in as many bytes, measured.
#include <fmt/format.h>
#include <reprise/memory.h>
#include <reprise/planners.h>
#include <reprise/sequential.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include <random>

#include "benches.h"
#include "benchmarks/support/race.h"
#include "models/gpt.h"

namespace reprise::bench {
namespace {

constexpr const char* kSolveBench = "rotor_solve";
constexpr const char* kQualityBench = "chain_quality";
constexpr std::int64_t kSlots = 500;

// As heterogeneous as chains of unlike layers are; no model's.
Chain drawn_chain(std::int64_t stages) {
  std::mt19937_64 random(1);
  const auto draw = [&](std::int64_t least, std::int64_t most) {
    return least + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most - least));
  };
  Chain chain;
  for (std::int64_t i = 0; i < stages; ++i) {
    ChainStage stage;
    stage.forward = Seconds(1e-6 * static_cast<double>(draw(100, 2000)));
    stage.backward = 2 * stage.forward;
    stage.output = Bytes(draw(100'000, 4'000'000));
    stage.saved = stage.output + Bytes(draw(0, 12'000'000));
    stage.output_gradient = stage.output;
    chain.stages.push_back(std::move(stage));
  }
  return chain;
}

void report_solution(Session& session, std::int64_t stages, double bar) {
  const Chain chain = drawn_chain(stages);
  const Bytes half(evaluate(chain, planners::keep_all(chain)).peak.count / 2);
  std::vector<double> seconds;
  for (int i = 0; i < (session.quick() ? 1 : 5); ++i) {
    const Step solve = [&] { planners::rotor(chain, half, {.slots = kSlots, .store = {}}); };
    seconds.push_back(time_calls(solve, 1));
  }
  session.report(make_figure(kSolveBench, fmt::format("{} stages, {} slots", stages, kSlots), "s",
                             seconds, {}, {.at_most = bar}));
}

// A model as a list of functions, with what profiling needs.
struct Layered {
  const char* name;
  std::vector<TensorFunction> functions;
  std::vector<at::Tensor> parameters, buffers;
  at::Tensor sample;

  template <class Module>
  void add(const Module& module) {
    functions.push_back(
        [pointer = module.ptr()](const at::Tensor& x) { return pointer->forward(x); });
    for (const at::Tensor& each : module->parameters()) parameters.push_back(each);
    for (const at::Tensor& each : module->buffers()) buffers.push_back(each);
  }
};

// Convolutions whose maps shrink as channels grow.
Layered resnet_like() {
  Layered model{.name = "resnet-like",
                .functions = {},
                .parameters = {},
                .buffers = {},
                .sample = at::randn({4, 3, 64, 64})};
  std::int64_t channels = 3;
  for (const std::int64_t next : {16, 16, 32, 32, 64, 64, 128, 128}) {
    const bool shrinks = next != channels && channels != 3;
    model.add(torch::nn::Conv2d(
        torch::nn::Conv2dOptions(channels, next, 3).padding(1).stride(shrinks ? 2 : 1)));
    model.add(torch::nn::BatchNorm2d(next));
    model.add(torch::nn::ReLU());
    channels = next;
  }
  return model;
}

Layered gpt() {
  const models::GptOptions options{
      .layers = 12, .width = 128, .heads = 4, .context = 128, .fused_attention = false};
  Layered model{.name = "gpt",
                .functions = {},
                .parameters = {},
                .buffers = {},
                .sample = at::randn({4, 128, 128})};
  for (int i = 0; i < 12; ++i) model.add(models::GptBlock(models::block_options(options)));
  return model;
}

Layered drawn() {
  std::mt19937_64 random(2);
  Layered model{.name = "drawn widths",
                .functions = {},
                .parameters = {},
                .buffers = {},
                .sample = at::randn({256, 64})};
  std::int64_t width = 64;
  for (int i = 0; i < 12; ++i) {
    const auto next = static_cast<std::int64_t>(32 << random() % 5);
    model.add(torch::nn::Linear(width, next));
    model.add(torch::nn::Tanh());
    width = next;
  }
  return model;
}

// One step of the chain; above what is live before.
template <class Plan>
Bytes measured_peak(const Layered& model, const Plan& plan) {
  const PeakScope peak;
  // A loss that is no part of the chain takes no bytes beside a gradient of the output's size, and
  // nobody holds the output while backward runs.
  const at::Tensor loss = (checkpoint_sequential(model.functions, plan, model.sample) * 2).sum();
  loss.backward();
  const Bytes found = peak.peak_above_start();
  for (const at::Tensor& parameter : model.parameters) parameter.mutable_grad().reset();
  return found;
}

// The fastest schedule whose step needs no more bytes than that.
Schedule within_measured(const Layered& model, const planners::Rotor& rotor, Bytes peak) {
  for (Bytes budget = peak;;) {
    Schedule schedule = rotor.plan(budget);
    const Bytes over = measured_peak(model, schedule) - peak;
    if (over <= Bytes(0)) return schedule;
    budget -= over;
  }
}

void report_quality(Session& session, const Layered& model) {
  const Chain chain = profile_chain(model.functions, model.sample, model.parameters, model.buffers);
  const planners::Rotor rotor(chain);
  const auto count = std::ssize(model.functions);
  for (std::int64_t segments = 2; segments <= count; segments *= 2) {
    // In the chain's stages, which are fewer where layers share memory.
    const Schedule theirs =
        planners::uniform(chain, std::min<std::int64_t>(segments, std::ssize(chain.stages)));
    const Bytes peak = measured_peak(model, theirs);
    const Schedule ours = within_measured(model, rotor, peak);
    session.report({.bench = kQualityBench,
                    .name = fmt::format("{}, as {} segments ({:.1f} MB): run again", model.name,
                                        segments, peak.megabytes()),
                    .ours = evaluate(chain, ours).recompute.count() * 1e3,
                    .peer = evaluate(chain, theirs).recompute.count() * 1e3,
                    .unit = "ms",
                    .runs = 1,
                    .spread = 0,
                    .bar = {.ratio_at_most = 1}});
    session.report({.bench = kQualityBench,
                    .name = fmt::format("{}, as {} segments: predicted peak of measured",
                                        model.name, segments),
                    .ours = static_cast<double>(evaluate(chain, ours).peak.count) /
                            static_cast<double>(measured_peak(model, ours).count),
                    .peer = {},
                    .unit = "×",
                    .runs = 1,
                    .spread = 0,
                    .bar = {.at_most = 1.02, .at_least = 0.98}});
  }
}

}  // namespace

void rotor_solve(Session& session) {
  report_solution(session, 100, 0.05);
  report_solution(session, 339, 1.5);
}

void chain_quality(Session& session) {
  report_quality(session, resnet_like());
  report_quality(session, gpt());
  report_quality(session, drawn());
}

}  // namespace reprise::bench
