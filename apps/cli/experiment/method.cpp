#include "apps/cli/experiment/method.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <reprise/budget.h>
#include <reprise/checkpoint.h>
#include <reprise/error.h>
#include <reprise/experimental/pgac.h>
#include <reprise/memory.h>
#include <reprise/sequential.h>
#include <torch/nn/pimpl.h>

#include <algorithm>
#include <utility>

#include "apps/cli/experiment/pgac_options.h"
#include "apps/cli/experiment/settings.h"
#include "apps/cli/training/recompute_clock.h"

namespace reprise::app {

namespace {

// A function with the modules that it is of, as a layer of a model.
struct StageImpl : torch::nn::Module {
  StageImpl(const std::string& name, models::Layer layer) : Module(name), run(std::move(layer)) {}
  at::Tensor forward(const at::Tensor& x) { return run(x); }
  models::Layer run;
};
TORCH_MODULE(Stage);

// The task as a chain: its blocks, and what comes after them with the loss as the last stage.
class StagedTask {
 public:
  explicit StagedTask(Task& task) : task_(task), target_(std::make_shared<at::Tensor>()) {
    const models::Layers layers = task.layers();
    const std::vector<std::string> names = task.layer_names();
    for (std::size_t i = 0; i < layers.size(); ++i) {
      stages_.push_back(Stage(names[i], clock_.watched(layers[i])));
    }
    Stage head("head",
               [&task, target = target_](const at::Tensor& x) { return task.loss(x, *target); });
    for (const auto& child : task.module().named_children()) {
      const auto place = std::ranges::find(names, child.key());
      Stage& owner =
          place == names.end() ? head : stages_[static_cast<std::size_t>(place - names.begin())];
      owner->register_module(child.key(), child.value());
    }
    stages_.push_back(head);
  }

  const std::vector<Stage>& stages() const { return stages_; }
  RecomputeClock& clock() { return clock_; }

  at::Tensor begin(const TaskBatch& batch) {
    *target_ = batch.target;
    return task_.first(batch.input);
  }
  // The first `count` stages.
  std::vector<TensorFunction> functions(std::size_t count) const {
    std::vector<TensorFunction> functions;
    for (std::size_t i = 0; i < count; ++i) functions.push_back(stages_[i]->run);
    return functions;
  }
  at::Tensor plain(at::Tensor x) const {
    for (const Stage& stage : stages_) x = stage->run(x);
    return x;
  }
  std::size_t blocks() const { return stages_.size() - 1; }
  at::Tensor head(const at::Tensor& x) const { return stages_.back()->run(x); }

 private:
  Task& task_;
  std::shared_ptr<at::Tensor> target_;
  RecomputeClock clock_;
  std::vector<Stage> stages_;
};

// A method that makes a graph in forward which says by itself what runs again.
class GraphMethod : public ExperimentMethod {
 public:
  GraphMethod(Task& task, c10::Device device) : staged_(task), device_(device) {}

  double step(const TaskBatch& batch) override {
    at::Tensor loss = forward(staged_.begin(batch));
    // Only backward runs anything again, but for a Pgac that measures its layers in its first
    // forward, by regions of its own.
    staged_.clock().start(device_);
    loss.backward();
    seconds_ = staged_.clock().stop();
    return loss.item<double>();
  }
  double recompute_seconds() override { return seconds_; }

 protected:
  virtual at::Tensor forward(at::Tensor x) = 0;
  StagedTask& staged() { return staged_; }

 private:
  StagedTask staged_;
  c10::Device device_;
  double seconds_ = 0;
};

class KeepAll final : public GraphMethod {
 public:
  using GraphMethod::GraphMethod;
  at::Tensor forward(at::Tensor x) override { return staged().plain(std::move(x)); }
};

class EveryBlock final : public GraphMethod {
 public:
  using GraphMethod::GraphMethod;
  at::Tensor forward(at::Tensor x) override {
    for (const TensorFunction& block : staged().functions(staged().blocks())) {
      x = checkpoint(block, std::move(x));
    }
    return staged().head(x);
  }
};

class UniformSegments final : public GraphMethod {
 public:
  // As few as fit, found by running them.
  UniformSegments(Task& task, c10::Device device, Bytes budget) : GraphMethod(task, device) {
    const TaskBatch batch = task.training_batch(0);
    Bytes least;
    for (segments_ = 1; segments_ <= std::ssize(staged().stages()) - 1; ++segments_) {
      Bytes peak;
      {
        const PeakScope scope(device);
        step(batch);
        peak = scope.peak_above_start();
        task.module().zero_grad();
      }
      if (peak <= budget) return;
      least = segments_ == 1 ? peak : std::min(least, peak);
    }
    throw BudgetError(
        fmt::format("no number of segments of equal length fits in {}: they need at least {}; "
                    "raise --budget",
                    to_string(budget), to_string(least)));
  }

