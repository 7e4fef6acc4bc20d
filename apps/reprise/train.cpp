// `reprise train`: trains on real text, and shows how far it is, what it costs, and where it was
// saved.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <reprise/error.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/reprise/commands.h"
#include "apps/reprise/device.h"
#include "apps/reprise/figures.h"
#include "apps/reprise/interrupt.h"
#include "apps/reprise/metrics.h"
#include "apps/reprise/progress.h"
#include "apps/reprise/sealed_file.h"
#include "apps/reprise/trainer.h"

namespace reprise::app {

namespace {

constexpr std::int64_t kSampleLength = 120;
constexpr std::size_t kRecentSteps = 50;

// What a run of steps came to.
struct Outcome {
  std::vector<double> milliseconds;
  double seconds = 0;
  StepReport last;
  Bytes peak;
  int signal = 0;
};

void prepare_folder(const TrainOptions& options) {
  if (options.checkpoint_dir.empty()) return;
  if (!options.resume) {
    const auto file = training_checkpoint_file(options.checkpoint_dir);
    if (std::filesystem::exists(file)) {
      throw UsageError(
          fmt::format("{} exists already; add --resume to go on from it, or give another "
                      "--checkpoint-dir",
                      file.string()));
    }
  }
  require_writable_folder(options.checkpoint_dir);
}

void print_configuration(const TrainOptions& options, const TextData& data, Trainer& trainer) {
  const double bytes = static_cast<double>(data.training.size() + data.validation.size());
  Facts facts;
  trainer.network().describe(facts);
  facts.add("data", fmt::format("{}: {}, a tenth kept for validation", data.origin,
                                to_string(Bytes(static_cast<std::int64_t>(bytes)))));
  const std::string times =
      options.accumulate > 1 ? fmt::format("{} × ", options.accumulate) : std::string();
  facts.add("steps",
            fmt::format("{} of {}{} sequences, AdamW at {:g} after {} warm-up steps", options.steps,
                        times, options.batch, options.learning_rate, *options.warmup));
  facts.add("machine", describe_machine(options, trainer.network().device()));
  facts.add("strategy", options.strategy + (options.reentrant ? ", reentrant" : ""));
  if (trainer.steps_done() > 0) {
    facts.add("resumed", fmt::format("after step {} of {}", trainer.steps_done(),
                                     training_checkpoint_file(options.checkpoint_dir).string()));
  }
  fmt::print("{}\n", facts.text());
  std::fflush(stdout);
}

nlohmann::json metrics_of(const StepReport& report) {
  return {{"step", report.step},
          {"loss", report.loss},
          {"lr", report.learning_rate},
          {"gradient_norm", report.gradient_norm},
          {"ms", report.milliseconds},
          {"tokens_per_s", static_cast<double>(report.tokens) / report.milliseconds * 1e3},
          {"peak_bytes", report.peak.count}};
}

ProgressFigures progress_of(const TrainOptions& options, const Outcome& outcome) {
  // Of the last steps only: this runs after every one.
  const auto count = std::min<std::size_t>(outcome.milliseconds.size(), kRecentSteps);
  const double typical = median({outcome.milliseconds.end() - static_cast<std::ptrdiff_t>(count),
                                 outcome.milliseconds.end()});
  return {.step = outcome.last.step,
          .steps = options.steps,
          .loss = outcome.last.loss,
          .milliseconds_per_step = typical,
          .tokens_per_second = static_cast<double>(outcome.last.tokens) / typical * 1e3,
          .peak = outcome.peak,
          .seconds_left = typical / 1e3 * static_cast<double>(options.steps - outcome.last.step)};
}

Outcome run_steps(const TrainOptions& options, Trainer& trainer, MetricsFile& metrics) {
  const InterruptScope interrupt;
  ProgressLine line;
  Outcome outcome;
  const auto start = std::chrono::steady_clock::now();
  const std::int64_t first = trainer.steps_done();
  while (trainer.steps_done() < options.steps && !outcome.signal) {
    outcome.last = trainer.step();
    outcome.milliseconds.push_back(outcome.last.milliseconds);
    outcome.peak = std::max(outcome.peak, outcome.last.peak);
    outcome.signal = interrupt.signal();
    metrics.write(metrics_of(outcome.last));
    line.show(progress_parts(progress_of(options, outcome)));
    const std::int64_t done = trainer.steps_done();
    const bool stop = done - first == options.stop_after || done == options.steps || outcome.signal;
    const bool due = options.checkpoint_every > 0 && done % options.checkpoint_every == 0;
    if (!options.checkpoint_dir.empty() && (stop || due)) trainer.save(options.checkpoint_dir);
    if (stop) break;
  }
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return outcome;
}

std::string saved_where(const TrainOptions& options) {
  return options.checkpoint_dir.empty() ? std::string()
                                        : training_checkpoint_file(options.checkpoint_dir).string();
}

int report_interruption(const TrainOptions& options, const Outcome& outcome) {
  const std::string saved = saved_where(options);
  fmt::print(stderr, "reprise train: interrupted after step {}; {}\n", outcome.last.step,
             saved.empty() ? "nothing was saved, for there is no --checkpoint-dir"
                           : fmt::format("saved to {}; add --resume to go on", saved));
  return exit_code_of_signal(outcome.signal);
}

void print_closing_table(const TrainOptions& options, const Outcome& outcome, Trainer& trainer) {
  const double typical = median(outcome.milliseconds);
  Facts facts;
  facts.add("loss", fmt::format("{:.4f}, validation {:.4f} nats per byte", outcome.last.loss,
                                trainer.validation_loss()));
  facts.add("steps",
            fmt::format("{} in {}", outcome.milliseconds.size(), format_duration(outcome.seconds)));
  facts.add("speed",
            fmt::format("{} ms/step, {} tokens/s", format_milliseconds(typical),
                        format_count(static_cast<double>(outcome.last.tokens) / typical * 1e3)));
  facts.add("peak", fmt::format("{} alive at once", to_string(outcome.peak)));
  facts.add("weights", fmt::format("{:016x}", hash_parameters(*trainer.network().model())));
  if (!saved_where(options).empty()) facts.add("saved", saved_where(options));
  if (options.sample) facts.add("sample", escape(trainer.sample(kSampleLength)));
  fmt::print("{}", facts.text());
}

void print_json(const TrainOptions& options, const Outcome& outcome, Trainer& trainer) {
  const double typical = median(outcome.milliseconds);
  nlohmann::json result = {
      {"options", describe(options)},
      {"device", trainer.network().device().str()},
      {"threads", at::get_num_threads()},
      {"step", outcome.last.step},
      {"loss", outcome.last.loss},
      {"validation_loss", trainer.validation_loss()},
      {"seconds", outcome.seconds},
      {"ms_per_step", typical},
      {"tokens_per_s", static_cast<double>(outcome.last.tokens) / typical * 1e3},
      {"peak_bytes", outcome.peak.count},
      {"weights_xxh3", fmt::format("{:016x}", hash_parameters(*trainer.network().model()))},
      {"saved", saved_where(options)}};
  if (options.sample) result["sample"] = trainer.sample(kSampleLength);
  // A model may write half a character; JSON may not.
  fmt::print("{}\n", result.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

int train(TrainOptions options) {
  check(options);
  const c10::Device device = parse_device(options.device);
  if (options.threads > 0) at::set_num_threads(options.threads);
  const TextData data = load_text(options.data, {options.metrics, options.checkpoint_dir});
  check_context(data, options.gpt.context);
  prepare_folder(options);

  Trainer trainer(options, data, device);
  if (options.resume) trainer.resume(options.checkpoint_dir);
  MetricsFile metrics(options.metrics, trainer.steps_done() + 1);
  if (!options.json) print_configuration(options, data, trainer);
  const Outcome outcome = run_steps(options, trainer, metrics);
  if (outcome.signal) return report_interruption(options, outcome);
  options.json ? print_json(options, outcome, trainer)
               : print_closing_table(options, outcome, trainer);
  return 0;
}

}  // namespace

void add_train(CLI::App& program, Chosen& chosen) {
  auto* command = program.add_subcommand("train", "Train a GPT on text, byte by byte");
  auto options = std::make_shared<TrainOptions>();
  bind(*command, *options);
  command->callback([options, &chosen] { chosen = [options] { return train(*options); }; });
}

}  // namespace reprise::app
