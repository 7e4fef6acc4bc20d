#include "apps/cli/experiment/findings_claims.h"

#include <fmt/format.h>

namespace reprise::app {

namespace {

using ModelRuns = std::vector<const RunFile*>;

struct Gain {
  const char* claim;
  const char* expected;
  const char* baseline;
  Quantity quantity;
  const char* name;  // of the quantity
  double direction;  // of a change that is a gain: 1 for more, -1 for less
  double least;      // of the gain, for the claim to hold
  bool at_same_memory;
};

constexpr Gain kGains[] = {
    {"recomputes for less time than static checkpointing (`uniform`)", "15 to 30 % less", "uniform",
     recompute_milliseconds_of, "time of recomputation", -1, 0.15, false},
    {"recomputes for less time than `dtr`", "10 to 20 % less", "dtr", recompute_milliseconds_of,
     "time of recomputation", -1, 0.10, false},
    {"more throughput in the same memory, beside `uniform`", "10 to 25 % more", "uniform",
     units_a_second_of, "throughput", 1, 0.10, true},
    {"less energy, beside `uniform`", "10 to 15 % less", "uniform", joules_of, "energy", -1, 0.10,
     false}};

// Of validation, either side.
constexpr double kSameQuality = 0.005;

std::string in_percent(double part) { return fmt::format("{:.1f} %", 100 * part); }

// Why there is nothing to judge by; empty if there is.
std::string lack_of(const ModelRuns& ours, const ModelRuns& theirs, const std::string& method,
                    const char* baseline, const PairedFigures& pairs, const char* name) {
  if (ours.empty()) return fmt::format("no run of `{}` was completed", method);
  if (theirs.empty()) return fmt::format("no run of `{}` was completed", baseline);
  if (pairs.ours.empty()) return fmt::format("{} was not measured in both with one seed", name);
  if (pairs.ours.size() == 1) return "one seed in common gives no interval";
  for (const double figure : pairs.theirs) {
    if (figure == 0) return fmt::format("the {} of `{}` is zero", name, baseline);
  }
  return "";
}

// The first that took more than its budget; empty if none did.
std::string beyond_budget(const ModelRuns& runs) {
  for (const RunFile* run : runs) {
    if (run->budget && peak_bytes_of(*run) > static_cast<double>(run->budget->count)) {
      return run->method;
    }
  }
  return "";
}

OverSeeds times(OverSeeds change, double direction) {
  if (direction > 0) return change;
  change.mean = -change.mean;
  if (change.interval) change.interval = Interval{-change.interval->high, -change.interval->low};
  return change;
}

Expectation judge(const Gain& gain, const ModelRuns& ours, const ModelRuns& theirs,
                  const std::string& method) {
  Expectation result{gain.claim, gain.expected, {}, FindingsVerdict::kNotMeasurable, ""};
  const PairedFigures pairs = paired(ours, theirs, gain.quantity);
  result.reason = lack_of(ours, theirs, method, gain.baseline, pairs, gain.name);
  if (!result.reason.empty()) return result;
  result.measured = times(change_of(pairs), gain.direction);
  if (gain.at_same_memory) {
    const std::string own = beyond_budget(ours);
    const std::string beyond = own.empty() ? beyond_budget(theirs) : own;
    if (!beyond.empty()) {
      result.reason = fmt::format("not the same memory: `{}` took more than its budget", beyond);
      return result;
    }
  }
  const Interval& interval = *result.measured.interval;
  const std::string least = in_percent(gain.least);
  if (interval.low >= gain.least) {
    result.verdict = FindingsVerdict::kHolds;
    result.reason = fmt::format("the whole interval is at or above {}", least);
  } else if (interval.high < gain.least) {
    result.verdict = FindingsVerdict::kRefuted;
    result.reason = fmt::format("the whole interval is below {}", least);
  } else {
    result.verdict = FindingsVerdict::kNotSettled;
    result.reason = fmt::format("the interval begins below {}", least);
  }
  return result;
}

Expectation judge_quality(const ModelRuns& ours, const ModelRuns& theirs,
                          const std::string& method) {
  Expectation result{"the same accuracy or perplexity as without checkpointing (`none`)",
                     "less than 0.5 % apart",
                     {},
                     FindingsVerdict::kNotMeasurable,
                     ""};
  const PairedFigures accuracies = paired(ours, theirs, accuracy_of);
  const bool has_accuracy = !accuracies.ours.empty();
  const PairedFigures pairs = has_accuracy ? accuracies : paired(ours, theirs, perplexity_of);
  const char* name = has_accuracy ? "accuracy" : "perplexity";
  result.reason = lack_of(ours, theirs, method, "none", pairs, name);
  if (!result.reason.empty()) return result;
  result.measured = change_of(pairs);
  const Interval& interval = *result.measured.interval;
  const bool holds = interval.low > -kSameQuality && interval.high < kSameQuality;
  const bool is_outside = interval.low >= kSameQuality || interval.high <= -kSameQuality;
  result.verdict = holds        ? FindingsVerdict::kHolds
                   : is_outside ? FindingsVerdict::kRefuted
                                : FindingsVerdict::kNotSettled;
  result.reason = fmt::format("{}: {} {} of zero", name,
                              holds        ? "the whole interval is within"
                              : is_outside ? "the whole interval is beyond"
                                           : "the interval reaches beyond",
                              in_percent(kSameQuality));
  return result;
}

}  // namespace

std::string_view text_of(FindingsVerdict verdict) {
  switch (verdict) {
    case FindingsVerdict::kHolds:
      return "holds";
    case FindingsVerdict::kRefuted:
      return "refuted";
    case FindingsVerdict::kNotSettled:
      return "not settled";
    case FindingsVerdict::kNotMeasurable:
      break;
  }
  return "not measurable here";
}

const std::string_view kVerdictRule =
    "The measured figure is the mean over seeds of the change relative to the baseline's run "
    "with the same seed, with its 95 % interval by Student's t; a positive one is a gain, and "
    "for accuracy and perplexity just more. An expectation *holds* if the whole interval is at "
    "or beyond the lower end of what was expected (for accuracy and perplexity: within 0.5 % on "
    "both sides). It is *refuted* if the whole interval is outside of that, and *not settled* if "
    "the interval reaches into it. It is *not measurable here* if a run or a figure is missing, if "
    "there are fewer than two seeds in common, or, where the same memory is asked "
    "for, if either took more than its budget, which is the same for all.";

std::vector<Expectation> expectations_of(const Runs& runs, const std::string& model,
                                         const std::string& method) {
  const ModelRuns ours = runs.of(model, method);
  std::vector<Expectation> all;
  for (const Gain& gain : kGains) {
    all.push_back(judge(gain, ours, runs.of(model, gain.baseline), method));
  }
  all.insert(all.end() - 1, judge_quality(ours, runs.of(model, "none"), method));
  return all;
}

}  // namespace reprise::app
