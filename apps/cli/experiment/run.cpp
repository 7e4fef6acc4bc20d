#include "apps/cli/experiment/run.h"

#include <fmt/format.h>
#include <reprise/error.h>
#include <reprise/memory.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>

#include "apps/cli/experiment/energy.h"
#include "apps/cli/experiment/method.h"
#include "apps/cli/experiment/run_lines.h"
#include "apps/cli/experiment/task.h"
#include "apps/cli/training/device.h"
#include "apps/cli/training/learning_rate.h"
#include "apps/cli/training/training_checkpoint.h"

namespace reprise::app {

namespace fs = std::filesystem;

namespace {

using Clock = std::chrono::steady_clock;

// As `reprise train` has it: of all gradients together.
constexpr double kLargestNorm = 1;

std::string in_path(std::string name) {
  std::ranges::replace(name, ':', '=');
  return name;
}

nlohmann::json number_or_null(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json();
}

nlohmann::json numbers_or_null(const std::vector<double>& values) {
  nlohmann::json list = nlohmann::json::array();
  for (const double value : values) list.push_back(number_or_null(value));
  return list;
}

nlohmann::ordered_json first_line(const RunPlace& place, const ExperimentSettings& settings,
                                  const Task& task, std::optional<Bytes> budget, Bytes live) {
  return {{"kind", "run"},
          {"model", place.model},
          {"method", place.method},
          {"seed", place.seed},
          {"steps", settings.step_count()},
          {"units", task.units()},
          {"budget_bytes", budget ? nlohmann::json(budget->count) : nlohmann::json()},
          {"live_bytes", live.count},
          {"exact", is_exact(place.method)},
          {"layers", stage_names(task)}};
}

struct StepFigures {
  std::int64_t step = 0, units = 0;
  double loss = 0, milliseconds = 0, recompute_milliseconds = 0;
  Bytes peak;
};

nlohmann::ordered_json step_line(const StepFigures& figures,
                                 const std::optional<PgacReport>& report) {
  nlohmann::ordered_json line = {{"kind", "step"},
                                 {"step", figures.step},
                                 {"loss", figures.loss},
                                 {"milliseconds", figures.milliseconds},
                                 {"recompute_milliseconds", figures.recompute_milliseconds},
                                 {"peak_bytes", figures.peak.count},
                                 {"units", figures.units}};
  if (!report) return line;
  std::string mask;
  for (const bool kept : report->mask) mask += kept ? '1' : '0';
  line["scores"] = numbers_or_null(report->scores);
  line["averages"] = numbers_or_null(report->averages);
  line["gamma"] = number_or_null(report->gamma);
  line["threshold"] = number_or_null(report->threshold);
  line["mask"] = mask;
  return line;
}

void add_lossy_figures(nlohmann::ordered_json& line, const PgacReport& report) {
  std::string routes;
  for (const PgacRoute route : report.routes) routes += "kb84r"[static_cast<int>(route)];
  line["gradient_error"] = report.gradient_error;
  line["compressed_from"] = report.compressed_from.count;
  line["compressed_to"] = report.compressed_to.count;
  line["routes"] = routes;
}

fs::path saved_beside(const fs::path& file) { return fs::path(file).replace_extension(".saved"); }

CheckpointRemedies remedies_for(const fs::path& saved) {
  return {.when_damaged = fmt::format("remove the folder {}, and the same command trains the run "
                                      "from its beginning",
                                      saved.string()),
          .when_not_written = "free space, and the same command goes on"};
}

std::int64_t steps_of(const SavedTraining& saved) {
  return saved.facts().at("step").get<std::int64_t>();
}

// Model, data, method and optimizer of one run, advanced step by step.
class TrainedRun {
 public:
  TrainedRun(const ExperimentSettings& settings, const RunPlace& place, Bytes budget)
      : place_(place),
        options_(task_options(settings, place.model, static_cast<std::uint64_t>(place.seed))),
        task_(make_task(options_)),
        learning_rate_{.peak = settings.learning_rate,
                  .warmup = settings.step_count() / 10,
                  .steps = settings.step_count()},
        optimizer_(task_->module().parameters(),
                   torch::optim::AdamWOptions(settings.learning_rate)) {
    task_->module().train();
    method_ = make_method(place.method, settings, *task_, budget, options_.seed);
  }

