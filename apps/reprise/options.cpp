// The options of options.h: one line each, with the help text that `--help` prints.
#include "apps/reprise/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <reprise/error.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "models/strategy.h"

namespace reprise::app {

namespace {

void check_choice(const char* option, const std::string& value,
                  const std::vector<std::string>& choices) {
  if (std::ranges::find(choices, value) == choices.end()) {
    throw UsageError(
        fmt::format("unknown {} '{}'; choose one of {}", option, value, fmt::join(choices, ", ")));
  }
}

template <class T>
void check_at_least(const char* option, T value, T bound) {
  if (!(value >= bound)) {
    throw UsageError(fmt::format("{} {}: must be at least {}", option, value, bound));
  }
}

// Adds options to a group of the help text; their present values are the defaults that it shows. Of
// an option given twice the last counts, so that a script's options can be overridden.
class Group {
 public:
  Group(CLI::App& command, const char* name) : command_(command), name_(name) {}

  template <class T>
  CLI::Option* value(const char* option, const char* type, T& target, const char* help) {
    return command_.add_option(option, target, help)
        ->type_name(type)
        ->capture_default_str()
        ->group(name_)
        ->multi_option_policy(policy<T>());
  }
  // Without a default to show.
  template <class T>
  CLI::Option* optional(const char* option, const char* type, T& target, const char* help) {
    return command_.add_option(option, target, help)
        ->type_name(type)
        ->group(name_)
        ->multi_option_policy(policy<T>());
  }
  void flag(const char* option, bool& target, const char* help) {
    command_.add_flag(option, target, help)->group(name_);
  }

 private:
  template <class T>
  static CLI::MultiOptionPolicy policy() {
    constexpr bool is_list = std::is_same_v<T, std::vector<std::string>>;
    return is_list ? CLI::MultiOptionPolicy::TakeAll : CLI::MultiOptionPolicy::TakeLast;
  }

  CLI::App& command_;
  const char* name_;
};

void bind_model(CLI::App& command, RunOptions& options) {
  Group model(command, "Model");
  model.value("--model", "NAME", options.model, "which network: gpt");
  model.value("--layers", "N", options.gpt.layers, "number of blocks");
  model.value("--width", "N", options.gpt.width, "of the residual stream; a multiple of --heads");
  model.value("--heads", "N", options.gpt.heads, "attention heads");
  model.value("--context", "N", options.gpt.context,
              "sequence length in tokens; a token is a byte");
  model.value("--attention", "KIND", options.attention,
              "fused, or unfused (stores context² weights)");
  model.value("--dropout", "P", options.gpt.dropout, "probability in [0, 1)");
  Group data(command, "Data");
  data.optional("--data", "PATH", options.data,
                "text files, or folders to search for prose and source code, without\n"
                "hidden and build folders; if not given, those of this repository");
  data.value("--batch", "N", options.batch, "sequences run at once");
  data.value("--seed", "N", options.seed, "of weights, dropout and the order of the data");
}

void bind_machine(CLI::App& command, RunOptions& options) {
  Group output(command, "Output");
  output.flag("--json", options.json, "print one JSON object instead of a table");
  Group machine(command, "Machine");
  machine.value("--dtype", "TYPE", options.dtype, "f32, or bf16 (by autocast; weights stay f32)");
  machine.value("--device", "NAME", options.device, "auto, cpu, or an accelerator such as cuda:0");
  machine.value("--threads", "N", options.threads, "CPU threads; 0: as many as LibTorch chooses");
}

constexpr const char* kReentrantHelp = "use the reentrant variant of checkpointing";

void check_run(RunOptions& options) {
  check_choice("model", options.model, {"gpt"});
  check_choice("attention", options.attention, {"fused", "unfused"});
  check_choice("dtype", options.dtype, {"f32", "bf16"});
  options.gpt.fused_attention = options.attention == "fused";
  models::check(options.gpt);
  check_at_least<std::int64_t>("--batch", options.batch, 1);
  check_at_least<std::int64_t>("--seed", options.seed, 0);
  check_at_least("--threads", options.threads, 0);
}

}  // namespace

void bind(CLI::App& command, TrainOptions& options) {
  bind_model(command, options);
  Group training(command, "Training");
  training.value("--steps", "N", options.steps,
                 "optimizer steps in all, those before a resume included");
  training.value("--accumulate", "N", options.accumulate, "batches whose gradients make one step");
  training.value("--lr", "RATE", options.learning_rate, "peak learning rate of AdamW");
  training.optional("--warmup", "N", options.warmup,
                    "steps until the peak, before a cosine decay to a tenth of it;\n"
                    "if not given, a tenth of --steps, at most 100");
  training.value("--weight-decay", "W", options.weight_decay,
                 "of matrices; biases and norms have none");
  training.value("--clip", "NORM", options.clip, "largest norm of the gradients; 0: no clipping");
  Group memory(command, "Memory");
  memory.value("--strategy", "NAME", options.strategy,
               "which blocks are recomputed in backward: none, every-block,\n"
               "segments:K, sqrt, from-input");
  memory.flag("--reentrant", options.reentrant, kReentrantHelp);
  Group saving(command, "Saving");
  saving.optional("--checkpoint-dir", "DIR", options.checkpoint_dir,
                  "save the run there: at the end, and when it is interrupted");
  saving.value("--checkpoint-every", "N", options.checkpoint_every,
               "and every so many steps; 0: not in between");
  saving.value("--stop-after", "N", options.stop_after,
               "save and stop after so many steps of this call; 0: never");
  saving.flag("--resume", options.resume, "go on, bit for bit, from what --checkpoint-dir holds");
  Group output(command, "Output");
  output.optional("--metrics", "FILE", options.metrics, "write one JSON object a step to it");
  output.flag("--sample", options.sample, "print a line written by the model at the end");
  bind_machine(command, options);
}

void bind(CLI::App& command, CompareOptions& options) {
  Group measuring(command, "Measuring");
  measuring
      .value("--strategies", "LIST", options.strategies,
             "to compare, with commas between: none, every-block, segments:K,\n"
             "sqrt, from-input; none is always measured, as the yardstick")
      ->delimiter(',')
      ->default_str(fmt::format("{}", fmt::join(options.strategies, ",")));
  measuring.value("--steps", "N", options.steps, "timed steps under each strategy");
  measuring.flag("--reentrant", options.reentrant, kReentrantHelp);
  bind_model(command, options);
  bind_machine(command, options);
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
    const char* needs = options.resume                 ? "--resume"
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
