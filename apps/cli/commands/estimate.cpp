// `reprise estimate`: tells what a training step of a model would need, before anything is
// allocated.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <reprise/error.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "apps/cli/commands/commands.h"
#include "apps/cli/commands/estimated_model.h"
#include "apps/cli/commands/least_budget.h"
#include "apps/cli/io/failure.h"
#include "apps/cli/io/figures.h"
#include "apps/cli/io/streams.h"
#include "apps/cli/training/asked_budget.h"

namespace reprise::app {

namespace {

struct EstimateCommandOptions : EstimateModelOptions {
  std::vector<std::string> strategies;  // empty: estimated_strategies()
  std::optional<AskedBudget> budget;
};

void bind(CLI::App& command, EstimateCommandOptions& options) {
  OptionGroup memory(command, "Memory");
  memory.names("--strategy", options.strategies, "none,every-block,sqrt,selective:…",
               "strategies to estimate, with commas between: those of `reprise train`\n"
               "except offload");
  memory.value("--budget", "B", options.budget, AskedBudget::parse_planned,
               "also estimate a byte budget for the plain step: bytes (80GB), or a share\n"
               "of its peak (50%); default: only the least budget that works. If the step\n"
               "does not fit: exit code 4");
  bind_estimated(command, options);
}

void check_estimated_strategy(const std::string& name, std::int64_t layers) {
  if (name != "offload" && !name.starts_with("offload:"))
    return models::Strategy::parse(name).check(layers);
  throw UsageError(fmt::format(
      "strategy '{}' moves activations to a store, whose time and host memory are not estimated; "
      "choose one of {}",
      name, fmt::join(estimated_strategies(layers), ", ")));
}

void check(EstimateCommandOptions& options) {
  check_estimated(options);
  if (options.strategies.empty()) options.strategies = estimated_strategies(options.gpt.layers);
  for (const std::string& each : options.strategies) {
    check_estimated_strategy(each, options.gpt.layers);
    if (std::ranges::count(options.strategies, each) > 1) {
      throw UsageError(fmt::format("--strategy names '{}' twice: once is enough", each));
    }
  }
}

struct EstimatedStrategy {
  std::string name;
  Estimate estimate;
};

struct Estimated {
  Estimate plain;
  std::vector<EstimatedStrategy> strategies;
  BudgetCost least;
  std::optional<BudgetCost> asked;
};

double of_plain(double value, double plain) { return plain > 0 ? value / plain : 1; }

void print_state(const EstimateCommandOptions& options, const EstimatedModel& model,
                 const Estimate& plain) {
  Facts facts = model.facts();
  facts.add("parameters", to_string(plain.parameters));
  facts.add("gradients", to_string(plain.gradients));
  facts.add("optimizer",
            fmt::format("{} ({})", to_string(plain.optimizer_state), options.optimizer));
  facts.add("inputs", to_string(plain.inputs));
  facts.add("activations", to_string(plain.activations));
  facts.add("temporaries", fmt::format("{} at the fullest moment, in {}",
                                       to_string(plain.temporaries_at_peak), plain.peak_operator));
  facts.add("peak", to_string(plain.peak));
  facts.add("plain step", fmt::format("{:.4g} TFLOP, {} ms", plain.flops / 1e12,
                                      format_milliseconds(1e3 * plain.seconds.count())));
  print_result(facts.text() + "\n");
}

void print_kinds(const EstimateCommandOptions& options, const Estimate& plain) {
  TextTable table({"activations of", "bytes", "of all", "a layer"});
  for (const Estimate::Item& each : plain.kept) {
    if (share(each.bytes, plain.activations) < 0.0005) continue;
    const bool is_of_blocks = each.kind.starts_with("block/");
    table.add({each.kind, to_string(each.bytes),
               fmt::format("{:.1f} %", 100 * share(each.bytes, plain.activations)),
               is_of_blocks ? to_string(Bytes(each.bytes.count / options.gpt.layers)) : "-"});
  }
  print_result(table.text() + "\n");
}

void print_strategies(const Estimated& all) {
  TextTable table({"strategy", "activations", "temporaries", "peak", "of none", "FLOPs", "time"});
  for (const auto& [name, each] : all.strategies) {
    table.add({name, to_string(each.activations), to_string(each.temporaries_at_peak),
               to_string(each.peak),
               fmt::format("{:.1f} %", 100 * share(each.peak, all.plain.peak)),
               fmt::format("{:.3f}×", of_plain(each.flops, all.plain.flops)),
               fmt::format("{:.3f}×", of_plain(each.seconds.count(), all.plain.seconds.count()))});
  }
  print_result(table.text() + "\n");
}

std::string cost_text(const std::optional<double>& slowdown, bool is_unknown = false) {
  if (is_unknown) return "not known";
  return slowdown ? fmt::format("{:.3f}×", *slowdown) : "does not fit";
}

void print_budgets(const Estimated& all) {
  TextTable table({"byte budget", "bytes", "of none", "planned", "as it runs"});
  const auto add = [&](const char* name, const BudgetCost& cost) {
    table.add({name, to_string(cost.budget),
               fmt::format("{:.1f} %", 100 * share(cost.budget, all.plain.peak)),
               cost_text(cost.planned), cost_text(cost.online, cost.online_is_unknown)});
  };
  add(all.least.is_cut ? "the least found" : "the least", all.least);
  if (all.asked) add("--budget", *all.asked);
  print_result(table.text() + "\n");
  if (all.least.is_cut || all.least.online_is_unknown ||
      (all.asked && all.asked->online_is_unknown)) {
    print_result(fmt::format("byte budgets: the searches ended after {} s each, without the rest\n",
                             BudgetSearch{}.trials.count()));
  }
  print_result(
      "peak: parameters, gradients and optimizer state included; activations: kept by forward for "
      "backward\n");
}

nlohmann::json json_of_estimate(const Estimate& each) {
  nlohmann::json kinds = nlohmann::json::array();
  for (const Estimate::Item& item : each.kept) {
    kinds.push_back({{"kind", item.kind}, {"bytes", item.bytes.count}});
  }
  return {{"parameter_bytes", each.parameters.count},
          {"gradient_bytes", each.gradients.count},
          {"optimizer_bytes", each.optimizer_state.count},
          {"input_bytes", each.inputs.count},
          {"activation_bytes", each.activations.count},
          {"activations", kinds},
          {"peak_bytes", each.peak.count},
          {"gradient_bytes_at_peak", each.gradients_at_peak.count},
          {"activation_bytes_at_peak", each.activations_at_peak.count},
          {"temporary_bytes_at_peak", each.temporaries_at_peak.count},
          {"peak_operator", each.peak_operator},
          {"operators", each.operators},
          {"flops", each.flops},
          {"recomputed_flops", each.recomputed_flops},
          {"seconds", each.seconds.count()},
          {"forward_seconds", each.forward_seconds.count()},
          {"recompute_seconds", each.recompute_seconds.count()}};
}

void print_estimate_json(const EstimateCommandOptions& options, const EstimatedModel& model,
                         const Estimated& all) {
  nlohmann::json rows = nlohmann::json::array();
  for (const auto& [name, each] : all.strategies) {
    nlohmann::json row = json_of_estimate(each);
    row["strategy"] = name;
    rows.push_back(std::move(row));
  }
  nlohmann::json result = {{"options", describe(options)},
                           {"machine", describe(model.machine())},
                           {"parameters", all.plain.parameter_count},
                           {"plain", json_of_estimate(all.plain)},
                           {"strategies", rows},
                           {"least_budget", json_of(all.least)}};
  if (all.asked) result["budget"] = json_of(*all.asked);
  print_object(result);
}

int estimate(EstimateCommandOptions options) {
  check(options);
  EstimatedModel model(options);
  Estimated all{.plain = model.estimate("none"), .strategies = {}, .least = {}, .asked = {}};
  for (const std::string& name : options.strategies) {
    all.strategies.push_back({name, name == "none" ? all.plain : model.estimate(name)});
  }
  const StepTrace& trace = all.plain.trace;
  all.least = least_budget(trace);
  if (options.budget) {
    all.asked = cost_of_budget(trace, options.budget->of_peak(all.plain.peak));
  }
  if (options.json) {
    print_estimate_json(options, model, all);
  } else {
    print_state(options, model, all.plain);
    print_kinds(options, all.plain);
    print_strategies(all);
    print_budgets(all);
  }
  if (!all.asked || all.asked->slowdown()) return 0;
  print_error_line(fmt::format(
      "reprise estimate: --budget {} is too small: {} are always there, and the least that works "
      "is about {}; raise it, or divide the state with --shards",
      to_string(all.asked->budget), to_string(trace.constants()), to_string(all.least.budget)));
  return kOverBudget;
}

}  // namespace

void add_estimate(CLI::App& program, Chosen& chosen) {
  add_command<EstimateCommandOptions>(
      program, chosen, "estimate",
      "Tell what a model's training step would need, before anything is allocated", estimate);
}

}  // namespace reprise::app
