// `reprise advise`: says what makes a model's step fit on a device, in words with figures.
#include <fmt/format.h>
#include <reprise/error.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "apps/cli/commands/advice.h"
#include "apps/cli/commands/commands.h"
#include "apps/cli/commands/estimated_model.h"
#include "apps/cli/commands/least_budget.h"
#include "apps/cli/io/figures.h"
#include "apps/cli/io/streams.h"

namespace reprise::app {

namespace {

struct AdviseOptions : EstimateModelOptions {
  std::optional<std::string> device_bytes;
};

void bind(CLI::App& command, AdviseOptions& options) {
  OptionGroup device(command, "Device");
  device.text("--device-bytes", "B", options.device_bytes,
              "what one device has for tensors: 80GB, 64GiB");
  bind_estimated(command, options);
}

Bytes check(AdviseOptions& options) {
  check_estimated(options);
  if (!options.device_bytes) {
    throw UsageError("no device was described: give its bytes, as --device-bytes 80GB");
  }
  const Bytes bytes = parse_bytes(*options.device_bytes);
  if (bytes > Bytes(0)) return bytes;
  throw UsageError(fmt::format("--device-bytes is '{}': give the bytes that a device has, as 80GB",
                               *options.device_bytes));
}

Bytes state_of(const Estimate& estimate) {
  return estimate.parameters + estimate.buffers + estimate.optimizer_state + estimate.gradients;
}

class Adviser {
 public:
  Adviser(const AdviseOptions& options, Bytes device)
      : options_(options), device_(device), model_(options) {}

  AdviceFigures figures() {
    const Estimate plain = model_.estimate("none");
    AdviceFigures figures{.device = device_,
                          .device_option = *options_.device_bytes,
                          .state = state_of(plain),
                          .plain_peak = plain.peak,
                          .plain_activations = plain.activations,
                          .ways = {},
                          .batch = options_.batch,
                          .shards = options_.shards,
                          .most_shards = kMostEstimated,
                          .largest_batch = {},
                          .least_shards = {},
                          .both = {},
                          .fused_peak = {}};
    for (const std::string& name : estimated_strategies(options_.gpt.layers)) {
      if (name == "none") continue;
      const Estimate each = model_.estimate(name);
      figures.ways.push_back({name, each.peak, each.seconds / plain.seconds, {}});
    }
    if (plain.peak <= device_) return figures;
    add_budget(figures, plain.trace);
    const auto least = std::ranges::min_element(figures.ways, {}, &AdviceFigures::Way::peak);
    if (least->peak > device_) add_ways_out(figures, least->name);
    if (options_.attention == "unfused") add_fused(figures);
    return figures;
  }

  const EstimatedModel& model() const { return model_; }

 private:
  void add_budget(AdviceFigures& figures, const StepTrace& trace) {
    if (trace.floor() > device_) return;
    const BudgetCost cost = cost_of_budget(trace, device_);
    if (const auto slowdown = cost.slowdown()) {
      figures.ways.push_back({"budget", device_, *slowdown, cost.online});
    } else {
      figures.budget_is_unknown = cost.online_is_unknown;
    }
  }

  bool fits(const std::string& strategy, std::int64_t batch, std::int64_t shards) {
    return model_.estimate(strategy, batch, shards).peak <= device_;
  }

  // Fewer sequences need less, so bisection finds the largest number that fits. `works` fits or is
  // 0, and `fails` does not fit.
  std::int64_t largest_batch(const std::string& strategy, std::int64_t shards, std::int64_t works,
                             std::int64_t fails) {
    while (fails - works > 1) {
      const std::int64_t middle = (works + fails) / 2;
      (fits(strategy, middle, shards) ? works : fails) = middle;
    }
    return works;
  }

  // Doubles the number of shards, because machines mostly have a power of two of devices.
  std::optional<std::int64_t> least_shards(const std::string& strategy, std::int64_t batch) {
    int fails = 0, works = 0;
    while (options_.shards << (works + 1) <= kMostEstimated) ++works;
    if (works == 0 || !fits(strategy, batch, options_.shards << works)) return std::nullopt;
    while (works - fails > 1) {
      const int middle = (works + fails) / 2;
      (fits(strategy, batch, options_.shards << middle) ? works : fails) = middle;
    }
    return options_.shards << works;
  }

  void add_ways_out(AdviceFigures& figures, const std::string& strategy) {
    if (figures.state <= device_) {
      const std::int64_t batch = largest_batch(strategy, options_.shards, 0, options_.batch);
      if (batch > 0) figures.largest_batch = batch;
    }
    figures.least_shards = least_shards(strategy, options_.batch);
    if (figures.largest_batch || figures.least_shards || options_.batch == 1) return;
    if (const auto shards = least_shards(strategy, 1)) {
      figures.both = {largest_batch(strategy, *shards, 1, options_.batch), *shards};
    }
  }

  void add_fused(AdviceFigures& figures) {
    EstimateModelOptions fused = options_;
    fused.attention = "fused";
    fused.gpt.fused_attention = true;
    figures.fused_peak = EstimatedModel(fused).estimate("none").peak;
  }

  const AdviseOptions& options_;
  Bytes device_;
  EstimatedModel model_;
};

void print_advice(const EstimatedModel& model, const Advice& advice) {
  print_result(model.facts().text() + "\n");
  for (const std::string& sentence : advice.words) print_result(sentence + "\n");
}

void print_advice_json(const AdviseOptions& options, const AdviceFigures& figures,
                       const Advice& advice) {
  nlohmann::json ways = nlohmann::json::array();
  for (const auto& way : figures.ways) {
    ways.push_back({{"way", way.name},
                    {"peak_bytes", way.peak.count},
                    {"slowdown", way.slowdown},
                    {"fits", way.peak <= figures.device}});
    if (way.unlearnt) ways.back()["slowdown_before_learning"] = *way.unlearnt;
  }
  nlohmann::json result = {{"options", describe(options)},
                           {"device_bytes", figures.device.count},
                           {"state_bytes", figures.state.count},
                           {"plain_peak_bytes", figures.plain_peak.count},
                           {"ways", ways},
                           {"advice", name_of(advice.remedy)},
                           {"way", advice.way},
                           {"words", advice.words}};
  if (figures.largest_batch) result["largest_batch"] = *figures.largest_batch;
  if (figures.least_shards) result["least_shards"] = *figures.least_shards;
  if (figures.both) {
    result["together"] = {{"batch", figures.both->batch}, {"shards", figures.both->shards}};
  }
  if (figures.fused_peak) result["fused_peak_bytes"] = figures.fused_peak->count;
  print_object(result);
}

int advise(AdviseOptions options) {
  Adviser adviser(options, check(options));
  const AdviceFigures figures = adviser.figures();
  const Advice advice = advise_on(figures);
  options.json ? print_advice_json(options, figures, advice)
               : print_advice(adviser.model(), advice);
  return 0;
}

}  // namespace

void add_advise(CLI::App& program, Chosen& chosen) {
  add_command<AdviseOptions>(program, chosen, "advise",
                             "Say what makes a model's training step fit on a device, with figures",
                             advise);
}

}  // namespace reprise::app
