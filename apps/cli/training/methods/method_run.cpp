#include "apps/cli/training/methods/method_run.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <reprise/error.h>
#include <reprise/memory.h>
#include <torch/nn/utils/clip_grad.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "apps/cli/io/atomic_file.h"
#include "apps/cli/io/figures.h"
#include "apps/cli/io/interrupt.h"
#include "apps/cli/io/progress.h"
#include "apps/cli/io/streams.h"
#include "apps/cli/training/asked_budget.h"
#include "apps/cli/training/device.h"
#include "apps/cli/training/learning_rate.h"
#include "apps/cli/training/memory_need.h"
#include "apps/cli/training/methods/method.h"
#include "apps/cli/training/methods/pipeline_method.h"
#include "apps/cli/training/methods/run_lines.h"
#include "apps/cli/training/methods/task.h"
#include "apps/cli/training/network.h"
#include "apps/cli/training/trainer.h"

namespace reprise::app {

namespace {

// Dropout depends on the seed and the step alone, and not on what a method drew before.
void seed_step(std::int64_t seed, std::int64_t step) {
  constexpr std::uint64_t kApart = 1'000'003;
  at::manual_seed(static_cast<std::uint64_t>(seed) * kApart + static_cast<std::uint64_t>(step));
}

// The plain step's peak above what is live before it. The first step also makes what LibTorch keeps
// from then on, so the second one counts.
Bytes plain_peak_above(const Task& task, c10::Device device) {
  const auto plain = make_method({.name = "none"}, task, device, Bytes(0));
  Bytes peak;
  for (int i = 0; i < 2; ++i) {
    seed_step(0, 0);
    const TaskBatch batch = task.batch(0);
    const PeakScope scope(device);
    StepSeconds unread;
    plain->step(batch, unread);
    peak = scope.peak_above_start();
    task.module->zero_grad();
  }
  return peak;
}

// Resolves --budget to bytes.
RunBudget budget_of(const TrainOptions& options, const Task& task, c10::Device device) {
  RunBudget budget;
  if (!options.budget) return budget;
  const AskedBudget& asked = *options.budget;
  const Bytes moments = moment_bytes(*task.module);
  Bytes plain;
  if (asked.is_share()) plain = plain_peak_above(task, device);
  budget.live = live_bytes(device) + moments;
  if (asked.is_share()) {
    budget.plain_peak = need_of_training(*task.module, budget.live, budget.live + plain).peak;
  }
  budget.limit = asked.limit(budget.live, budget.plain_peak);
  return budget;
}

class TrainedRun {
 public:
  TrainedRun(const TrainOptions& options, const MethodRun& run, const Task& task,
             c10::Device device, const RunBudget& budget)
      : options_(options),
        task_(task),
        device_(device),
        learning_rate_{options.learning_rate, *options.warmup, options.steps},
        optimizer_(make_optimizer(*task.module, options)),
        method_(options.pipeline ? make_pipeline_method(*options.pipeline, task, device)
                                 : make_method({.name = run.method,
                                                .steps = options.steps,
                                                .seed = static_cast<std::uint64_t>(options.seed)},
                                               task, device, budget.limit - budget.live)) {
    task.module->train();
  }

  StepLine step() {
    StepLine line;
    line.step = done_ + 1;
    const TaskBatch batch = task_.batch(done_);
    line.units = batch.units;
    seed_step(options_.seed, done_);
    const auto start = std::chrono::steady_clock::now();
    {
      const Bytes live = live_bytes(device_);
      const PeakScope peak(device_);
      line.loss = method_->step(batch, line.seconds);
      line.live = live;
      line.peak = peak.peak();
    }
    if (!std::isfinite(line.loss)) {
      throw Error(fmt::format("the loss is {} at step {}; try a smaller --lr or a longer --warmup",
                              line.loss, line.step));
    }
    // observe() replaces the mask that this step was to run with by that of the next one.
    const std::optional<PgacReport> ran = method_->report();
    method_->observe(done_);
    update();
    synchronize(device_);
    line.whole = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    line.pgac = method_->report();
    if (ran) line.pgac->wanted = ran->wanted;
    ++done_;
    return line;
  }

 private:
  void update() {
    const double bound =
        options_.clip > 0 ? options_.clip : std::numeric_limits<double>::infinity();
    torch::nn::utils::clip_grad_norm_(task_.module->parameters(), bound);
    for (auto& group : optimizer_.param_groups()) {
      group.options().set_lr(learning_rate_.at_step(done_));
    }
    optimizer_.step();
    task_.module->zero_grad();
  }

