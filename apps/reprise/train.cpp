// `reprise train`: trains on real text, and shows how far it is, what it costs, and where it was
// saved.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <reprise/error.h>

#include <CLI/App.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/reprise/commands.h"
#include "apps/reprise/device.h"
#include "apps/reprise/figures.h"
#include "apps/reprise/interrupt.h"
#include "apps/reprise/memory_need.h"
#include "apps/reprise/metrics.h"
#include "apps/reprise/overlaps.h"
#include "apps/reprise/sealed_file.h"
#include "apps/reprise/streams.h"
#include "apps/reprise/trainer.h"
#include "apps/reprise/training_loop.h"

namespace reprise::app {

namespace {

constexpr std::int64_t kSampleLength = 120;
// The weights, their gradients, and two moments of each for AdamW.
constexpr int kCopiesOfWeights = 4;

void prepare_folder(const TrainOptions& options) {
  if (options.checkpoint_dir.empty()) return;
  if (options.resume) {
    require_training(options.checkpoint_dir);
  } else if (holds_training(options.checkpoint_dir)) {
    throw UsageError(
        fmt::format("{} exists already; add --resume to go on from it, or give another "
                    "--checkpoint-dir",
                    saved_where(options)));
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
    facts.add("resumed",
              fmt::format("after step {} of {}", trainer.steps_done(), saved_where(options)));
  }
  print_result(facts.text() + "\n");
  std::fflush(stdout);
}

int report_interruption(const TrainOptions& options, const Outcome& outcome) {
  const std::string saved = saved_where(options);
  print_error_line(fmt::format("reprise train: interrupted after step {}; {}", outcome.last.step,
                               saved.empty()
                                   ? "nothing was saved, for there is no --checkpoint-dir"
                                   : fmt::format("saved to {}; add --resume to go on", saved)));
  return exit_code_of_signal(outcome.signal);
}

void print_closing_table(const TrainOptions& options, const Outcome& outcome, Trainer& trainer) {
  const double typical = median(outcome.milliseconds);
  Facts facts;
  facts.add("loss", fmt::format("{:.4f}, validation {:.4f} nats per byte", outcome.last.loss,
                                outcome.validation_loss));
  facts.add("steps",
            fmt::format("{} in {}", outcome.milliseconds.size(), format_duration(outcome.seconds)));
  facts.add("speed",
            fmt::format("{} ms/step, {} tokens/s", format_milliseconds(typical),
                        format_count(static_cast<double>(outcome.last.tokens) / typical * 1e3)));
  facts.add("peak", fmt::format("{} alive at once", to_string(outcome.peak)));
  facts.add("weights", fmt::format("{:016x}", hash_parameters(*trainer.network().model())));
  if (!saved_where(options).empty()) facts.add("saved", saved_where(options));
  if (options.sample) facts.add("sample", trainer.sample(kSampleLength));
  print_result(facts.text());
}

void print_json(const TrainOptions& options, const Outcome& outcome, Trainer& trainer) {
  const double typical = median(outcome.milliseconds);
  nlohmann::json result = {
      {"options", describe(options)},
      {"device", trainer.network().device().str()},
      {"threads", at::get_num_threads()},
      {"step", outcome.last.step},
      {"loss", outcome.last.loss},
      {"validation_loss", outcome.validation_loss},
      {"seconds", outcome.seconds},
      {"ms_per_step", typical},
      {"tokens_per_s", static_cast<double>(outcome.last.tokens) / typical * 1e3},
      {"peak_bytes", outcome.peak.count},
      {"weights_xxh3", fmt::format("{:016x}", hash_parameters(*trainer.network().model()))},
      {"saved", saved_where(options)}};
  if (options.sample) result["sample"] = trainer.sample(kSampleLength);
  // A model may write half a character; JSON may not.
  print_result(result.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

int train(TrainOptions options) {
  check(options);
  const c10::Device device = parse_device(options.device);
  refuse_overlaps(options);
  check_memory(options, kCopiesOfWeights, device);
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
