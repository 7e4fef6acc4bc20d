// The laws of pipelines, measured: what checkpointing some micro-batches adds to the time and takes
// off the peak, how throughput grows with the micro-batches, what the pipeline itself costs, and
// whether simulate() predicts a step.
//
// n: partitions, each a stage with a worker; m: micro-batches. One thread inside operators of each
// worker. A model is a row of equal blocks, LayerNorm, Linear and GELU of width 512. The
// normalization has parameters, so that the first Linear computes its input's gradient like all
// others, and stages of equally many blocks take equally long. pipeline_modes has width 1536: what
// fits in the caches when it is recomputed, and not when it is kept, weighs less there.
//
// One worker is timed by the process' processor time, as in all races. Two workers are timed by
// elapsed time, with rounds in which each case runs once.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <malloc.h>
#include <reprise/memory.h>
#include <reprise/pipeline.h>
#include <torch/torch.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "benches.h"
#include "benchmarks/support/race.h"
#include "core/clock.h"
#include "core/statistics.h"

namespace reprise::bench {
namespace {

constexpr std::int64_t kPipelineWidth = 512;
constexpr std::int64_t kMicroBatchRows = 256;  // of a micro-batch
constexpr std::int64_t kLayersOfBlock = 3;

// Not mse_loss(), whose result is one number in the storage of a whole output.
at::Tensor loss_of(const at::Tensor& output, const at::Tensor& target) {
  return (output - target).square().mean();
}

// A model and a mini-batch for it.
struct Work {
  torch::nn::Sequential model;
  at::Tensor input, target;

  // The gradients exist before the step, so that a step's bytes are activations and temporaries.
  Work(std::int64_t blocks, std::int64_t micro_batches, std::int64_t width = kPipelineWidth)
      : input(at::randn({micro_batches * kMicroBatchRows, width})), target(at::randn_like(input)) {
    for (std::int64_t i = 0; i < blocks; ++i) {
      model->push_back(torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
      model->push_back(torch::nn::Linear(width, width));
      model->push_back(torch::nn::GELU());
    }
    for (const at::Tensor& parameter : model->parameters()) {
      parameter.mutable_grad() = at::zeros_like(parameter);
    }
  }
};

// A pipeline of `partitions` with equally many blocks, and its mini-batch.
struct Piped {
  Work work;
  Pipeline pipe;

  Piped(std::int64_t blocks, std::int64_t partitions, const PipelineOptions& options,
        std::int64_t width = kPipelineWidth)
      : work(blocks, options.chunks, width), pipe(work.model, cut(blocks, partitions, options)) {}

  void step() { pipe.step(work.input, work.target, loss_of); }

