// One step, done the same way for every strategy, and what is read off around it.
#include "apps/reprise/comparison.h"

#include <ATen/Context.h>
#include <fmt/format.h>
#include <reprise/memory.h>

#include <algorithm>
#include <chrono>

#include "apps/reprise/device.h"
#include "apps/reprise/figures.h"
#include "apps/reprise/progress.h"
#include "apps/reprise/streams.h"

namespace reprise::app {

double Measured::typical_milliseconds() const { return median(milliseconds); }

std::vector<Measured> strategies_to_measure(const std::vector<std::string>& names,
                                            c10::Device device,
                                            std::span<const models::StrategyKind> kinds) {
  std::vector<Measured> all;
  const auto add = [&](const std::string& name) {
    const auto same = [&](const Measured& each) { return each.strategy.name() == name; };
    if (std::ranges::none_of(all, same)) all.emplace_back(models::Strategy::parse(name, kinds));
  };
  add("none");
  for (const std::string& name : names) add(name);
  for (Measured& each : all) each.strategy.prepare(device);
  return all;
}

Comparison::Comparison(const CompareOptions& options, const TextData& data, c10::Device device)
    : options_(options), data_(data), network_(options, device) {
  // Kernels that add in any order would differ from run to run by themselves.
  if (!device.is_cpu()) at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  clock_.watch(network_);
  network_.model()->train();
  allocate_gradients(*network_.model());
}

void Comparison::run(std::vector<Measured>& all) {
  ProgressLine line;
  // Unmeasured: the first step of a process also starts threads and chooses kernels.
  seconds_of_step(all.front(), 0);
  for (std::int64_t round = 0; round <= options_.steps; ++round) {
    GradientBits expected;
    for (Measured& each : all) {
      line.show({fmt::format("round {}/{}", round + 1, options_.steps + 1),
                 escape(each.strategy.name())});
      round == 0 ? examine(each) : time(each, round);
      if (expected.empty()) {
        expected = gradient_bits(*network_.model());
      } else if (!each.difference) {
        each.difference = first_difference(*network_.model(), expected);
      }
    }
  }
}

// Everything that decides the gradients depends on the round alone.
double Comparison::seconds_of_step(const Measured& measured, std::int64_t round) {
  clear_gradients(*network_.model());
  const auto starts = random_starts(options_.seed, round, options_.batch, data_.training.size(),
                                    options_.gpt.context);
  const Batch batch = cut(data_.training, starts, options_.gpt.context, network_.device());
  at::manual_seed(static_cast<std::uint64_t>(options_.seed) + static_cast<std::uint64_t>(round));
  synchronize(network_.device());
  const auto start = std::chrono::steady_clock::now();
  network_.run_backward(batch, measured.strategy);
  synchronize(network_.device());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void Comparison::examine(Measured& measured) {
  const PeakScope memory(network_.device());
  clock_.start(network_.device());
  const double seconds = seconds_of_step(measured, 0);
  measured.recompute_share = clock_.stop() / seconds;
  measured.peak = memory.peak();
  measured.activations = memory.peak_above_start();
}

void Comparison::time(Measured& measured, std::int64_t round) {
  measured.milliseconds.push_back(1e3 * seconds_of_step(measured, round));
}

int report_differences(const std::vector<Measured>& all) {
  int exit_code = 0;
  for (const Measured& each : all) {
    if (!each.difference) continue;
    print_error_line(
        fmt::format("reprise compare: under {} {}", each.strategy.name(), each.difference->text()));
    exit_code = 1;
  }
  return exit_code;
}

}  // namespace reprise::app
