#include "apps/cli/training/methods/method.h"

#include <fmt/format.h>
#include <reprise/budget.h>
#include <reprise/checkpoint.h>
#include <reprise/error.h>
#include <reprise/experimental/pgac.h>
#include <reprise/memory.h>
#include <reprise/sequential.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "apps/cli/training/device.h"
#include "apps/cli/training/pipelined/model_layer.h"
#include "apps/cli/training/recompute_clock.h"

namespace reprise::app {

namespace {

// The task as a chain: its blocks, and the head with the loss as the last stage.
class StagedTask {
 public:
  explicit StagedTask(const Task& task) : task_(task), target_(std::make_shared<at::Tensor>()) {
    const std::vector<std::string>& names = task.block_names;
    for (std::size_t i = 0; i < names.size(); ++i) {
      stages_.push_back(ModelLayer(names[i], clock_.watched(task.blocks[i])));
    }
    ModelLayer head("head", [loss = task.loss, target = target_](const at::Tensor& x) {
      return loss(x, *target);
    });
    for (const auto& child : task.module->named_children()) {
      const auto place = std::ranges::find(names, child.key());
      ModelLayer& owner =
          place == names.end() ? head : stages_[static_cast<std::size_t>(place - names.begin())];
      owner->register_module(child.key(), child.value());
    }
    stages_.push_back(head);
  }

  const Task& task() const { return task_; }
  const std::vector<ModelLayer>& stages() const { return stages_; }
  RecomputeClock& clock() { return clock_; }

  at::Tensor begin(const TaskBatch& batch) {
    *target_ = batch.target;
    return task_.first(batch.input);
  }
  std::vector<TensorFunction> blocks() const {
    std::vector<TensorFunction> blocks;
    for (const ModelLayer& stage : stages_) blocks.push_back(stage->run);
    blocks.pop_back();
    return blocks;
  }
  at::Tensor head(const at::Tensor& x) const { return stages_.back()->run(x); }
  at::Tensor plain(at::Tensor x) const {
    for (const ModelLayer& stage : stages_) x = stage->run(x);
    return x;
  }

 private:
  const Task& task_;
  std::shared_ptr<at::Tensor> target_;
  RecomputeClock clock_;
  std::vector<ModelLayer> stages_;
};

// Waits for the device before each reading, so that seconds are counted where they are spent.
class SplitWatch {
 public:
  explicit SplitWatch(c10::Device device) : device_(device), last_(now()) {}
  double split() {
    const auto before = std::exchange(last_, now());
    return std::chrono::duration<double>(last_ - before).count();
  }

 private:
  std::chrono::steady_clock::time_point now() const {
    synchronize(device_);
    return std::chrono::steady_clock::now();
  }

  c10::Device device_;
  std::chrono::steady_clock::time_point last_;
};

// Methods whose forward builds a graph that decides what backward recomputes.
class GraphMethod : public TrainingMethod {
 public:
  GraphMethod(const Task& task, c10::Device device) : staged_(task), device_(device) {}

  double step(const TaskBatch& batch, StepSeconds& seconds) override {
    SplitWatch watch(device_);
    at::Tensor loss = forward(staged_.begin(batch));
    seconds.forward = watch.split();
    staged_.clock().start(device_);
    loss.backward();
    seconds.backward = watch.split();
    seconds.recompute = staged_.clock().stop();
    return loss.item<double>();
  }

 protected:
  virtual at::Tensor forward(at::Tensor x) = 0;
  StagedTask& staged() { return staged_; }

 private:
  StagedTask staged_;
  c10::Device device_;
};

class KeepAll final : public GraphMethod {
 public:
  using GraphMethod::GraphMethod;

 protected:
  at::Tensor forward(at::Tensor x) override { return staged().plain(std::move(x)); }
};

class EveryBlock final : public GraphMethod {
 public:
  using GraphMethod::GraphMethod;

 protected:
  at::Tensor forward(at::Tensor x) override {
    for (const TensorFunction& block : staged().blocks()) x = checkpoint(block, std::move(x));
    return staged().head(x);
  }
};

class UniformSegments final : public GraphMethod {
 public:
  // Tries numbers of segments, from one on, until a step fits.
  UniformSegments(const Task& task, c10::Device device, Bytes budget) : GraphMethod(task, device) {
    const TaskBatch batch = task.batch(0);
    Bytes least;
    for (segments_ = 1; segments_ <= std::ssize(task.blocks); ++segments_) {
      const PeakScope scope(device);
      StepSeconds unread;
      step(batch, unread);
      const Bytes peak = scope.peak_above_start();
      task.module->zero_grad();
      if (peak <= budget) return;
      least = segments_ == 1 ? peak : std::min(least, peak);
    }
    throw BudgetError(
        fmt::format("no number of equal segments fits in {} above what is live before the step: "
                    "at least {} are needed; raise --budget",
                    to_string(budget), to_string(least)));
  }

