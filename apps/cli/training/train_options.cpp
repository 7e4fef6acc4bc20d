#include "apps/cli/training/train_options.h"

#include <fmt/format.h>
#include <reprise/error.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "apps/cli/io/atomic_file.h"
#include "apps/cli/training/step_trace_file.h"
#include "apps/cli/training/training_checkpoint.h"

namespace reprise::app {

namespace {

void bind_training(CLI::App& command, TrainOptions& options) {
  OptionGroup training(command, "Training");
  training.whole("--steps", options.steps, {1, kMostSteps},
                 "optimizer steps in all, with those before a resume");
  training.whole("--accumulate", options.accumulate, {1, kMostSize},
                 "batches whose gradients make one step");
  training.real("--lr", options.learning_rate, {1e-12, 10}, "peak learning rate of AdamW");
  training.whole("--warmup", options.warmup, {0, kMostSteps},
                 "steps until the peak, before a cosine decay to a tenth of it;\n"
                 "default: a tenth of --steps, at most 100");
  training.real("--weight-decay", options.weight_decay, {0, 10},
                "weight decay of matrices; biases and norms have none");
  training.real("--clip", options.clip, {0, 1e6}, "largest norm of the gradients; 0: no clipping");
}

void bind_memory(CLI::App& command, TrainOptions& options) {
  OptionGroup memory(command, "Memory");
  memory.text("--strategy", "NAME", options.strategy,
              "which blocks are recomputed in backward:\n" + strategy_list());
  bind_regions(memory, options);
  memory.whole("--verify", options.verify, {0, kMostSteps},
               "compare all gradients with the plain step's, bit for bit, in the first\n"
               "step and every Nth after it; 0: never. A verified step also costs a plain\n"
               "step in time and memory, and a copy of the gradients; accelerators use\n"
               "deterministic kernels. The run stops before a step that differs changes\n"
               "the weights: exit code 3. With --budget a verified step also hashes what\n"
               "is dropped, and compares what is restored");
  memory.value("--budget", "B", options.budget, AskedBudget::parse,
               "most bytes alive in a step, forward, backward and optimizer: values that\n"
               "would exceed it are dropped, and recomputed when they are read. All bytes\n"
               "(400MB, 8GiB); a share of the peak of a plain step, which runs once before\n"
               "the first step (80%); bytes above what is live before a step (+84MB), which\n"
               "is weights and the optimizer's moments; or 'least', the least in which a\n"
               "step runs, as a recorded step shows. If a step does not fit: exit code 4");
  bind_budget(memory, options);
  memory.value(
      "--pipeline", "LIST", options.pipeline, PipelineChoice::parse_run,
      fmt::format("run steps through a pipeline on the CPU's cores: stages=N,chunks=N.\n"
                  "Add schedule=NAME to choose another than 1f1b:\n"
                  "{}.\n"
                  "Add checkpoint=always, never or N micro-batches; default except_last.\n"
                  "Add balance=bytes or the layers of each stage (3+4); default time.\n"
                  "Add per-worker=N stages. Or give csv=FILE, a table of actions.\n"
                  "The layers are the embedding and the blocks, and the head has its own\n"
                  "matrix. --verify compares with the same micro-batches without a pipeline",
                  in_lines(schedules::names())));
}

void bind_files(CLI::App& command, TrainOptions& options) {
  OptionGroup saving(command, "Saving");
  saving.path("--checkpoint-dir", "DIR", options.checkpoint_dir,
              "save the run there, at the end and when it is interrupted");
  saving.whole("--checkpoint-every", options.checkpoint_every, {0, kMostSteps},
               "also save every so many steps; 0: not in between");
  saving.whole("--stop-after", options.stop_after, {0, kMostSteps},
               "save and stop after so many steps of this call; 0: never");
  saving.flag("--resume", options.resume,
              "continue, bit for bit, from what --checkpoint-dir holds");
  OptionGroup output(command, "Output");
  output.path("--metrics", "FILE", options.metrics, "write one JSON object a step to it");
  output.path("--trace-out", "FILE", options.trace_out,
              "trace one step to it: NAME.json for Chrome and Perfetto, with drops,\n"
              "replays and the bytes alive; NAME.jsonl or NAME.log, also with .gz,\n"
              "for `reprise simulate`");
  output.whole("--trace-step", options.trace_step, {0, kMostSteps},
               "the step to trace; 0: the last of this call");
  output.flag("--sample", options.sample, "print a line written by the model at the end");
}

// In `reprise compare` budgets and pipelines are strategies; here they are options of their own.
void refuse_what_is_no_strategy(const std::string& strategy) {
  const auto refuse = [&](std::string_view kind, std::string_view option, std::string value) {
    if (!strategy.starts_with(kind)) return;
    std::ranges::replace(value, ':', ',');
    throw UsageError(fmt::format("--strategy is '{}': give it as {} {}", strategy, option, value));
  };
  const std::string value = strategy.substr(std::min(strategy.find(':') + 1, strategy.size()));
  refuse("budget:", "--budget", value.empty() ? "80%" : value);
  refuse("pipeline:", "--pipeline", value.empty() ? "stages=2,chunks=8" : value);
}

void check_trace(const TrainOptions& options) {
  check_trace_name(options.trace_out);
  if (options.trace_step == 0) return;
  if (options.trace_out.empty())
    throw UsageError("--trace-step needs a file: add --trace-out FILE");
  if (options.trace_step > options.steps) {
    throw UsageError(fmt::format("--trace-step {} is beyond --steps {}: give one of those steps",
                                 options.trace_step, options.steps));
  }
}

void check_pipeline(TrainOptions& options) {
  const char* const beside = options.budget               ? "--budget"
                             : options.strategy != "none" ? "--strategy"
                             : options.reentrant          ? "--reentrant"
                             : !options.trace_out.empty() ? "--trace-out"
                                                          : nullptr;
  if (beside != nullptr) {
    throw UsageError(fmt::format(
        "{} cannot be combined with --pipeline, whose own checkpoint= says what is recomputed and "
        "whose steps run on several threads: leave one of them out",
        beside));
  }
  constexpr std::int64_t kEmbedding = 1;
  options.pipeline->check_run("--pipeline", options.gpt.layers + kEmbedding, options.batch);
  if (options.determinism != "default" && options.pipeline->checkpoint == "never") {
    throw UsageError(
        "--determinism has no effect with --pipeline checkpoint=never, which recomputes nothing: "
        "leave it out, or choose checkpoint=always");
  }
  options.gpt.tied_head = false;
}

void check_saving(const TrainOptions& options) {
  if (options.stop_after > options.steps) {
    throw UsageError(
        fmt::format("--stop-after {} is beyond --steps {}: give at most as many, or more --steps",
                    options.stop_after, options.steps));
  }
  if (!options.checkpoint_dir.empty()) return;
  const char* const needs = options.resume                 ? "--resume"
                            : options.checkpoint_every > 0 ? "--checkpoint-every"
                            : options.stop_after > 0       ? "--stop-after"
                                                           : nullptr;
  if (needs) throw UsageError(fmt::format("{} needs a folder: add --checkpoint-dir DIR", needs));
}

}  // namespace

void bind(CLI::App& command, TrainOptions& options) {
  bind_model(command, options);
  bind_data(command, options);
  bind_training(command, options);
  bind_memory(command, options);
  bind_files(command, options);
  bind_machine(command, options);
}

void check(TrainOptions& options) {
  check_run(options);
  refuse_what_is_no_strategy(options.strategy);
  check_strategy(options.strategy, options);
  if (options.pipeline) {
    check_pipeline(options);
  } else {
    check_regions(options, {options.strategy}, options.budget.has_value());
  }
  check_budget_options(options, options.budget.has_value(), "add --budget, such as --budget 80%");
  if (!options.warmup) options.warmup = std::min<std::int64_t>(100, options.steps / 10);
  check_saving(options);
  check_trace(options);
}

void refuse_overlaps(const TrainOptions& options) {
  std::vector<Place> data;
  for (const std::string& each : options.data) data.push_back({"--data", each});
  std::vector<Place> written = {{"--trace-out", options.trace_out}, {"--metrics", options.metrics}};
  if (!options.checkpoint_dir.empty()) {
    // The folder itself may be among the data, but no result may take its place.
    refuse_overlaps(written, {{"--checkpoint-dir", options.checkpoint_dir}});
    written.push_back({"--checkpoint-dir", training_checkpoint_file(options.checkpoint_dir)});
  }
  refuse_overlaps(written, data);
}

nlohmann::json describe(const TrainOptions& options) {
  nlohmann::json all = describe(static_cast<const RunOptions&>(options));
  all.update({{"strategy", options.strategy},
              {"steps", options.steps},
              {"accumulate", options.accumulate},
              {"lr", options.learning_rate},
              {"warmup", *options.warmup},
              {"weight_decay", options.weight_decay},
              {"clip", options.clip},
              {"verify", options.verify},
              {"pipeline", options.pipeline ? options.pipeline->text : ""},
              {"budget", options.budget ? options.budget->text() : ""}});
  return all;
}

}  // namespace reprise::app