 private:
  static PipelineOptions cut(std::int64_t blocks, std::int64_t partitions,
                             PipelineOptions options) {
    options.balance.assign(static_cast<std::size_t>(partitions),
                           blocks / partitions * kLayersOfBlock);
    options.threads = 1;
    return options;
  }
};

PipelineOptions without_checkpoints(std::int64_t micro_batches, std::string schedule) {
  PipelineOptions options;
  options.chunks = micro_batches;
  options.checkpoint = CheckpointMode::kNever;
  options.schedule = std::move(schedule);
  return options;
}

void report_pipeline(Session& session, const char* bench, std::string name, std::string unit,
                     const std::vector<double>& ours, const std::vector<double>& peer = {},
                     const Bar& bar = {}) {
  session.report(make_figure(bench, std::move(name), std::move(unit), ours, peer, bar));
}

// -- pipeline_modes

constexpr const char* kModes = "pipeline_modes";
constexpr std::int64_t kModesBlocks = 2;
constexpr std::int64_t kModesWidth = 1536;
constexpr std::int64_t kModesChunks = 8;

// In the same round, of one micro-batch without a pipeline.
double share_of_forward(const Round& round) {
  return round["one forward"] / round["one micro-batch"];
}

struct BytesOfMicroBatch {
  double kept;  // by forward, for backward
  double peak;  // of its forward and backward
};

// Without a pipeline.
BytesOfMicroBatch bytes_of_micro_batch() {
  Work work(kModesBlocks, 1, kModesWidth);
  const PeakScope scope;
  const at::Tensor loss = loss_of(work.model->forward(work.input), work.target);
  const Bytes kept = live_bytes() - scope.live_at_start();
  loss.backward();
  return {static_cast<double>(kept.count), static_cast<double>(scope.peak_above_start().count)};
}

double peak_of_step(const Step& step) {
  step();
  const PeakScope scope;
  step();
  return static_cast<double>(scope.peak_above_start().count);
}

struct Mode {
  const char* name;
  std::int64_t stop;
  CheckpointMode checkpoint;
  bool is_explicit;
};

constexpr Mode kAllModes[] = {{"never", 0, CheckpointMode::kNever, false},
                              {"stop 2", 2, CheckpointMode::kNever, true},
                              {"stop 5", 5, CheckpointMode::kNever, true},
                              {"except_last", kModesChunks - 1, CheckpointMode::kExceptLast, false},
                              {"always", kModesChunks, CheckpointMode::kAlways, false}};

// -- pipeline_efficiency

constexpr const char* kEfficiency = "pipeline_efficiency";
constexpr std::int64_t kPartitions = 2;
constexpr std::int64_t kBlocksOfPartition = 3;

double elapsed_in(const Step& step) {
  const Stopwatch watch;
  step();
  return watch.elapsed().count();
}

double time_of(Piped& piped) {
  return elapsed_in([&] { piped.step(); });
}

// How far the machine's cores are independent: the time of a pipeline of one partition alone,
// divided by that of two such pipelines at once. 1: entirely.
void report_machine(Session& session, int rounds) {
  const auto options = without_checkpoints(8, "1f1b");
  Piped one(kBlocksOfPartition, 1, options);
  Piped other(kBlocksOfPartition, 1, options);
  const auto both = [&] {
    std::thread thread([&] { other.step(); });
    one.step();
    thread.join();
  };
  both();
  std::vector<double> ratios;
  for (int i = 0; i < rounds; ++i) {
    const double alone = time_of(one);
    ratios.push_back(alone / elapsed_in(both));
  }
  report_pipeline(session, kEfficiency, "alone ÷ two at once, unrelated", "×", ratios);
}

// -- pipeline_bubble

constexpr const char* kBubble = "pipeline_bubble";

// The means of a run's actions, by stage.
PipelineCosts mean_costs(const PipelineTimeline& timeline, std::int64_t stages) {
  PipelineCosts costs = PipelineCosts::even(stages);
  std::vector<int> forwards(costs.stages.size()), backwards(costs.stages.size());
  for (PipelineStageCosts& stage : costs.stages) stage.forward = stage.backward = {};
  for (const auto& worker : timeline.workers) {
    for (const PipelineEvent& event : worker.events) {
      const auto stage = static_cast<std::size_t>(event.action.stage);
      const bool is_forward = event.action.work == PipelineWork::kForward;
      PipelineStageCosts& sum = costs.stages[stage];
      (is_forward ? sum.forward : sum.backward) += event.end - event.begin;
      ++(is_forward ? forwards : backwards)[stage];
    }
  }
  for (std::size_t stage = 0; stage < costs.stages.size(); ++stage) {
    costs.stages[stage].forward /= forwards[stage];
    costs.stages[stage].backward /= backwards[stage];
  }
  return costs;
}

void report_simulated(Session& session, const char* name, std::int64_t stages_per_worker) {
  constexpr std::int64_t kWorkers = 8;
  constexpr std::int64_t kMicroBatches = 32;
  const auto schedule = schedules::by_name(name, kWorkers, stages_per_worker, kMicroBatches);
  const double bubble =
      simulate(schedule, PipelineCosts::even(kWorkers * stages_per_worker)).bubble;
  // (n - 1) / (m + n - 1), where interleaving divides the time of a stage: arXiv:1811.06965 and
  // arXiv:2104.04473.
  const double published =
      double(kWorkers - 1) / static_cast<double>(stages_per_worker * kMicroBatches + kWorkers - 1);
  report_pipeline(session, kBubble, fmt::format("simulated ÷ formula, {}, n=8, m=32", name), "×",
                  {bubble / published}, {}, {.at_most = 1 + 1e-6, .at_least = 1 - 1e-6});
}

void report_measured(Session& session, const char* name, int rounds) {
  constexpr std::int64_t kMicroBatches = 8;
  Piped piped(kPartitions * kBlocksOfPartition, kPartitions,
              without_checkpoints(kMicroBatches, name));
  piped.step();
  std::vector<double> measured, predicted, ratios;
  for (int i = 0; i < rounds; ++i) {
    piped.step();
    const PipelineTimeline run = piped.pipe.timeline();
    const auto expected =
        simulate(piped.pipe.schedule(kMicroBatches), mean_costs(run, kPartitions));
    measured.push_back(run.bubble);
    predicted.push_back(expected.bubble);
    ratios.push_back(run.time / expected.time);
  }
  report_pipeline(session, kBubble, fmt::format("bubble, {}, n=2, m=8; peer: simulated", name),
                  "share", measured, predicted);
  report_pipeline(session, kBubble, fmt::format("measured ÷ simulated time, {}, n=2, m=8", name),
                  "×", ratios, {}, {.at_most = 1.05, .at_least = 0.95});
}

// malloc keeps what is freed, as an accelerator's allocator does. The formula knows no page faults,
// which cost most in the forwards of `never`.
void keep_freed_memory() {
#ifdef M_ARENA_MAX
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_MMAP_THRESHOLD, 1 << 25);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  mallopt(M_TOP_PAD, 1 << 28);
#endif
}

}  // namespace

void pipeline_modes(Session& session) {
  keep_freed_memory();
  // malloc rounds up the first large blocks of a process otherwise than later ones.
  bytes_of_micro_batch();
  const BytesOfMicroBatch bytes = bytes_of_micro_batch();
  Race race(session, kModes, nullptr);
  for (const Mode& mode : kAllModes) {
    PipelineOptions options;
    options.chunks = kModesChunks;
    options.checkpoint = mode.checkpoint;
    if (mode.is_explicit) options.checkpoint_stop = mode.stop;
    // The formula's recomputations are whole forwards.
    options.regions.early_stop = EarlyStop::kNever;
    const auto piped = std::make_shared<Piped>(kModesBlocks, 1, options, kModesWidth);
    const Step step = [piped] { piped->step(); };
    // The most are there when backward begins: all that are not checkpointed, and otherwise the one
    // that is recomputed.
    const auto most = static_cast<double>(std::max<std::int64_t>(kModesChunks - mode.stop, 1));
    const double predicted = (most - 1) * bytes.kept + bytes.peak;
    report_pipeline(session, kModes, fmt::format("peak ÷ formula, {}", mode.name), "×",
                    {peak_of_step(step) / predicted}, {}, {.at_most = 1.02, .at_least = 0.98});
    race.add(mode.name, step);
  }
  const auto one = std::make_shared<Work>(kModesBlocks, 1, kModesWidth);
  const auto forward = [one] { return loss_of(one->model->forward(one->input), one->target); };
  race.add("one forward", [forward] { forward(); });
  race.add("one micro-batch", [forward] { forward().backward(); });
  race.run(Seconds(80));
  race.report("forward's share of a step", "share", share_of_forward);
  for (const Mode& mode : kAllModes) {
    if (mode.stop == 0) continue;
    const std::string name = mode.name;
    const double share_of_mode = static_cast<double>(mode.stop) / kModesChunks;
    race.report("time, " + name, "×never",
                [name](const Round& round) { return round[name] / round["never"]; });
    race.report("time ÷ formula, " + name, "×",
                [name, share_of_mode](const Round& round) {
                  return round[name] / round["never"] /
                         (1 + share_of_forward(round) * share_of_mode);
                },
                {.at_most = 1.03, .at_least = 0.97});
  }
}

void pipeline_efficiency(Session& session) {
  const int rounds = session.quick() ? 2 : 11;
  report_machine(session, rounds);
  constexpr std::int64_t kBlocks = kPartitions * kBlocksOfPartition;
  for (const std::int64_t m : {1, 2, 4, 8, 16, 32}) {
    Piped one(kBlocks, 1, without_checkpoints(m, "1f1b"));
    Piped alternating(kBlocks, kPartitions, without_checkpoints(m, "1f1b"));
    Piped gpipe(kBlocks, kPartitions, without_checkpoints(m, "gpipe"));
    for (Piped* piped : {&one, &alternating, &gpipe}) piped->step();
    const double formula =
        static_cast<double>(kPartitions * m) / static_cast<double>(m + kPartitions - 1);
    std::vector<double> of_alternating, of_gpipe;
    for (int i = 0; i < rounds; ++i) {
      const double alone = time_of(one);
      of_alternating.push_back(alone / time_of(alternating) / formula);
      of_gpipe.push_back(alone / time_of(gpipe) / formula);
    }
    const Bar bar = m == 8 || m == 32 ? Bar{.at_least = 0.93} : Bar{};
    report_pipeline(session, kEfficiency, fmt::format("throughput ÷ formula, 1f1b, m={}", m), "×",
                    of_alternating, {}, bar);
    report_pipeline(session, kEfficiency, fmt::format("throughput ÷ formula, gpipe, m={}", m), "×",
                    of_gpipe);
  }
}

void pipeline_overhead(Session& session) {
  constexpr std::int64_t kMicroBatches = 8;
  constexpr std::int64_t kBlocks = 4;
  Race race(session, "pipeline_overhead", nullptr);
  for (const char* schedule : {"1f1b", "gpipe"}) {
    const auto piped =
        std::make_shared<Piped>(kBlocks, 1, without_checkpoints(kMicroBatches, schedule));
    race.add(schedule, [piped] { piped->step(); });
  }
  const auto work = std::make_shared<Work>(kBlocks, kMicroBatches);
  race.add("plain", [work] {
    const auto inputs = work->input.chunk(kMicroBatches);
    const auto targets = work->target.chunk(kMicroBatches);
    at::Tensor sum = at::zeros({});
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const at::Tensor loss = loss_of(work->model->forward(inputs[i]), targets[i]) / kMicroBatches;
      loss.backward();
      sum += loss.detach();
    }
  });
  race.run(Seconds(40));
  const auto times_plain = [](const char* step) -> Formula {
    return [step](const Round& round) { return round[step] / round["plain"]; };
  };
  // The same order as the loop's. GPipe keeps all micro-batches at once.
  race.report("one partition, 1f1b, m=8", "×plain", times_plain("1f1b"), {.at_most = 1.02});
  race.report("one partition, gpipe, m=8", "×plain", times_plain("gpipe"));
}

void pipeline_bubble(Session& session) {
  report_simulated(session, "gpipe", 1);
  report_simulated(session, "1f1b", 1);
  report_simulated(session, "interleaved-1f1b", 2);
  const int rounds = session.quick() ? 2 : 21;
  for (const char* name : {"gpipe", "1f1b"}) report_measured(session, name, rounds);
}

}  // namespace reprise::bench