 protected:
  at::Tensor forward(at::Tensor x) override {
    return staged().head(checkpoint_sequential(staged().blocks(), segments_, std::move(x)));
  }

 private:
  std::int64_t segments_ = 1;
};

class PgacMethod final : public GraphMethod {
 public:
  PgacMethod(const Task& task, c10::Device device, PgacOptions options, Bytes budget)
      : GraphMethod(task, device), options_(std::move(options)), budget_(budget), device_(device) {}

  double step(const TaskBatch& batch, StepSeconds& seconds) override {
    before_ = live_bytes(device_);
    return GraphMethod::step(batch, seconds);
  }
  void observe(std::int64_t step) override { pgac_->observe(step); }
  std::optional<PgacReport> report() const override { return pgac_->report(); }

 protected:
  at::Tensor forward(at::Tensor x) override {
    if (!pgac_) open();
    return pgac_->run(staged().stages(), x);
  }

 private:
  // Pgac's budget is for its layers. What the embedding keeps is taken off.
  void open() {
    const Bytes beside = live_bytes(device_) - before_;
    if (budget_ <= beside) {
      throw BudgetError(
          fmt::format("the budget is {} above what is live before the step, and {} are live "
                      "before the first block; raise --budget",
                      to_string(budget_), to_string(beside)));
    }
    options_.budget = budget_ - beside;
    pgac_.emplace(options_);
  }

  PgacOptions options_;
  Bytes budget_, before_;
  c10::Device device_;
  std::optional<Pgac> pgac_;
};

class TapeMethod final : public TrainingMethod {
 public:
  TapeMethod(const Task& task, Bytes budget, BudgetOptions options)
      : staged_(task), bytes_(budget), options_(std::move(options)) {}

  double step(const TaskBatch& batch, StepSeconds& seconds) override {
    open();
    SplitWatch watch(options_.device);
    MemoryBudget::Step scope = budget_->step();
    at::Tensor loss = staged_.plain(staged_.begin(batch));
    seconds.forward = watch.split();
    loss.backward();
    const double value = loss.item<double>();
    scope.finish();
    seconds.backward = watch.split();
    const StepReport report = budget_->report();
    seconds.recompute = report.replay_time.count();
    seconds.packing = report.pack_time.count();
    seconds.tape = report.own_time.count();
    return value;
  }

 private:
  // A MemoryBudget limits all bytes, so it is opened anew where more is live before a step than
  // before the last one: the optimizer's first step makes its moments. Other steps find a few bytes
  // more or less, as malloc rounds; the limit is lower by as much as they may find less.
  void open() {
    constexpr std::int64_t kMore = 1 << 16, kLess = 1 << 12;
    const Bytes live = live_bytes(options_.device);
    const std::int64_t change = live.count - live_.count;
    if (budget_ && -kLess <= change && change <= kMore) return;
    live_ = live;
    budget_ = std::make_unique<MemoryBudget>(live + bytes_ - Bytes(kLess), options_);
  }

  StagedTask staged_;
  Bytes bytes_, live_;
  BudgetOptions options_;
  std::unique_ptr<MemoryBudget> budget_;
};

}  // namespace

std::vector<std::string> layer_names(const Task& task) {
  std::vector<std::string> names = task.block_names;
  names.emplace_back("head");
  return names;
}

std::unique_ptr<TrainingMethod> make_method(const MethodOptions& options, const Task& task,
                                            c10::Device device, Bytes budget) {
  check_method(options);
  const std::string& name = options.name;
  if (name == "none") return std::make_unique<KeepAll>(task, device);
  if (name == "every-block") return std::make_unique<EveryBlock>(task, device);
  if (name == "uniform") return std::make_unique<UniformSegments>(task, device, budget);
  if (name == "dtr" || name == "dtr-influence" || name == "budget") {
    BudgetOptions limits{.device = device};
    if (name != "budget") {
      limits.heuristic = Heuristic::kHDtr;
      limits.plan_repeated_steps = false;
    }
    if (name == "dtr-influence") limits.weights = influence_weights();
    return std::make_unique<TapeMethod>(task, budget, std::move(limits));
  }
  return std::make_unique<PgacMethod>(task, device, pgac_options(options), budget);
}

}  // namespace reprise::app
