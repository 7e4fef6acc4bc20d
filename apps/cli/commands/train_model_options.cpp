#include "apps/cli/commands/train_model_options.h"

#include <fmt/format.h>
#include <reprise/error.h>

#include <algorithm>
#include <array>
#include <utility>

#include "apps/cli/io/atomic_file.h"
#include "apps/cli/io/option_group.h"
#include "apps/cli/training/methods/method.h"

namespace reprise::app {

namespace {

constexpr std::int64_t kMostPatch = 1 << 10;

// The options that a run under a method follows. All others belong to the byte-level GPT.
constexpr std::array kFollowed = {
    "--help",  "--model",  "--method",    "--log",          "--patch",   "--layers",
    "--width", "--heads",  "--context",   "--data",         "--dropout", "--batch",
    "--seed",  "--steps",  "--attention", "--weight-decay", "--lr",      "--warmup",
    "--clip",  "--budget", "--json",      "--device",       "--threads", "--pipeline"};

void refuse_others(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->count() == 0 || std::ranges::count(kFollowed, option->get_name()) > 0) continue;
    throw UsageError(
        fmt::format("{} has no effect on a run with --method, --log or another model than gpt: "
                    "leave it out",
                    option->get_name()));
  }
}

void refuse_unless(bool is_of_model, const CLI::App& command, const char* option,
                   const std::string& model) {
  if (is_of_model || command.count(option) == 0) return;
  throw UsageError(fmt::format("{} has no effect on model {}: leave it out", option, model));
}

void check_budget_of(const std::string& method, const TrainOptions& options) {
  if (!options.budget) {
    if (!needs_budget(method)) return;
    throw UsageError(fmt::format(
        "--method {} fits a step into a number of bytes: add --budget, such as --budget 60%",
        method));
  }
  if (!needs_budget(method)) {
    throw UsageError(fmt::format(
        "--budget has no effect on --method {}: leave it out, or choose a method that has one, "
        "such as budget",
        method));
  }
  if (options.budget->is_least()) {
    throw UsageError(
        "--budget is 'least', which differs from method to method: give bytes, a share of the "
        "plain step's peak (60%) or bytes above those live before the step (+84MB)");
  }
}

}  // namespace

std::string TrainModelOptions::method_or_default(const TrainOptions& options) const {
  if (options.pipeline && !method) return "pipeline," + options.pipeline->text;
  return method.value_or(options.budget ? "budget" : "none");
}

void bind(CLI::App& command, TrainModelOptions& options) {
  command.get_option("--model")->description(
      "the network: gpt, bert (guesses masked bytes) or vit (classes of pictures)");
  OptionGroup methods(command, "Methods");
  methods.text("--method", "NAME", options.method,
               fmt::format("the method that fits a step into --budget, on any model:\n{}.\n"
                           "The PGAC methods take parameters, as in pgac,q=0.25,alpha=0.5 (also\n"
                           "gamma, fill, search, far, error)",
                           in_lines(training_methods())));
  methods.path("--log", "FILE", options.log,
               "write one JSON object a step to it: seconds of forward, backward,\n"
               "recomputation, packing and the tape, peak bytes, loss, masks");
  methods.whole("--patch", options.patch, {1, kMostPatch},
                "pixels of a patch's side, with --model vit; default 2");
}

bool is_method_run(const TrainOptions& options, const TrainModelOptions& more) {
  return options.model != "gpt" || more.method || !more.log.empty() || more.patch;
}

void check(const CLI::App& command, TrainOptions& options, const TrainModelOptions& more) {
  check_choice("--model", options.model, {"gpt", "bert", "vit"});
  const std::string method = more.method_or_default(options);
  if (options.pipeline && more.method) {
    throw UsageError(fmt::format(
        "--method {} cannot be combined with --pipeline, which is a method of its own: leave one of "
        "them out",
        *more.method));
  }
  if (!options.pipeline) {
    check_method({.name = method, .steps = options.steps, .seed = 0});
    check_budget_of(method, options);
  }
  refuse_others(command);
  refuse_unless(options.model == "vit", command, "--patch", options.model);
  refuse_unless(options.model != "vit", command, "--context", options.model);
  // The shape's options are those of GPT, and so are their bounds.
  const std::string model = std::exchange(options.model, "gpt");
  check(options);
  options.model = model;
  if (!more.log.empty()) refuse_overlap("--log", more.log, options.data);
}

}  // namespace reprise::app
