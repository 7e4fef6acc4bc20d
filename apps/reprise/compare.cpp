// `reprise compare`: what a strategy saves and what it costs, and whether its gradients are those
// of the plain step, bit by bit.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/reprise/commands.h"
#include "apps/reprise/comparison.h"
#include "apps/reprise/device.h"
#include "apps/reprise/figures.h"
#include "apps/reprise/memory_need.h"
#include "apps/reprise/streams.h"

namespace reprise::app {

namespace {

// The weights, their gradients, and the bits of the gradients that are the yardstick.
constexpr int kCopiesOfWeights = 3;

std::string percent(double part) { return fmt::format("{:.0f} %", 100 * part); }

void print_table(const CompareOptions& options, const std::vector<Measured>& all, Network& network,
                 const TextData& data) {
  Facts facts;
  network.describe(facts);
  facts.add("data", fmt::format("{}, {} sequences a step", data.origin, options.batch));
  facts.add("machine", describe_machine(options, network.device()));
  if (options.reentrant) facts.add("regions", "reentrant");
  print_result(facts.text() + "\n");

  Table table({"strategy", "peak", "activations", "of none", "ms/step", "of none", "recomputing",
               "same gradients"});
  const Measured& plain = all.front();
  for (const Measured& each : all) {
    table.add({escape(each.strategy.name()), to_string(each.peak), to_string(each.activations),
               percent(static_cast<double>(each.activations.count) /
                       static_cast<double>(plain.activations.count)),
               format_milliseconds(each.typical_milliseconds()),
               fmt::format("{:.2f}×", each.typical_milliseconds() / plain.typical_milliseconds()),
               percent(each.recompute_share), each.difference ? "no" : "yes"});
  }
  print_result(table.text() + "\n");
  print_result(
      "peak: bytes alive at once, with weights and gradients; activations: above those before the "
      "step\n");
}

void print_json(const CompareOptions& options, const std::vector<Measured>& all, Network& network) {
  nlohmann::json rows = nlohmann::json::array();
  const Measured& plain = all.front();
  for (const Measured& each : all) {
    rows.push_back({{"strategy", each.strategy.name()},
                    {"peak_bytes", each.peak.count},
                    {"activation_bytes", each.activations.count},
                    {"ms_per_step", each.typical_milliseconds()},
                    {"ratio_to_none", each.typical_milliseconds() / plain.typical_milliseconds()},
                    {"recompute_share", each.recompute_share},
                    {"gradients_equal", !each.difference}});
    if (each.difference) rows.back()["first_difference"] = each.difference->json();
  }
  const nlohmann::json result = {{"options", describe(options)},
                                 {"device", network.device().str()},
                                 {"threads", at::get_num_threads()},
                                 {"timed_steps", options.steps},
                                 {"strategies", rows}};
  // A strategy may name a folder, whose name need not be text.
  print_result(result.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

int compare(CompareOptions options) {
  check(options);
  const c10::Device device = parse_device(options.device);
  check_memory(options, kCopiesOfWeights, device);
  std::vector<Measured> all = strategies_to_measure(options.strategies, device);
  if (options.threads > 0) at::set_num_threads(options.threads);
  const TextData data = load_text(options.data);
  check_context(data, options.gpt.context);

  Comparison comparison(options, data, device);
  comparison.run(all);
  options.json ? print_json(options, all, comparison.network())
               : print_table(options, all, comparison.network(), data);
  return report_differences(all);
}

}  // namespace

void add_compare(CLI::App& program, Chosen& chosen) {
  auto* command =
      program.add_subcommand("compare", "Compare strategies by memory, time and gradients");
  auto options = std::make_shared<CompareOptions>();
  bind(*command, *options);
  command->callback([options, &chosen] { chosen = [options] { return compare(*options); }; });
}

}  // namespace reprise::app