 protected:
  at::Tensor forward(at::Tensor x) override {
    const auto blocks = staged().functions(staged().blocks());
    return staged().head(checkpoint_sequential(blocks, segments_, std::move(x)));
  }

 private:
  std::int64_t segments_ = 1;
};

class PgacMethod final : public GraphMethod {
 public:
  PgacMethod(Task& task, c10::Device device, PgacOptions options, Bytes budget)
      : GraphMethod(task, device), options_(std::move(options)), budget_(budget), device_(device) {}

  double step(const TaskBatch& batch) override {
    before_ = live_bytes(device_);
    return GraphMethod::step(batch);
  }
  void observe(std::int64_t step) override { pgac_->observe(step); }
  std::optional<PgacReport> report() const override { return pgac_->report(); }
  std::string state() const override { return pgac_ ? pgac_->state() : ""; }
  void restore(const std::string& state) override { state_ = state; }

 protected:
  at::Tensor forward(at::Tensor x) override {
    if (!pgac_) open();
    return pgac_->run(staged().stages(), x);
  }

 private:
  // What is live beside the layers counts, too.
  void open() {
    const Bytes beside(live_bytes(device_).count - before_.count);
    if (budget_ <= beside) {
      throw BudgetError(
          fmt::format("the budget is {}, but {} are live before the first layer; "
                      "raise --budget",
                      to_string(budget_), to_string(beside)));
    }
    options_.budget = Bytes(budget_.count - beside.count);
    pgac_.emplace(options_);
    if (!state_.empty()) pgac_->restore(state_, "the saved run");
  }

  PgacOptions options_;
  Bytes budget_, before_;
  c10::Device device_;
  std::string state_;
  std::optional<Pgac> pgac_;
};

class TapeMethod final : public ExperimentMethod {
 public:
  TapeMethod(Task& task, c10::Device device, Bytes budget, BudgetOptions options)
      : staged_(task), device_(device), bytes_(budget), options_(std::move(options)) {}

  double step(const TaskBatch& batch) override {
    open();
    MemoryBudget::Step scope = budget_->step();
    at::Tensor loss = staged_.plain(staged_.begin(batch));
    loss.backward();
    const double value = loss.item<double>();
    scope.finish();
    return value;
  }
  double recompute_seconds() override { return budget_->report().replay_time.count(); }

 private:
  // The optimizer's first step makes what is live in all steps after it. These find some bytes more
  // or less, as malloc rounds; the limit is lower by as much as they may find less, or a step could
  // take more above what it found than it was given.
  void open() {
    constexpr std::int64_t kMore = 1 << 16, kLess = 1 << 12;
    const Bytes live = live_bytes(device_);
    const std::int64_t change = live.count - live_.count;
    if (budget_ && -kLess <= change && change <= kMore) return;
    live_ = live;
    budget_ = std::make_unique<MemoryBudget>(live + bytes_ - Bytes(kLess), options_);
  }

  StagedTask staged_;
  c10::Device device_;
  Bytes bytes_, live_;
  BudgetOptions options_;
  std::unique_ptr<MemoryBudget> budget_;
};

}  // namespace

std::vector<std::string> stage_names(const Task& task) {
  std::vector<std::string> names = task.layer_names();
  names.push_back("head");
  return names;
}

bool is_pgac(const std::string& method) {
  return method.starts_with("pgac:") || method == "random";
}
bool is_exact(const std::string& method) { return !method.starts_with("pgac:lossy"); }

void check_method(const std::string& method, const ExperimentSettings& settings) {
  const std::string name = method.substr(0, method.find(','));
  const auto& known = experiment_methods();
  if (std::ranges::count(known, name) == 0) {
    throw UsageError(
        fmt::format("there is no method '{}'; choose of {}", name, fmt::join(known, ", ")));
  }
  if (is_pgac(name)) {
    pgac_options(method, settings, 0);
  } else if (name != method) {
    throw UsageError(fmt::format("method '{}' takes no parameters, but was given '{}'", name,
                                 method.substr(name.size() + 1)));
  }
}

std::unique_ptr<ExperimentMethod> make_method(const std::string& method,
                                              const ExperimentSettings& settings, Task& task,
                                              Bytes budget, std::uint64_t seed) {
  const c10::Device device = task_options(settings, settings.models.front(), seed).device;
  if (method == "none") return std::make_unique<KeepAll>(task, device);
  if (method == "every-block") return std::make_unique<EveryBlock>(task, device);
  if (method == "uniform") return std::make_unique<UniformSegments>(task, device, budget);
  if (method == "dtr" || method == "dtr-influence" || method == "budget") {
    BudgetOptions options{.device = device};
    if (method != "budget") {
      options.heuristic = Heuristic::kHDtr;
      options.plan_repeated_steps = false;
    }
    if (method == "dtr-influence") options.weights = influence_weights();
    return std::make_unique<TapeMethod>(task, device, budget, std::move(options));
  }
  return std::make_unique<PgacMethod>(task, device, pgac_options(method, settings, seed), budget);
}

}  // namespace reprise::app
