#include "apps/cli/commands/advice.h"

#include <fmt/format.h>

#include <algorithm>

namespace reprise::app {

namespace {

// A peak below this part of the plain step's is worth a sentence.
constexpr double kWorthNaming = 0.95;

std::string extra_time(double slowdown) { return fmt::format("{:.1f} %", 100 * (slowdown - 1)); }

// Returns the way and its effect, as a part of a sentence.
std::string told(const AdviceFigures& figures, const AdviceFigures::Way& way) {
  if (way.name != "budget") {
    return fmt::format("--strategy {}: it peaks at {} of {}, for {} more time", way.name,
                       to_string(way.peak), to_string(figures.device), extra_time(way.slowdown));
  }
  return fmt::format(
      "a byte budget (--budget {}): {} more time once it has learned the step, {}",
      figures.device_option, extra_time(way.slowdown),
      way.unlearnt ? extra_time(*way.unlearnt) + " before" : "and it may not fit before");
}

const AdviceFigures::Way* fastest_that_fits(const AdviceFigures& figures) {
  const AdviceFigures::Way* best = nullptr;
  for (const auto& way : figures.ways) {
    if (way.peak > figures.device) continue;
    if (best == nullptr || way.slowdown < best->slowdown) best = &way;
  }
  return best;
}

const AdviceFigures::Way& cheapest_in_time(const AdviceFigures& figures) {
  return *std::ranges::min_element(figures.ways, {}, &AdviceFigures::Way::slowdown);
}

const AdviceFigures::Way& least_of(const AdviceFigures& figures) {
  return *std::ranges::min_element(figures.ways, {}, &AdviceFigures::Way::peak);
}

Advice leave_off(const AdviceFigures& figures) {
  Advice advice{.remedy = Remedy::kOff, .way = "none", .words = {}};
  advice.words.push_back(
      fmt::format("Leave checkpointing off: the plain step peaks at {}, and the device has {}.",
                  to_string(figures.plain_peak), to_string(figures.device)));
  if (!figures.ways.empty()) {
    const auto& way = cheapest_in_time(figures);
    advice.words.push_back(fmt::format(
        "Even the fastest way, {}, would take {} more time for memory that is not needed.",
        way.name, extra_time(way.slowdown)));
  }
  return advice;
}

std::string fits_together(const AdviceFigures& figures) {
  return fmt::format("With --batch {} in place of {} and --shards {} it fits, under --strategy {}.",
                     figures.both->batch, figures.batch, figures.both->shards,
                     least_of(figures).name);
}

Advice divide_state(const AdviceFigures& figures) {
  Advice advice;
  advice.words.push_back(fmt::format(
      "Divide the state: parameters, gradients and optimizer state are {} of the device's {}, and "
      "checkpointing frees none of them.",
      to_string(figures.state), to_string(figures.device)));
  if (figures.least_shards) {
    advice.remedy = Remedy::kShards;
    advice.way = least_of(figures).name;
    advice.words.push_back(fmt::format("With --shards {} a step fits, under --strategy {}.",
                                       *figures.least_shards, advice.way));
  } else if (figures.both) {
    advice.remedy = Remedy::kBoth;
    advice.way = least_of(figures).name;
    advice.words.push_back(fits_together(figures));
  } else {
    advice.words.push_back(
        fmt::format("Up to {} shards, no number of them makes a step of even one sequence fit: use "
                    "a smaller --context as well.",
                    figures.most_shards));
  }
  return advice;
}

Advice take(const AdviceFigures& figures, const AdviceFigures::Way& way) {
  Advice advice{.remedy = way.name == "budget" ? Remedy::kBudget : Remedy::kStrategy,
                .way = way.name,
                .words = {}};
  advice.words.push_back(fmt::format("Use {}.", told(figures, way)));
  advice.words.push_back(fmt::format("The plain step would need {}, of which {} are activations.",
                                     to_string(figures.plain_peak),
                                     to_string(figures.plain_activations)));
  for (const auto& other : figures.ways) {
    if (&other == &way || other.peak > figures.device) continue;
    advice.words.push_back(fmt::format("Or {}.", told(figures, other)));
  }
  return advice;
}

Advice fuse(const AdviceFigures& figures) {
  Advice advice{.remedy = Remedy::kFusedAttention, .way = "", .words = {}};
  advice.words.push_back(fmt::format(
      "Use --attention fused: it never keeps the attention weights, so that the plain step peaks "
      "at {} of {} in place of {}, and nothing is recomputed.",
      to_string(*figures.fused_peak), to_string(figures.device), to_string(figures.plain_peak)));
  if (const AdviceFigures::Way* const way = fastest_that_fits(figures)) {
    advice.words.push_back(fmt::format("Without it, use {}.", told(figures, *way)));
  }
  return advice;
}

Advice make_smaller(const AdviceFigures& figures) {
  Advice advice;
  std::string least = "no way was estimated";
  if (!figures.ways.empty()) {
    const auto& way = least_of(figures);
    least = fmt::format("{}, the way of least memory, peaks at {}", way.name, to_string(way.peak));
    if (figures.largest_batch || figures.least_shards || figures.both) advice.way = way.name;
  }
  least += fmt::format(" of the device's {}.", to_string(figures.device));
  if (figures.largest_batch) {
    advice.remedy = Remedy::kSmallerBatch;
    advice.words.push_back(fmt::format(
        "Use a smaller batch: {} With --batch {} in place of {} it fits, under --strategy {}.",
        least, *figures.largest_batch, figures.batch, advice.way));
  }
  if (figures.least_shards) {
    if (!figures.largest_batch) advice.remedy = Remedy::kShards;
    advice.words.push_back(fmt::format(
        "{} with --shards {} it fits, under --strategy {}.",
        figures.largest_batch ? "Or divide the state further:"
                              : fmt::format("Divide the state further: {} Then,", least),
        *figures.least_shards, advice.way));
  }
  if (advice.words.empty() && figures.both) {
    advice.remedy = Remedy::kBoth;
    advice.words.push_back(
        fmt::format("Use a smaller batch and divide the state further: {}", least));
    advice.words.push_back(fits_together(figures));
  }
  if (advice.words.empty()) {
    advice.words.push_back(
        fmt::format("Nothing fits: {} Nor does one sequence, with up to {} shards. Shorten "
                    "--context, or divide the sequence or the layers among devices.",
                    least, figures.most_shards));
  }
  return advice;
}

}  // namespace

const char* name_of(Remedy remedy) {
  switch (remedy) {
    case Remedy::kOff:
      return "off";
    case Remedy::kFusedAttention:
      return "fused attention";
    case Remedy::kStrategy:
      return "strategy";
    case Remedy::kBudget:
      return "budget";
    case Remedy::kShards:
      return "shards";
    case Remedy::kSmallerBatch:
      return "smaller batch";
    case Remedy::kBoth:
      return "smaller batch and shards";
    case Remedy::kNone:
      break;
  }
  return "none";
}

Advice advise_on(const AdviceFigures& figures) {
  if (figures.plain_peak <= figures.device) return leave_off(figures);
  if (figures.state > figures.device) return divide_state(figures);
  if (figures.fused_peak && *figures.fused_peak <= figures.device) return fuse(figures);
  const AdviceFigures::Way* const way = fastest_that_fits(figures);
  Advice advice = way != nullptr ? take(figures, *way) : make_smaller(figures);
  if (figures.fused_peak && static_cast<double>(figures.fused_peak->count) <
                                kWorthNaming * static_cast<double>(figures.plain_peak.count)) {
    advice.words.push_back(fmt::format(
        "--attention fused needs no recomputation for the attention weights: its plain step peaks "
        "at {}.",
        to_string(*figures.fused_peak)));
  }
  if (figures.budget_is_unknown) {
    advice.words.push_back(
        "Whether a byte budget fits is not known: the step has too many operators to see in time.");
  }
  return advice;
}

}  // namespace reprise::app