  const TrainOptions& options_;
  const Task& task_;
  c10::Device device_;
  LearningRate learning_rate_;
  torch::optim::AdamW optimizer_;
  std::unique_ptr<TrainingMethod> method_;
  std::int64_t done_ = 0;
};

// The lines of the run. They take their place with the first one, so that they can be followed.
class Log {
 public:
  explicit Log(const std::string& path) {
    if (!path.empty()) file_.emplace(path, "--log");
  }
  void add(const nlohmann::ordered_json& line) {
    if (!file_) return;
    file_->write(line.dump() + "\n");
    file_->take_place();
  }

 private:
  std::optional<AtomicFile> file_;
};

void print_configuration(const TrainOptions& options, const MethodRun& run, const Task& task,
                         const RunBudget& budget, c10::Device device) {
  Facts facts;
  facts.add("model", task.model);
  facts.add("data", task.data);
  facts.add("steps", fmt::format("{} of {} {}, AdamW at {:g} after {} warm-up steps", options.steps,
                                 options.batch, task.units == "images" ? "images" : "sequences",
                                 options.learning_rate, *options.warmup));
  facts.add("machine", describe_machine(options, device));
  facts.add("method", run.method);
  if (options.budget) {
    facts.add("budget", fmt::format("{}, with {} live before a step", to_string(budget.limit),
                                    to_string(budget.live)));
  }
  print_result(facts.text() + "\n");
  std::fflush(stdout);
}

void print_outcome(const TrainOptions& options, const MethodRun& run, const Task& task,
                   const RunEnd& end) {
  if (options.json) return print_result(json_of(end, options, run).dump(2) + "\n");
  Facts facts;
  std::string validation = fmt::format("validation {:.4f}", end.validation.loss);
  if (end.validation.accuracy) {
    validation += fmt::format(", {:.1f} % right", 100 * *end.validation.accuracy);
  }
  facts.add("loss", fmt::format("{:.4f}, {}", end.last.loss, validation));
  facts.add("speed",
            fmt::format("{} ms/step, {} {}/s", format_milliseconds(1e3 * end.median_seconds),
                        format_count(static_cast<double>(end.last.units) / end.median_seconds),
                        task.units));
  facts.add("peak", fmt::format("{} alive at once", to_string(end.peak)));
  facts.add("weights", fmt::format("{:016x}", end.weights));
  if (!run.log.empty()) facts.add("log", run.log);
  print_result(facts.text());
}

int report_interruption(const MethodRun& run, std::int64_t steps, int signal) {
  print_error_line(fmt::format(
      "reprise train: interrupted after step {}{}", steps,
      run.log.empty() ? "; nothing was saved" : "; " + run.log + " ends with that step"));
  return exit_code_of_signal(signal);
}

}  // namespace

int train_under_method(const TrainOptions& options, const MethodRun& run) {
  constexpr const char* kFirstStep = "its first step";
  const InterruptScope interrupt;
  const c10::Device device = parse_device(options.device);
  if (options.model != "vit") {
    constexpr int kCopiesOfWeights = 4;  // the weights, their gradients, and AdamW's two moments
    check_memory(options, kCopiesOfWeights, device);
  }
  if (options.threads > 0) at::set_num_threads(options.threads);
  const Task task = make_task({.run = options, .patch = run.patch}, device);
  interrupt.end_if_interrupted(kFirstStep);
  Log log(run.log);
  const RunBudget budget = budget_of(options, task, device);
  TrainedRun trained(options, run, task, device, budget);
  if (!options.json) print_configuration(options, run, task, budget, device);
  interrupt.end_if_interrupted(kFirstStep);
  log.add(head_line(options, run, task, budget, device));
  RunEnd end;
  std::vector<double> seconds;
  ProgressLine line;
  for (std::int64_t done = 0; done < options.steps;) {
    end.last = trained.step();
    done = end.last.step;
    end.peak = std::max(end.peak, end.last.peak);
    seconds.push_back(end.last.whole);
    log.add(json_of(end.last));
    line.show({fmt::format("step {} of {}", done, options.steps),
               fmt::format("loss {:.4f}", end.last.loss)});
    if (interrupt.signal() != 0 && done < options.steps) {
      line.clear();
      return report_interruption(run, done, interrupt.signal());
    }
  }
  line.clear();
  end.median_seconds = median(seconds);
  end.validation = validate(task);
  end.weights = hash_parameters(*task.module);
  nlohmann::ordered_json last = {{"kind", "end"}};
  last.update(json_of(end, options, run));
  log.add(last);
  print_outcome(options, run, task, end);
  return 0;
}

}  // namespace reprise::app
