// The options of `reprise train` that choose a model and a method: a run that compares methods on
// BERT, GPT or ViT and logs every step. Without them, `train` trains its byte-level GPT.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "apps/cli/training/train_options.h"

namespace reprise::app {

struct TrainModelOptions {
  std::optional<std::string> method;  // not given: "budget" with --budget, else "none"
  std::string log;
  std::optional<std::int64_t> patch;  // of vit

  std::string method_or_default(const TrainOptions& options) const;
};

// After bind() of TrainOptions.
void bind(CLI::App& command, TrainModelOptions& options);

// Whether the command line asks for such a run: by another model, a method or a log.
bool is_method_run(const TrainOptions& options, const TrainModelOptions& more);

// Throws UsageError for an unknown model or method, for a budget that is missing or of no use, and
// for an option of `command` that such a run would ignore. Completes what follows from others.
void check(const CLI::App& command, TrainOptions& options, const TrainModelOptions& more);

}  // namespace reprise::app