  const Task& task() const { return *task_; }
  Task& task() { return *task_; }
  std::int64_t done() const { return done_; }

  nlohmann::ordered_json step() {
    StepFigures figures;
    figures.step = done_ + 1;
    const TaskBatch batch = task_->training_batch(done_);
    figures.units = batch.units;
    // What dropout draws depends on seed and step alone, not on what the method drew before.
    torch::manual_seed(options_.seed * 1'000'003 + static_cast<std::uint64_t>(done_));
    const auto start = Clock::now();
    {
      const PeakScope peak(options_.device);
      figures.loss = method_->step(batch);
      figures.peak = peak.peak_above_start();
    }
    method_->observe(done_);
    torch::nn::utils::clip_grad_norm_(task_->module().parameters(), kLargestNorm);
    for (auto& group : optimizer_.param_groups()) {
      group.options().set_lr(learning_rate_.at_step(done_));
    }
    optimizer_.step();
    task_->module().zero_grad();
    synchronize(options_.device);
    const std::chrono::duration<double, std::milli> taken = Clock::now() - start;
    figures.milliseconds = taken.count();
    figures.recompute_milliseconds = method_->recompute_seconds() * 1e3;
    if (!std::isfinite(figures.loss)) {
      throw Error(
          fmt::format("the loss of {} under {}, seed {}, is {} in step {}; give a lower "
                      "--learning-rate",
                      place_.model, place_.method, place_.seed, figures.loss, figures.step));
    }
    ++done_;
    const std::optional<PgacReport> report = method_->report();
    nlohmann::ordered_json line = step_line(figures, report);
    if (report && !is_exact(place_.method)) add_lossy_figures(line, *report);
    return line;
  }

  void save(const fs::path& folder, double joules) {
    std::error_code error;
    fs::create_directories(folder, error);
    save_training(folder, {{"step", done_}, {"method", method_->state()}, {"joules", joules}},
                  task_->module(), optimizer_, options_.device, remedies_for(folder));
  }
  // The joules that it had taken.
  double resume(SavedTraining& saved) {
    saved.restore(task_->module(), optimizer_, options_.device);
    done_ = steps_of(saved);
    const auto state = saved.facts().at("method").get<std::string>();
    if (!state.empty()) method_->restore(state);
    return saved.facts().at("joules").get<double>();
  }

