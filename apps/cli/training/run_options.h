// The options that all commands share which run a model: the model itself, its data and the
// machine. Each command's own options stand beside it. Checks refuse what cannot work before
// anything is built or written, and throw UsageError, whose text is the one line that the user
// sees.
#pragma once

#include <reprise/checkpoint.h>

#include <CLI/App.hpp>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli/io/option_group.h"
#include "models/gpt.h"

namespace reprise::app {

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
  std::optional<std::string> park;  // "disk=DIR", the store of byte budgets
  std::string determinism = "default";
  bool json = false;
};

// The largest number of steps and of anything that has a size. With them all products of sizes stay
// within 64 bits.
inline constexpr std::int64_t kMostSteps = 1'000'000'000'000;
inline constexpr std::int64_t kMostSize = std::int64_t{1} << 20;

// Make `command` fill `options`, which must live as long as the command.
void bind_model(CLI::App& command, RunOptions& options);
void bind_data(CLI::App& command, RunOptions& options, bool has_text = true);
void bind_machine(CLI::App& command, RunOptions& options);
void bind_threads(OptionGroup& group, int& threads);
void bind_regions(OptionGroup& group, RunOptions& options);
void bind_budget(OptionGroup& group, RunOptions& options);
// Names for a help text, in lines that fit beside the options.
std::string in_lines(const std::vector<std::string>& names);
std::string strategy_list();

void check_choice(const char* option, const std::string& value,
                  const std::vector<std::string>& choices);
// Checks the model, and completes its options from --attention.
void check_run(RunOptions& options);
// Refuses a strategy that the model has too few layers for.
void check_strategy(const std::string& strategy, const RunOptions& options);
// Refuses --reentrant and --determinism without a strategy that recomputes. A budget takes
// `--determinism values`.
void check_regions(const RunOptions& options, const std::vector<std::string>& strategies,
                   bool has_budget);
// Refuses --heuristic and --park without a budget; `remedy` says how to get one.
void check_budget_options(const RunOptions& options, bool has_budget, const char* remedy);

// The options that every region gets.
CheckpointOptions region_options(const RunOptions& options);
// The options that decide what is computed, for --json and for the checkpoint.
nlohmann::json describe(const RunOptions& options);

}  // namespace reprise::app
