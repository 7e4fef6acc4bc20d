// What can be asked of `reprise train` and `reprise compare`: plain structs with their defaults,
// the command-line options that fill them, and the checks that refuse what cannot work before
// anything is built or written. Checks throw UsageError, whose text becomes the one line that the
// user sees.
#pragma once

#include <reprise/checkpoint.h>

#include <CLI/App.hpp>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "models/gpt.h"

namespace reprise::app {

// The model, its data and the machine: common to all commands that run steps.
struct RunOptions {
  std::string model = "gpt";
  models::GptOptions gpt;
  std::string attention = "fused";
  std::vector<std::string> data;  // files and folders; empty: the text files of this repository
  std::int64_t batch = 8;
  std::int64_t seed = 1;
  std::string dtype = "f32";
  std::string device = "auto";
  int threads = 0;  // 0: as LibTorch chooses
  bool reentrant = false;
  std::string heuristic = "h_up";   // of byte budgets
  std::optional<std::string> park;  // where they park values: "disk=DIR"
  std::string determinism = "default";
  bool json = false;
};

struct TrainOptions : RunOptions {
  std::int64_t steps = 100;
  std::int64_t accumulate = 1;
  std::string strategy = "none";
  double learning_rate = 1e-3;
  std::optional<std::int64_t> warmup;  // steps; a tenth of all, at most 100, if not given
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
  std::int64_t verify = 0;            // steps from one verified step to the next; 0: none is
  std::optional<std::string> budget;  // as AskedBudget reads it
};

struct CompareOptions : RunOptions {
  std::vector<std::string> strategies;  // empty: the usual ones that fit the model
  std::int64_t steps = 5;
  std::vector<std::string> planners;  // instead of strategies
  std::vector<std::string> planned_budgets;
  double seconds = 10;       // of planners that search
  bool fill_budget = false;  // whether strategies are compared at the largest batches
  std::string svg;
};

// Whether a planner is for steps, and not for chains: "hindsight", "ilp".
bool is_step_planner(const std::string& name);

// Measures strategies "none", "every-block", and budgets.
struct FrontierOptions : CompareOptions {
  std::vector<std::string> budgets;  // empty: as frontier.cpp chooses
};

// A planner that planner_named() does not know, for it needs a rate.
inline constexpr const char* kOffloadPlanner = "rotor_offload";

struct PlanOptions : RunOptions {
  std::string chain;      // a file; empty: the model is measured
  bool is_trace = false;  // and it holds a step's operators
  std::vector<std::string> planners, budgets;
  double seconds = 10;
  std::int64_t moves = 0;
  double store_bandwidth = 0;  // bytes a second, each way; 0: there is no store
  std::string picture, schedule_out, chain_out;
};

// Makes `command` fill `options`, which must live as long as the command.
void bind(CLI::App& command, TrainOptions& options);
void bind(CLI::App& command, CompareOptions& options);
void bind(CLI::App& command, FrontierOptions& options);
void bind(CLI::App& command, PlanOptions& options);

// The model's options alone, and the checks of what all commands with a model have in common.
void bind_model(CLI::App& command, RunOptions& options);
void check_run(RunOptions& options);
// Of --threads: more than any machine here has, so that a slip of the hand is found.
std::int64_t most_threads();
// Throws UsageError unless the value is one of those.
void check_choice(const char* option, const std::string& value,
                  const std::vector<std::string>& choices);

// What `reprise compare` measures if nothing is named and the model is deep enough.
const std::vector<std::string>& usual_strategies();

// Throws UsageError for values that cannot work. Completes what follows from others (attention,
// warm-up).
void check(TrainOptions& options);
void check(CompareOptions& options);
void check(FrontierOptions& options);
void check(PlanOptions& options);

// What every region is given.
CheckpointOptions region_options(const RunOptions& options);

// The options that decide what is computed, for --json and for the checkpoint.
nlohmann::json describe(const RunOptions& options);
nlohmann::json describe(const TrainOptions& options);

}  // namespace reprise::app