 private:
  RunPlace place_;
  TaskOptions options_;
  std::unique_ptr<Task> task_;
  LearningRate learning_rate_;
  torch::optim::AdamW optimizer_;
  std::unique_ptr<ExperimentMethod> method_;
  std::int64_t done_ = 0;
};

nlohmann::ordered_json end_line(const std::optional<Validation>& validation,
                                std::optional<double> joules, const std::string& failure) {
  const auto optional_number = [](const std::optional<double>& value) {
    return value ? number_or_null(*value) : nlohmann::json();
  };
  return {{"kind", "end"},
          {"validation_loss", validation ? number_or_null(validation->loss) : nlohmann::json()},
          {"perplexity", optional_number(validation ? validation->perplexity : std::nullopt)},
          {"accuracy", optional_number(validation ? validation->accuracy : std::nullopt)},
          {"energy_joules", optional_number(joules)},
          {"failure", failure}};
}

std::optional<Bytes> budget_of(const std::string& method, Bytes budget) {
  if (method == "none" || method == "every-block") return std::nullopt;
  return budget;
}

EnergySources sources_of(c10::Device device) {
  EnergySources sources;
  if (device.is_cuda()) sources.cuda_device = device.has_index() ? device.index() : 0;
  return sources;
}

// What a run begins with, or goes on from.
struct Beginning {
  std::string lines;
  double joules = 0;  // taken until then
};

// A save of which the lines are lost is of no use: the report needs those of every step.
Beginning begin_or_resume(TrainedRun& run, const fs::path& file, const fs::path& saved,
                          const nlohmann::ordered_json& first) {
  const CheckpointRemedies remedies = remedies_for(saved);
  if (holds_training(saved, remedies)) {
    SavedTraining training(saved, remedies);
    if (auto kept = kept_lines(file, steps_of(training))) {
      return {.lines = std::move(*kept), .joules = run.resume(training)};
    }
    remove_save(file);
  }
  return {.lines = first.dump() + "\n"};
}

// Steps until the end, or until after_step has enough.
bool run_to_end(TrainedRun& run, const ExperimentSettings& settings, const RunPlace& place,
                std::optional<Bytes> budget, const AfterStep& after_step) {
  const fs::path file = run_file(settings.out, place), saved = saved_beside(file);
  const Bytes live = live_bytes(task_options(settings, place.model, 1).device);
  const Beginning beginning =
      begin_or_resume(run, file, saved, first_line(place, settings, run.task(), budget, live));
  RunLines lines(file, beginning.lines);
  EnergyMeter energy(sources_of(task_options(settings, place.model, 1).device));
  auto last_save = Clock::now();
  while (run.done() < settings.step_count()) {
    lines.add(run.step());
    energy.sample();
    const bool goes_on = after_step(run.done());
    const std::chrono::duration<double> since = Clock::now() - last_save;
    const bool is_last = run.done() == settings.step_count();
    if (!is_last && (!goes_on || since.count() >= static_cast<double>(settings.save_every))) {
      run.save(saved, beginning.joules + energy.joules().value_or(0));
      last_save = Clock::now();
    }
    if (!goes_on && !is_last) return false;
  }
  std::optional<double> joules = energy.joules();
  if (joules) *joules += beginning.joules;
  lines.add(end_line(run.task().validate(), joules, ""));
  remove_save(file);
  return true;
}

}  // namespace

fs::path run_file(const fs::path& folder, const RunPlace& place) {
  return folder / "runs" / in_path(place.model) / in_path(place.method) /
         (std::to_string(place.seed) + ".jsonl");
}

void remove_save(const fs::path& file) {
  std::error_code error;
  fs::remove_all(saved_beside(file), error);
}

bool train_run(const ExperimentSettings& settings, const RunPlace& place, Bytes plain_peak,
               const AfterStep& after_step) {
  const Bytes bytes(
      static_cast<std::int64_t>(settings.budget * static_cast<double>(plain_peak.count)));
  const std::optional<Bytes> budget = budget_of(place.method, bytes);
  std::string failure;
  try {
    TrainedRun run(settings, place, bytes);
    return run_to_end(run, settings, place, budget, after_step);
  } catch (const BudgetError& error) {
    failure = error.what();
  }
  // Anew, for what was written until then is not of a run that was made.
  remove_save(run_file(settings.out, place));
  const auto task =
      make_task(task_options(settings, place.model, static_cast<std::uint64_t>(place.seed)));
  RunLines lines(run_file(settings.out, place),
                 first_line(place, settings, *task, budget, Bytes(0)).dump() + "\n");
  lines.add(end_line(std::nullopt, std::nullopt, failure));
  return true;
}

PlainStep measure_plain_step(const ExperimentSettings& settings, const std::string& model) {
  const TaskOptions options = task_options(settings, model, 1);
  const auto task = make_task(options);
  task->module().train();
  const auto method = make_method("none", settings, *task, Bytes(0), 1);
  PlainStep plain{
      .peak = {}, .model = task->model(), .data = task->data(), .fingerprint = task->fingerprint()};
  // The first also makes what LibTorch keeps from step to step.
  for (int i = 0; i < 2; ++i) {
    torch::manual_seed(1);
    const TaskBatch batch = task->training_batch(0);
    const PeakScope peak(options.device);
    method->step(batch);
    plain.peak = peak.peak_above_start();
    task->module().zero_grad();
  }
  return plain;
}

}  // namespace reprise::app
