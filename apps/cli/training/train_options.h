// The options of `reprise train`. They stand in this room because the training loop reads them.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "apps/cli/training/asked_budget.h"
#include "apps/cli/training/pipelined/pipeline_choice.h"
#include "apps/cli/training/run_options.h"

namespace reprise::app {

struct TrainOptions : RunOptions {
  std::int64_t steps = 100;
  std::int64_t accumulate = 1;
  std::string strategy = "none";
  double learning_rate = 1e-3;
  std::optional<std::int64_t> warmup;  // steps; default: a tenth of all, at most 100
  double weight_decay = 0.1;
  double clip = 1.0;  // largest norm of all gradients together; 0: no clipping
  std::string metrics;
  std::string trace_out;        // empty: no step is traced
  std::int64_t trace_step = 0;  // 0: the last of the call
  std::string checkpoint_dir;
  std::int64_t checkpoint_every = 0;  // 0: only at the end and when interrupted
  std::int64_t stop_after = 0;        // 0: at the last step
  bool resume = false;
  bool sample = false;
  std::int64_t verify = 0;  // steps from one verified step to the next; 0: no step is verified
  std::optional<AskedBudget> budget;
  std::optional<PipelineChoice> pipeline;
};

void bind(CLI::App& command, TrainOptions& options);
// Throws UsageError for values that cannot work, and completes the warm-up. With a pipeline the model
// gets a head matrix of its own, since two stages cannot share one.
void check(TrainOptions& options);
// Throws UsageError if the metrics, the trace or the checkpoint would write over another of them or
// over --data.
void refuse_overlaps(const TrainOptions& options);

nlohmann::json describe(const TrainOptions& options);

}  // namespace reprise::app
