// One loop; all that may fail in it fails with the run saved, if it can be.
#include "apps/reprise/training_loop.h"

#include <fmt/format.h>
#include <reprise/error.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "apps/reprise/figures.h"
#include "apps/reprise/interrupt.h"
#include "apps/reprise/progress.h"

namespace reprise::app {

namespace {

constexpr std::size_t kRecentSteps = 50;

nlohmann::json metrics_of(const StepReport& report) {
  nlohmann::json metrics = {
      {"step", report.step},
      {"loss", report.loss},
      {"lr", report.learning_rate},
      {"gradient_norm", report.gradient_norm},
      {"ms", report.milliseconds},
      {"tokens_per_s", static_cast<double>(report.tokens) / report.milliseconds * 1e3},
      {"peak_bytes", report.peak.count}};
  if (const auto& verification = report.verification) {
    metrics.update({{"gradients_equal", !verification->difference},
                    {"verification_ms", verification->milliseconds},
                    {"verification_peak_bytes", verification->peak.count}});
    if (report.differs()) metrics["first_difference"] = verification->difference->json();
  }
  return metrics;
}

// Of the last steps only: this runs after every one.
double recent_median(const std::vector<double>& all) {
  const auto count = std::min<std::size_t>(all.size(), kRecentSteps);
  return median({all.end() - static_cast<std::ptrdiff_t>(count), all.end()});
}

ProgressFigures progress_of(const TrainOptions& options, const Outcome& outcome) {
  const double typical = recent_median(outcome.milliseconds);
  const double verifying = options.verify > 0 ? recent_median(outcome.verification_milliseconds) /
                                                    static_cast<double>(options.verify)
                                              : 0;
  return {.step = outcome.last.step,
          .steps = options.steps,
          .loss = outcome.last.loss,
          .milliseconds_per_step = typical,
          .tokens_per_second = static_cast<double>(outcome.last.tokens) / typical * 1e3,
          .peak = outcome.peak,
          .seconds_left =
              (typical + verifying) / 1e3 * static_cast<double>(options.steps - outcome.last.step)};
}

void save(const TrainOptions& options, Trainer& trainer) {
  if (!options.checkpoint_dir.empty()) trainer.save(options.checkpoint_dir);
}

void write_metrics(const TrainOptions& options, const StepReport& report, Trainer& trainer,
                   MetricsFile& metrics) {
  try {
    metrics.write(metrics_of(report));
  } catch (const Error& error) {
    save(options, trainer);
    const std::string saved = saved_where(options);
    throw Error(fmt::format(
        "{}; {}; free space or choose another file with --metrics", error.what(),
        saved.empty() ? fmt::format("stopped after step {}, and nothing was saved, for there is no "
                                    "--checkpoint-dir",
                                    trainer.steps_done())
                      : fmt::format("step {} is saved to {}: go on with --resume",
                                    trainer.steps_done(), saved)));
  }
}

void take_step(const TrainOptions& options, Trainer& trainer, MetricsFile& metrics,
               Outcome& outcome) {
  outcome.last = trainer.step();
  outcome.milliseconds.push_back(outcome.last.milliseconds);
  outcome.peak = std::max(outcome.peak, outcome.last.peak);
  if (const auto& verification = outcome.last.verification) {
    outcome.verification_milliseconds.push_back(verification->milliseconds);
    outcome.verification_peak = std::max(outcome.verification_peak, verification->peak);
    outcome.difference = verification->difference;
  }
  write_metrics(options, outcome.last, trainer, metrics);
}

// Judged before it is saved.
void finish(const TrainOptions& options, Trainer& trainer, Outcome& outcome) {
  trainer.require_finite_weights();
  if (!outcome.signal) {
    outcome.validation_loss = trainer.validation_loss();
    trainer.require_finite(outcome.validation_loss);
  }
  save(options, trainer);
}

}  // namespace

Outcome run_steps(const TrainOptions& options, Trainer& trainer, MetricsFile& metrics) {
  const InterruptScope interrupt;
  ProgressLine line;
  Outcome outcome;
  const auto start = std::chrono::steady_clock::now();
  const std::int64_t first = trainer.steps_done();
  for (bool complete = false; !complete && !outcome.signal;) {
    take_step(options, trainer, metrics, outcome);
    line.show(progress_parts(progress_of(options, outcome)));
    const std::int64_t done = trainer.steps_done();
    complete = done == options.steps || done - first == options.stop_after || outcome.difference;
    // A signal during the last step asks for what is about to happen anyway.
    if (!complete) outcome.signal = interrupt.signal();
    const bool due = options.checkpoint_every > 0 && done % options.checkpoint_every == 0;
    if (due && !complete && !outcome.signal) save(options, trainer);
  }
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  finish(options, trainer, outcome);
  return outcome;
}

std::string saved_where(const TrainOptions& options) {
  return options.checkpoint_dir.empty() ? std::string()
                                        : training_checkpoint_file(options.checkpoint_dir).string();
}

}  // namespace reprise::app
