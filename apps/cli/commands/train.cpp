// `reprise train`: trains on real text, and shows how far it is, what it costs, and where it was
// saved.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <reprise/error.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "apps/cli/commands/commands.h"
#include "apps/cli/commands/train_model_options.h"
#include "apps/cli/io/atomic_file.h"
#include "apps/cli/io/figures.h"
#include "apps/cli/io/interrupt.h"
#include "apps/cli/io/streams.h"
#include "apps/cli/training/device.h"
#include "apps/cli/training/memory_need.h"
#include "apps/cli/training/methods/method_run.h"
#include "apps/cli/training/metrics.h"
#include "apps/cli/training/trainer.h"
#include "apps/cli/training/training_loop.h"
#include "apps/cli/training/training_report.h"
#include "models/strategy.h"

namespace reprise::app {

namespace {

constexpr const char* kFirstStep = "its first step";

// The weights, their gradients, and two moments of each for AdamW; from a second verified step on
// also the plain step's gradients.
int copies_of_weights(const TrainOptions& options) {
  return options.verify > 0 && options.steps > options.verify ? 5 : 4;
}

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

// A step of an earlier call, or one beyond where this one stops.
void check_traced_step(const TrainOptions& options, const Trainer& trainer) {
  if (options.trace_step == 0) return;
  const std::int64_t first = trainer.steps_done() + 1;
  const std::int64_t last = options.stop_after > 0
                                ? std::min(options.steps, trainer.steps_done() + options.stop_after)
                                : options.steps;
  if (options.trace_step >= first && options.trace_step <= last) return;
  throw UsageError(fmt::format("--trace-step {} is none of this call, whose steps are {} to {}",
                               options.trace_step, first, last));
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
  if (!options.pipeline)
    facts.add(
        "strategy",
        options.strategy + (options.reentrant ? ", reentrant" : "") +
            (options.determinism == "default" ? "" : ", determinism check " + options.determinism));
  if (trainer.budget()) facts.add("budget", trainer.budget()->describe());
  if (trainer.pipeline() != nullptr) facts.add("pipeline", trainer.pipeline()->describe());
  if (trainer.steps_done() > 0) {
    facts.add("resumed",
              fmt::format("after step {} of {}", trainer.steps_done(), saved_where(options)));
  }
  print_result(facts.text() + "\n");
  std::fflush(stdout);
}

int train(TrainOptions options) {
  const InterruptScope interrupt;
  check(options);
  const c10::Device device = parse_device(options.device);
  refuse_overlaps(options);
  TrainOptions at_once = options;
  if (options.pipeline) at_once.batch = options.batch / options.pipeline->make().micro_batches;
  check_memory(at_once, copies_of_weights(options), device);
  check_verification_memory(at_once, device);
  auto strategy = models::Strategy::parse(options.strategy);
  strategy.prepare(device);
  if (options.threads > 0) at::set_num_threads(options.threads);
  const TextData data = load_text(options.data, {options.metrics, options.checkpoint_dir});
  check_context(data, options.gpt.context);
  interrupt.end_if_interrupted(kFirstStep);
  prepare_folder(options);

  Trainer trainer(options, strategy, data, device);
  if (options.resume) trainer.resume(options.checkpoint_dir);
  check_traced_step(options, trainer);
  trainer.open_budget();
  MetricsFile metrics(options.metrics, trainer.steps_done() + 1);
  StepTraceFile trace(options.trace_out);
  interrupt.end_if_interrupted(kFirstStep);
  if (!options.json) print_configuration(options, data, trainer);
  const Outcome outcome = run_steps(options, trainer, metrics, std::move(trace));
  return report(options, outcome, trainer);
}

int train_a_model(const CLI::App& command, TrainOptions options, const TrainModelOptions& more) {
  check(command, options, more);
  const MethodRun run{.method = more.method_or_default(options),
                      .log = more.log,
                      .patch = more.patch.value_or(MethodRun().patch)};
  try {
    return train_under_method(options, run);
  } catch (const BudgetError& error) {
    // `reprise frontier`, which the usual text names, knows neither these models nor methods.
    print_error_line(std::string("reprise train: ") + error.what());
    return kOverBudget;
  }
}

}  // namespace

void add_train(CLI::App& program, Chosen& chosen) {
  auto* command = program.add_subcommand(
      "train", "Train a GPT on text, byte by byte, or a model under a method");
  auto options = std::make_shared<TrainOptions>();
  auto more = std::make_shared<TrainModelOptions>();
  bind(*command, *options);
  bind(*command, *more);
  command->callback([=, &chosen] {
    chosen = [=] {
      return is_method_run(*options, *more) ? train_a_model(*command, *options, *more)
                                            : train(*options);
    };
  });
}

}  // namespace reprise::app
