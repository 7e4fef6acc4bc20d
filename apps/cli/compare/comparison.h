// Steps under several strategies, measured side by side.
//
// Round after round every strategy runs one step on the same weights, batch and random state, so
// that a machine that slows down or warms up does so for all. No weight is updated. The first round
// measures memory and the time spent recomputing; later ones only the clock. Gradients are
// allocated beforehand, so that forward and backward alone are measured. In a comparison of
// planners, steps make their gradients themselves, as planners count them.
//
// A training step also has AdamW's moments, and no gradients before it. A budget in percent is a
// share of a training step's peak: activations get the same room here as there.
//
// A strategy that fails (a budget that is too small, a disk that is full) is left out from then on,
// and the others continue.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <reprise/budget.h>
#include <reprise/bytes.h>
#include <reprise/chain.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "apps/cli/compare/compare_options.h"
#include "apps/cli/training/asked_budget.h"
#include "apps/cli/training/gradients.h"
#include "apps/cli/training/memory_need.h"
#include "apps/cli/training/network.h"
#include "apps/cli/training/pipelined/pipelined_model.h"
#include "apps/cli/training/recompute_clock.h"
#include "apps/cli/training/text_data.h"
#include "models/strategy.h"

namespace reprise::app {

struct Measured {
  explicit Measured(models::Strategy s) : name(s.name()), strategy(std::move(s)) {}
  Measured(std::string of, AskedBudget asked)
      : name(std::move(of)), strategy(models::Strategy::parse("none")), asked(std::move(asked)) {}
  Measured(std::string of, Schedule planned)
      : name(std::move(of)),
        strategy(models::Strategy::parse("none")),
        schedule(std::make_shared<const Schedule>(std::move(planned))) {}

  Measured(std::string of, PipelineChoice choice)
      : name(std::move(of)),
        strategy(models::Strategy::parse("none")),
        pipeline(std::move(choice)) {}

  std::string name;
  models::Strategy strategy;
  std::optional<PipelineChoice> pipeline;
  std::shared_ptr<PipelinedModel> pipelined;  // of that choice
  std::shared_ptr<const Schedule> schedule;   // of the model's chain; null: as the strategy says
  // Sequences at once; 0: the options' number. Gradients of different batches are not compared.
  std::int64_t batch = 0;
  std::optional<AskedBudget> asked;
  Bytes limit;                           // that `asked` comes to, in these steps
  Bytes training_limit;                  // and in those of `reprise train`
  std::shared_ptr<MemoryBudget> budget;  // of so much
  StepReport tape;                       // of its first step
  std::string failure;                   // why there is no more of it; empty: nothing failed
  bool is_over_budget = false;           // whether that is for want of bytes
  bool is_examined = false;              // whether there are the figures of the first round
  Bytes peak;                            // most bytes alive during the step
  Bytes activations;                     // of those, what was not alive before it
  std::vector<double> milliseconds;
  double recompute_share = 0;  // of the step's time
  // The difference of the first round that had one. A pipeline is compared with the same
  // micro-batches one after another, all others with the plain step.
  std::optional<GradientDifference> difference;

  double typical_milliseconds() const;
  // The median over the rounds; 0 if there are none of both.
  double ratio_to(const Measured& plain) const;
};

// "none", which the others are compared with, and then the named ones, each once; prepared for the
// device. Throws UsageError.
std::vector<Measured> strategies_to_measure(
    const std::vector<std::string>& names, c10::Device device,
    std::span<const models::StrategyKind> kinds = models::strategy_kinds());

// The device and the text that the options ask for.
struct Setting {
  c10::Device device;
  TextData data;
};
// Also sets the number of threads. Throws UsageError if the device, the memory or the text cannot
// work.
Setting prepare(const CompareOptions& options);

class Comparison {
 public:
  Comparison(const CompareOptions& options, const TextData& data, c10::Device device);

  // Measures the plain step's peak before budgets are chosen. The row of the plain step has it too.
  void measure_plain(Measured& plain);
  // Milliseconds of one step of the first round under a budget of so many bytes; nullopt if the
  // step does not fit. Call measure_plain() before.
  std::optional<double> milliseconds_within(Bytes limit);
  // The most bytes alive in a step of so many sequences under that strategy, which is run.
  Bytes peak_of(const Measured& measured);
  // The batch of the first round.
  Batch first_batch() { return begin_round(0, 0); }
  // The plain step's peak, and the bytes live before it.
  Bytes plain_peak() const { return peak_; }
  Bytes live() const { return live_; }
  // The training step that shares refer to; nothing before the first share.
  const std::optional<TrainingNeed>& training() const { return training_; }

  // Throws what the plain step throws in the first round, and Interrupted if a signal came before.
  // Returns 0, or the signal that has ended it early.
  int run(std::vector<Measured>& all);
  Network& network() { return network_; }

 private:
  double seconds_of_step(const Measured& measured, std::int64_t round);
  void warm_up(const Measured& plain);
  std::shared_ptr<MemoryBudget> make_budget(Bytes limit) const;
  void open_budget(Measured& measured);
  void open_pipeline(Measured& measured);
  GradientBits bits_of_micro_batches(Measured& measured, std::int64_t round);
  void measure_training();
  Batch begin_round(std::int64_t round, std::int64_t batch);
  void clear();
  void examine(Measured& measured);
  void time(Measured& measured, std::int64_t round);
  void measure(Measured& measured, std::int64_t round, GradientBits& expected);

  const CompareOptions& options_;
  const TextData& data_;
  Network network_;
  RecomputeClock clock_;
  bool is_warm_ = false;
  // The plain step's.
  Bytes live_, peak_;
  double seconds_ = 0;
  std::optional<TrainingNeed> training_;
  std::shared_ptr<Store> store_;  // of budgets; null: none
  // A graph older than those of the steps; see measure().
  at::Tensor oldest_;
};

// One line on stderr for each strategy with a gradient that differs, or that failed; the exit code,
// 1 if there is one. `expects_misfits`: a budget that is too small is no failure.
int report_differences(const std::vector<Measured>& all,
                       const std::string& command = "reprise compare",
                       bool expects_misfits = false);
// One line on stderr about the signal, if one came. The exit code.
int report_end(const std::string& command, int signal, int exit_code);

}  // namespace reprise::app
