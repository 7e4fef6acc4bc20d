#include "apps/cli/compare/comparison.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <fmt/format.h>
#include <reprise/memory.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "apps/cli/io/failure.h"
#include "apps/cli/io/figures.h"
#include "apps/cli/io/interrupt.h"
#include "apps/cli/io/progress.h"
#include "apps/cli/io/streams.h"
#include "apps/cli/training/device.h"
#include "apps/cli/training/park.h"

namespace reprise::app {

namespace {

// A budget under which replays take so many times the plain step counts as too small; it could take
// hours.
constexpr double kMostReplays = 10;

}  // namespace

double Measured::typical_milliseconds() const { return median(milliseconds); }

double Measured::ratio_to(const Measured& plain) const {
  std::vector<double> ratios;
  const std::size_t rounds = std::min(milliseconds.size(), plain.milliseconds.size());
  for (std::size_t i = 0; i < rounds; ++i) {
    ratios.push_back(milliseconds[i] / plain.milliseconds[i]);
  }
  return median(ratios);
}

std::vector<Measured> strategies_to_measure(const std::vector<std::string>& names,
                                            c10::Device device,
                                            std::span<const models::StrategyKind> kinds) {
  std::vector<Measured> all;
  const auto add = [&](const std::string& name) {
    const auto same = [&](const Measured& each) { return each.name == name; };
    if (std::ranges::any_of(all, same)) return;
    if (auto asked = AskedBudget::of_strategy(name)) {
      all.emplace_back(name, *std::move(asked));
    } else if (auto pipeline = PipelineChoice::of_strategy(name)) {
      all.emplace_back(name, *std::move(pipeline));
    } else {
      all.emplace_back(models::Strategy::parse(name, kinds));
    }
  };
  add("none");
  for (const std::string& name : names) add(name);
  for (Measured& each : all) each.strategy.prepare(device);
  return all;
}

Setting prepare(const CompareOptions& options) {
  const c10::Device device = parse_device(options.device);
  check_memory(options, kCopiesInComparisons, device);
  if (options.threads > 0) at::set_num_threads(options.threads);
  Setting setting = {device, load_text(options.data)};
  check_context(setting.data, options.gpt.context);
  return setting;
}

Comparison::Comparison(const CompareOptions& options, const TextData& data, c10::Device device)
    : options_(options),
      data_(data),
      network_(options, device),
      store_(open_park(options.park, device)) {
  // Kernels that add in any order would differ from run to run by themselves.
  if (!device.is_cpu()) at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  clock_.watch(network_);
  network_.model()->train();
  if (options.planners.empty()) allocate_gradients(*network_.model());
  oldest_ = at::ones({}).requires_grad_() * 1;
}

// Unmeasured: the first step of a process also starts threads and chooses kernels.
void Comparison::warm_up(const Measured& plain) {
  if (!std::exchange(is_warm_, true)) seconds_of_step(plain, 0);
}

void Comparison::measure_plain(Measured& plain) {
  warm_up(plain);
  examine(plain);
}

std::optional<double> Comparison::milliseconds_within(Bytes limit) {
  Measured tried(models::Strategy::parse("none"));
  tried.budget = make_budget(limit);
  try {
    return 1e3 * seconds_of_step(tried, 0);
  } catch (const BudgetError&) {
    return std::nullopt;
  }
}

int Comparison::run(std::vector<Measured>& all) {
  const InterruptScope interrupt;
  ProgressLine line;
  warm_up(all.front());
  for (std::int64_t round = 0; round <= options_.steps; ++round) {
    GradientBits expected;
    for (Measured& each : all) {
      if (!all.front().is_examined) interrupt.end_if_interrupted("anything was measured");
      if (interrupt.signal() != 0) return interrupt.signal();
      if (!each.failure.empty()) continue;
      line.show({fmt::format("round {}/{}", round + 1, options_.steps + 1), escape(each.name)});
      measure(each, round, expected);
      // Nothing to compare with any more.
      if (!all.front().failure.empty()) return 0;
    }
  }
  return interrupt.signal();
}

void Comparison::measure(Measured& measured, std::int64_t round, GradientBits& expected) {
  try {
    const GradientBits of_micro_batches = bits_of_micro_batches(measured, round);
    round == 0 ? examine(measured) : time(measured, round);
    if (measured.batch != 0) {
      // Other sequences, other gradients.
    } else if (measured.pipeline) {
      if (!measured.difference) {
        measured.difference = first_difference(*network_.model(), of_micro_batches);
      }
    } else if (expected.empty()) {
      expected = gradient_bits(*network_.model());
    } else if (!measured.difference) {
      measured.difference = first_difference(*network_.model(), expected);
    }
    measured.is_examined = true;
  } catch (const std::exception& error) {
    clock_.stop();
    if (expected.empty() && round == 0) throw;
    measured.failure = text_of(std::current_exception());
    // Autograd leaves what a failed backward was about to run in its queue, with the activations
    // that belong to it, and drops them before it runs anything older.
    oldest_.backward({}, /*retain_graph=*/true);
    // Or it could not even be opened, with so much live.
    measured.is_over_budget = dynamic_cast<const BudgetError*>(&error) != nullptr ||
                              (measured.asked && measured.budget == nullptr);
  }
}

void Comparison::open_pipeline(Measured& measured) {
  if (!measured.pipeline || measured.pipelined != nullptr) return;
  measured.pipelined =
      std::make_shared<PipelinedModel>(*measured.pipeline, network_.parts(), first_batch().tokens,
                                       network_.device(), region_options(options_));
}

GradientBits Comparison::bits_of_micro_batches(Measured& measured, std::int64_t round) {
  if (!measured.pipeline || measured.difference) return {};
  open_pipeline(measured);
  clear();
  const Batch batch = begin_round(round, 0);
  measured.pipelined->plain_step(batch.tokens, batch.targets);
  return gradient_bits(*network_.model());
}

// One plain step that makes its gradients itself, as training does.
void Comparison::measure_training() {
  const Bytes moments = moment_bytes(*network_.model());
  network_.model()->zero_grad();
  const PeakScope memory(network_.device());
  network_.run_backward(begin_round(0, 0), models::Strategy::parse("none"));
  training_ = need_of_training(*network_.model(), memory.live_at_start() + moments,
                               memory.peak() + moments);
  network_.model()->zero_grad();
  allocate_gradients(*network_.model());
}

// A share is known once the plain step has been measured.
void Comparison::open_budget(Measured& measured) {
  if (!measured.asked) return;
  if (measured.asked->is_share()) {
    if (!training_) measure_training();
    measured.training_limit = measured.asked->limit(training_->live, training_->peak);
    measured.limit = live_ + (measured.training_limit - training_->live);
  } else if (measured.asked->is_least()) {
    constexpr Bytes kNoBound(std::int64_t{1} << 60);
    Measured recorded(models::Strategy::parse("none"));
    recorded.budget = make_budget(kNoBound);
    seconds_of_step(recorded, 0);
    measured.limit = measured.asked->limit(live_, recorded.budget->least().value());
  } else {
    measured.limit = measured.asked->limit(live_, peak_);
  }
  measured.budget = make_budget(measured.limit);
}

std::shared_ptr<MemoryBudget> Comparison::make_budget(Bytes limit) const {
  BudgetOptions budget = budget_options(options_, store_, network_.device());
  budget.replay_limit = std::chrono::duration<double>(kMostReplays * seconds_);
  return std::make_shared<MemoryBudget>(limit, std::move(budget));
}

// Everything that decides the gradients depends on the round alone.
Batch Comparison::begin_round(std::int64_t round, std::int64_t batch) {
  const auto starts = random_starts(options_.seed, round, batch > 0 ? batch : options_.batch,
                                    data_.training.size(), options_.gpt.context);
  at::manual_seed(static_cast<std::uint64_t>(options_.seed) + static_cast<std::uint64_t>(round));
  return cut(data_.training, starts, options_.gpt.context, network_.device());
}

void Comparison::clear() {
  if (options_.planners.empty()) {
    clear_gradients(*network_.model());
  } else {
    network_.model()->zero_grad();
  }
}

Bytes Comparison::peak_of(const Measured& measured) {
  const PeakScope memory(network_.device());
  seconds_of_step(measured, 0);
  return memory.peak();
}

double Comparison::seconds_of_step(const Measured& measured, std::int64_t round) {
  clear();
  const Batch batch = begin_round(round, measured.batch);
  synchronize(network_.device());
  const auto start = std::chrono::steady_clock::now();
  std::optional<MemoryBudget::Step> managed;
  if (measured.budget) managed.emplace(measured.budget->step());
  if (measured.pipelined != nullptr) {
    measured.pipelined->step(batch.tokens, batch.targets);
  } else if (measured.schedule) {
    network_.run_backward(batch, *measured.schedule);
  } else {
    network_.run_backward(batch, measured.strategy);
  }
  if (managed) managed->finish();
  synchronize(network_.device());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void Comparison::examine(Measured& measured) {
  open_budget(measured);
  clear();
  const PeakScope memory(network_.device());
  clock_.start(network_.device());
  const double seconds = seconds_of_step(measured, 0);
  // Workers recompute at the same time.
  const auto workers =
      static_cast<double>(measured.pipelined != nullptr ? measured.pipelined->workers() : 1);
  measured.recompute_share = clock_.stop() / (seconds * workers);
  measured.peak = memory.peak();
  measured.activations = memory.peak_above_start();
  if (measured.asked) {
    measured.tape = measured.budget->report();
    measured.recompute_share += measured.tape.replay_time.count() / seconds;
  } else if (peak_ == Bytes(0)) {
    seconds_ = seconds;
    live_ = memory.live_at_start();
    peak_ = measured.peak;
  }
}

void Comparison::time(Measured& measured, std::int64_t round) {
  measured.milliseconds.push_back(1e3 * seconds_of_step(measured, round));
}

int report_differences(const std::vector<Measured>& all, const std::string& command,
                       bool expects_misfits) {
  int exit_code = 0;
  for (const Measured& each : all) {
    if (each.difference) {
      print_error_line(fmt::format("{}: under {} {}", command, each.name, each.difference->text()));
    }
    const bool failed = !each.failure.empty() && !(expects_misfits && each.is_over_budget);
    if (failed) {
      print_error_line(fmt::format("{}: {} failed: {}{}", command, each.name, each.failure,
                                   each.is_over_budget ? kFrontierHint : ""));
    }
    if (each.difference || failed) exit_code = 1;
  }
  return exit_code;
}

int report_end(const std::string& command, int signal, int exit_code) {
  if (signal == 0) return exit_code;
  print_error_line(command + ": interrupted; the result holds what was measured until then");
  return exit_code_of_signal(signal);
}

}  // namespace reprise::app
