// The options of options.h: one line each, with the help text that `--help` prints.
#include "options.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <reprise/error.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "models/strategy.h"

namespace reprise::app {

namespace {

void check_choice(const char* option, const std::string& value,
                  const std::vector<std::string>& choices) {
  if (std::ranges::find(choices, value) == choices.end()) {
    throw UsageError(fmt::format("unknown {} '{}'; choose one of {}", option, value,
                                 fmt::join(choices, ", ")));
  }
}

template <class T>
void check_at_least(const char* option, T value, T bound) {
  if (!(value >= bound)) {
    throw UsageError(fmt::format("{} {}: must be at least {}", option, value, bound));
  }
}

void bind_run(CLI::App& command, RunOptions& options) {
  const auto add = [&](const char* name, auto& value, const char* help, const char* group) {
    command.add_option(name, value, help)->capture_default_str()->group(group);
  };
  add("--model", options.model, "which network: gpt", "Model");
  add("--layers", options.gpt.layers, "number of blocks", "Model");
  add("--width", options.gpt.width, "of the residual stream; a multiple of --heads", "Model");
  add("--heads", options.gpt.heads, "attention heads", "Model");
  add("--context", options.gpt.context, "sequence length in tokens (bytes)", "Model");
  add("--attention", options.attention, "fused, or unfused (activations grow with context²)",
      "Model");
  add("--dropout", options.gpt.dropout, "probability in [0, 1)", "Model");

  command
      .add_option("--data", options.data,
                  "text files, or folders that are searched for them (hidden and build folders are "
                  "left out) [this repository's own text files]")
      ->group("Data");
  add("--batch", options.batch, "sequences run at once", "Data");
  add("--seed", options.seed, "of weights, dropout and the order of the data", "Data");

  add("--dtype", options.dtype, "f32, or bf16 (by autocast; weights stay f32)", "Machine");
  add("--device", options.device, "auto, cpu, or an accelerator such as cuda:0", "Machine");
  add("--threads", options.threads, "CPU threads; 0: as many as LibTorch chooses", "Machine");

  command.add_flag("--reentrant", options.reentrant, "use the reentrant variant of checkpointing")
      ->group("Memory");
  command.add_flag("--json", options.json, "print one JSON object instead of a table")
      ->group("Output");
}

void check_run(RunOptions& options) {
  check_choice("model", options.model, {"gpt"});
  check_choice("attention", options.attention, {"fused", "unfused"});
  check_choice("dtype", options.dtype, {"f32", "bf16"});
  options.gpt.fused_attention = options.attention == "fused";
  models::check(options.gpt);
  check_at_least<std::int64_t>("--batch", options.batch, 1);
  check_at_least("--threads", options.threads, 0);
}

}  // namespace

void bind(CLI::App& command, TrainOptions& options) {
  bind_run(command, options);
  const auto add = [&](const char* name, auto& value, const char* help, const char* group) {
    command.add_option(name, value, help)->capture_default_str()->group(group);
  };
  add("--strategy", options.strategy,
      "which blocks are recomputed: none, every-block, segments:K, sqrt, from-input", "Memory");
  add("--steps", options.steps, "optimizer steps in all, earlier ones of a resumed run included",
      "Training");
  add("--accumulate", options.accumulate, "batches whose gradients make one step", "Training");
  add("--lr", options.learning_rate, "peak learning rate of AdamW", "Training");
  command
      .add_option("--warmup", options.warmup,
                  "steps until the peak, before a cosine decay to a tenth of it [a tenth of --steps, "
                  "at most 100]")
      ->group("Training");
  add("--weight-decay", options.weight_decay, "of matrices; biases and norms do not decay",
      "Training");
  add("--clip", options.clip, "largest norm of the gradients; 0: no clipping", "Training");

  add("--checkpoint-dir", options.checkpoint_dir, "folder to save the training state in",
      "Saving");
  add("--checkpoint-every", options.checkpoint_every,
      "steps between saves; 0: at the end and when interrupted only", "Saving");
  add("--stop-after", options.stop_after,
      "save and stop after so many steps of this call; 0: go on to --steps", "Saving");
  command
      .add_flag("--resume", options.resume, "go on, bit for bit, from what --checkpoint-dir holds")
      ->group("Saving");

  add("--metrics", options.metrics, "file to write one JSON object a step to", "Output");
  command.add_flag("--sample", options.sample, "print a line written by the model at the end")
      ->group("Output");
}

void bind(CLI::App& command, CompareOptions& options) {
  bind_run(command, options);
  command
      .add_option("--strategies", options.strategies,
                  "to compare, separated by commas; none is added if missing, as the yardstick")
      ->delimiter(',')
      ->capture_default_str()
      ->group("Memory");
  command.add_option("--steps", options.steps, "timed steps for each strategy")
      ->capture_default_str()
      ->group("Measuring");
}

void check(TrainOptions& options) {
  check_run(options);
  models::Strategy::parse(options.strategy).check(options.gpt.layers);
  check_at_least<std::int64_t>("--steps", options.steps, 1);
  check_at_least<std::int64_t>("--accumulate", options.accumulate, 1);
  check_at_least<std::int64_t>("--checkpoint-every", options.checkpoint_every, 0);
  check_at_least<std::int64_t>("--stop-after", options.stop_after, 0);
  check_at_least("--lr", options.learning_rate, 0.0);
  check_at_least("--weight-decay", options.weight_decay, 0.0);
  check_at_least("--clip", options.clip, 0.0);
  if (!options.warmup) options.warmup = std::min<std::int64_t>(100, options.steps / 10);
  check_at_least<std::int64_t>("--warmup", *options.warmup, 0);
  if (options.checkpoint_dir.empty()) {
    const char* needs = options.resume                ? "--resume"
                        : options.checkpoint_every > 0 ? "--checkpoint-every"
                        : options.stop_after > 0       ? "--stop-after"
                                                       : nullptr;
    if (needs) throw UsageError(fmt::format("{} needs a folder: add --checkpoint-dir DIR", needs));
  }
}

void check(CompareOptions& options) {
  check_run(options);
  check_at_least<std::int64_t>("--steps", options.steps, 1);
  for (const std::string& strategy : options.strategies) {
    models::Strategy::parse(strategy).check(options.gpt.layers);
  }
}

nlohmann::json describe(const RunOptions& options) {
  return {{"model", options.model},         {"layers", options.gpt.layers},
          {"width", options.gpt.width},     {"heads", options.gpt.heads},
          {"context", options.gpt.context}, {"attention", options.attention},
          {"dropout", options.gpt.dropout}, {"batch", options.batch},
          {"seed", options.seed},           {"dtype", options.dtype},
          {"reentrant", options.reentrant}};
}

nlohmann::json describe(const TrainOptions& options) {
  nlohmann::json all = describe(static_cast<const RunOptions&>(options));
  all.update({{"strategy", options.strategy},
              {"steps", options.steps},
              {"accumulate", options.accumulate},
              {"lr", options.learning_rate},
              {"warmup", *options.warmup},
              {"weight_decay", options.weight_decay},
              {"clip", options.clip}});
  return all;
}

}  // namespace reprise::app
