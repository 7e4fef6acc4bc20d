// `reprise compare`: what a strategy saves and what it costs, and whether its gradients are those of the
// plain step, bit by bit.
//
// Round after round every strategy runs one step on the same weights, batch and random state, so that a machine
// that slows down or warms up does so for all. Nothing is updated. The first round measures memory and the
// time spent recomputing; later ones only the clock. Gradients are allocated beforehand: bytes are those that forward
// and backward need above what lives before the step.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <CLI/App.hpp>
#include <fmt/format.h>
#include <reprise/memory.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "commands.h"
#include "device.h"
#include "figures.h"
#include "gradients.h"
#include "network.h"
#include "progress.h"
#include "recompute_clock.h"
#include "text_data.h"

namespace reprise::app {

namespace {

constexpr const char* kYardstick = "none";

struct Measured {
  explicit Measured(models::Strategy s) : strategy(std::move(s)) {}

  models::Strategy strategy;
  Bytes peak, activations;
  std::vector<double> milliseconds;
  double recompute_share = 0;
  std::string differing;  // the first parameter whose gradient is not that of the yardstick

  double typical() const { return median(milliseconds); }
};

std::vector<Measured> strategies_to_measure(const CompareOptions& options) {
  std::vector<Measured> all;
  const auto add = [&](const std::string& name) {
    const auto same = [&](const Measured& each) { return each.strategy.name() == name; };
    if (std::ranges::none_of(all, same)) all.emplace_back(models::Strategy::parse(name));
  };
  add(kYardstick);
  for (const std::string& name : options.strategies) add(name);
  return all;
}

class Comparison {
 public:
  Comparison(const CompareOptions& options, const TextData& data, c10::Device device)
      : options_(options), data_(data), network_(options, device) {
    // Kernels that add in any order would differ from run to run by themselves.
    if (!device.is_cpu()) at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
    clock_.watch(network_);
    network_.model()->train();
    allocate_gradients(*network_.model());
  }

  void run(std::vector<Measured>& all) {
    ProgressLine line;
    // Unmeasured: the first step of a process also starts threads and chooses kernels.
    step(all.front(), 0);
    for (std::int64_t round = 0; round <= options_.steps; ++round) {
      std::vector<at::Tensor> expected;
      for (Measured& each : all) {
        line.show({fmt::format("round {}/{}", round + 1, options_.steps + 1), each.strategy.name()});
        round == 0 ? examine(each) : time(each, round);
        if (expected.empty()) {
          expected = copy_gradients(*network_.model());
        } else if (each.differing.empty()) {
          each.differing = first_difference(*network_.model(), expected);
        }
      }
    }
  }

  Network& network() { return network_; }

 private:
  // Everything that decides the gradients depends on the round alone.
  double step(const Measured& measured, std::int64_t round) {
    clear_gradients(*network_.model());
    const auto starts = random_starts(options_.seed, round, options_.batch, data_.training.size(),
                                      options_.gpt.context);
    const Batch batch = cut(data_.training, starts, options_.gpt.context, network_.device());
    at::manual_seed(options_.seed + static_cast<std::uint64_t>(round));
    synchronize(network_.device());
    const auto start = std::chrono::steady_clock::now();
    network_.run_backward(batch, measured.strategy);
    synchronize(network_.device());
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  void examine(Measured& measured) {
    const PeakScope memory(network_.device());
    clock_.start(network_.device());
    const double seconds = step(measured, 0);
    measured.recompute_share = clock_.stop() / seconds;
    measured.peak = memory.peak();
    measured.activations = memory.peak_above_start();
  }

  void time(Measured& measured, std::int64_t round) {
    measured.milliseconds.push_back(1e3 * step(measured, round));
  }

  const CompareOptions& options_;
  const TextData& data_;
  Network network_;
  RecomputeClock clock_;
};

std::string percent(double part) { return fmt::format("{:.0f} %", 100 * part); }

void print_table(const CompareOptions& options, const std::vector<Measured>& all,
                 Network& network, const TextData& data) {
  Facts facts;
  facts.add("model", network.description());
  facts.add("data", fmt::format("{}, {} sequences a step", data.origin, options.batch));
  facts.add("machine", describe_machine(options, network.device()));
  if (options.reentrant) facts.add("regions", "reentrant");
  fmt::print("{}\n", facts.text());

  Table table({"strategy", "peak", "activations", "of none", "ms/step", "of none", "recomputing",
               "same gradients"});
  const Measured& plain = all.front();
  for (const Measured& each : all) {
    table.add({each.strategy.name(), to_string(each.peak), to_string(each.activations),
               percent(static_cast<double>(each.activations.count) /
                       static_cast<double>(plain.activations.count)),
               format_milliseconds(each.typical()), fmt::format("{:.2f}×", each.typical() / plain.typical()),
               percent(each.recompute_share), each.differing.empty() ? "yes" : "no"});
  }
  fmt::print("{}\n", table.text());
  fmt::print("peak: bytes alive at once, weights and gradients included; activations: above those alive "
             "before the step.\n");
}

void print_json(const CompareOptions& options, const std::vector<Measured>& all,
                Network& network) {
  nlohmann::json rows = nlohmann::json::array();
  const Measured& plain = all.front();
  for (const Measured& each : all) {
    rows.push_back({{"strategy", each.strategy.name()},
                    {"peak_bytes", each.peak.count},
                    {"activation_bytes", each.activations.count},
                    {"ms_per_step", each.typical()},
                    {"ratio_to_none", each.typical() / plain.typical()},
                    {"recompute_share", each.recompute_share},
                    {"gradients_equal", each.differing.empty()}});
  }
  const nlohmann::json result = {{"options", describe(options)},
                                 {"device", network.device().str()},
                                 {"threads", at::get_num_threads()},
                                 {"timed_steps", options.steps},
                                 {"strategies", rows}};
  fmt::print("{}\n", result.dump(2));
}

int compare(CompareOptions options) {
  check(options);
  const c10::Device device = parse_device(options.device);
  if (options.threads > 0) at::set_num_threads(options.threads);
  const TextData data = load_text(options.data);
  check_context(data, options.gpt.context);

  std::vector<Measured> all = strategies_to_measure(options);
  Comparison comparison(options, data, device);
  comparison.run(all);
  options.json ? print_json(options, all, comparison.network())
               : print_table(options, all, comparison.network(), data);
  int exit_code = 0;
  for (const Measured& each : all) {
    if (each.differing.empty()) continue;
    fmt::print(stderr, "reprise compare: under {} the gradient of {} differs from the plain step's\n",
               each.strategy.name(), each.differing);
    exit_code = 1;
  }
  return exit_code;
}

}  // namespace

void add_compare(CLI::App& program, Chosen& chosen) {
  auto* command = program.add_subcommand(
      "compare", "Measure memory, time and gradients of the same steps under several strategies");
  auto options = std::make_shared<CompareOptions>();
  bind(*command, *options);
  command->callback([options, &chosen] { chosen = [options] { return compare(*options); }; });
}

}  // namespace reprise::app
