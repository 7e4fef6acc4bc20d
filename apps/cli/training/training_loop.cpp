// One loop; all that may fail in it fails with the run saved, if it can be.
#include "apps/cli/training/training_loop.h"

#include <fmt/format.h>
#include <reprise/error.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>

#include "apps/cli/io/figures.h"
#include "apps/cli/io/interrupt.h"
#include "apps/cli/io/progress.h"

namespace reprise::app {

namespace {

constexpr std::size_t kRecentSteps = 50;

nlohmann::json metrics_of(const TrainOptions& options, const TrainedStep& report) {
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
  if (const auto& tape = report.tape) {
    metrics.update({{"dropped", tape->dropped},
                    {"dropped_bytes", tape->dropped_bytes.count},
                    {"replayed", tape->replayed},
                    {"replay_ms", 1e3 * tape->replay_time.count()},
                    {"packed", tape->packed},
                    {"packed_bytes", tape->packed_bytes.count},
                    {"pack_ms", 1e3 * tape->pack_time.count()}});
    if (options.park) {
      metrics.update({{"parked", tape->parked},
                      {"parked_bytes", tape->parked_bytes.count},
                      {"transfer_ms", 1e3 * tape->transfer_time.count()}});
    }
  }
  return metrics;
}

void add(StepReport& sum, const StepReport& step) {
  sum.peak = std::max(sum.peak, step.peak);
  sum.operators += step.operators;
  sum.dropped += step.dropped;
  sum.dropped_bytes += step.dropped_bytes;
  sum.replayed += step.replayed;
  sum.replay_time += step.replay_time;
  sum.packed += step.packed;
  sum.packed_bytes += step.packed_bytes;
  sum.unpacked += step.unpacked;
  sum.pack_time += step.pack_time;
  sum.parked += step.parked;
  sum.parked_bytes += step.parked_bytes;
  sum.transfer_time += step.transfer_time;
}

// Takes the last steps only, because it runs after every step.
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
          .replayed = outcome.last.tape ? outcome.last.tape->replayed : 0,
          .seconds_left =
              (typical + verifying) / 1e3 * static_cast<double>(options.steps - outcome.last.step)};
}

void save(const TrainOptions& options, Trainer& trainer) {
  if (!options.checkpoint_dir.empty()) trainer.save(options.checkpoint_dir);
}

// Writes a file of the option; where it cannot, the run is saved before it ends.
void write_or_stop(const TrainOptions& options, Trainer& trainer, const char* option,
                   const std::function<void()>& write) {
  try {
    write();
  } catch (const Error& error) {
    save(options, trainer);
    const std::string saved = saved_where(options);
    throw Error(fmt::format(
        "{}; {}; free space or choose another file with {}", error.what(),
        saved.empty() ? fmt::format("stopped after step {}, and nothing was saved, for there is no "
                                    "--checkpoint-dir",
                                    trainer.steps_done())
                      : fmt::format("step {} is saved to {}: go on with --resume",
                                    trainer.steps_done(), saved),
        option));
  }
}

void take_step(const TrainOptions& options, Trainer& trainer, MetricsFile& metrics,
               StepTraceFile* trace, Outcome& outcome) {
  outcome.last = trainer.step(trace != nullptr ? trace->observer() : nullptr);
  outcome.milliseconds.push_back(outcome.last.milliseconds);
  outcome.peak = std::max(outcome.peak, outcome.last.peak);
  outcome.reserved = std::max(outcome.reserved, outcome.last.reserved);
  if (outcome.last.tape) add(outcome.tape, *outcome.last.tape);
  if (const auto& verification = outcome.last.verification) {
    outcome.verification_milliseconds.push_back(verification->milliseconds);
    outcome.verification_peak = std::max(outcome.verification_peak, verification->peak);
    outcome.difference = verification->difference;
  }
  if (trace != nullptr) {
    write_or_stop(options, trainer, "--trace-out", [&] { trace->close(outcome.last.step); });
    outcome.traced_step = outcome.last.step;
  }
  write_or_stop(options, trainer, "--metrics",
                [&] { metrics.write(metrics_of(options, outcome.last)); });
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

Outcome run_steps(const TrainOptions& options, Trainer& trainer, MetricsFile& metrics,
                  StepTraceFile trace) {
  const InterruptScope interrupt;
  ProgressLine line;
  Outcome outcome;
  const auto start = std::chrono::steady_clock::now();
  const std::int64_t first = trainer.steps_done();
  const std::int64_t last =
      options.stop_after > 0 ? std::min(options.steps, first + options.stop_after) : options.steps;
  interrupt.end_if_interrupted("its first step");
  const std::int64_t traced = options.trace_step > 0 ? options.trace_step : last;
  for (bool complete = false; !complete && !outcome.signal;) {
    const bool is_traced = trace.observer() != nullptr && trainer.steps_done() + 1 == traced;
    take_step(options, trainer, metrics, is_traced ? &trace : nullptr, outcome);
    line.show(progress_parts(progress_of(options, outcome)));
    const std::int64_t done = trainer.steps_done();
    complete = done == last || outcome.difference;
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
