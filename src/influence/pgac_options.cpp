// What a Pgac's options may be.
#include <reprise/error.h>

#include <cmath>
#include <string>

#include "core/block_codes.h"
#include "influence/pgac_impl.h"

namespace reprise {
namespace {

template <class T>
void expect(bool holds, const char* option, const T& value, const std::string& bound) {
  if (holds) return;
  throw UsageError(std::string("Pgac: ") + option + " is " + std::to_string(value) +
                   "; it must be " + bound);
}

void check_gamma(const PgacOptions& options) {
  const GammaSchedule& gamma = options.gamma;
  const bool learns = gamma.kind == GammaSchedule::Kind::kLearned;
  expect(std::isfinite(gamma.first) && gamma.first >= 0 && (gamma.first > 0 || !learns),
         "gamma.first", gamma.first,
         learns ? "a number above 0, from where it is learned" : "a number from 0");
  expect(std::isfinite(gamma.last) && gamma.last >= 0, "gamma.last", gamma.last, "a number from 0");
  const bool changes =
      gamma.kind == GammaSchedule::Kind::kLinear || gamma.kind == GammaSchedule::Kind::kCosine;
  expect(changes || gamma.last == gamma.first, "gamma.last", gamma.last,
         "the same as gamma.first, " + std::to_string(gamma.first) +
             ", for a schedule that does not lead from the one to the other");
  if (gamma.kind != GammaSchedule::Kind::kConstant) {
    expect(options.steps > 0, "steps", options.steps,
           "at least 1, the steps of the training, for a gamma that changes with them");
  }
  if (learns && !options.budget) {
    throw UsageError(
        "Pgac: gamma is learned, but there is no budget, without which to keep all would always be "
        "best; give a budget, or another schedule");
  }
}

void check_search(const PgacOptions& options) {
  if (!options.budget) {
    throw UsageError(
        "Pgac: exact_search is set, but there is no budget that masks would fit; give one");
  }
  const auto refuse = [](const char* other, const char* why) {
    throw UsageError(std::string("Pgac: exact_search and ") + other + " are both set, but " + why +
                     "; leave out one of the two");
  };
  if (options.fill_budget) refuse("fill_budget", "a search leaves no room to be filled");
  if (options.hysteresis > 0) refuse("hysteresis", "with a search no threshold decides");
  if (options.gamma.kind == GammaSchedule::Kind::kLearned) {
    refuse("a learned gamma", "with a search no threshold decides");
  }
  if (options.lossy) refuse("the lossy tier", "its layers are routed by the threshold");
}

void check_lossy(const PgacOptions& options) {
  const LossyOptions& lossy = *options.lossy;
  expect(std::isfinite(lossy.gradient_error) && lossy.gradient_error > 0, "lossy.gradient_error",
         lossy.gradient_error, "above 0");
  expect(lossy.int4_threshold >= 0 && lossy.int4_threshold <= 1, "lossy.int4_threshold",
         lossy.int4_threshold, "from 0 to 1");
  expect(lossy.min_bytes.count >= 0, "lossy.min_bytes", lossy.min_bytes.count, "at least 0 bytes");
  const std::string least = std::to_string(BlockCode::kLeastBlock);
  expect(BlockCode::may_have_blocks_of(lossy.block), "lossy.block", lossy.block,
         "a multiple of " + least + " from " + least + " to " +
             std::to_string(BlockCode::kLargestBlock));
  constexpr std::int64_t kMostBetween = std::int64_t{1} << 32;
  expect(lossy.audit_every >= 1 && lossy.audit_every <= kMostBetween, "lossy.audit_every",
         lossy.audit_every, "from 1 to " + std::to_string(kMostBetween));
  if (options.gamma.kind == GammaSchedule::Kind::kLearned) {
    throw UsageError(
        "Pgac: gamma is learned from the seconds of running layers again, and with the lossy tier "
        "layers below the threshold are not run again; give another schedule, or no lossy tier");
  }
  if (options.fill_budget) {
    throw UsageError(
        "Pgac: fill_budget keeps layers that the threshold discards, and with the lossy tier it "
        "discards none; leave out one of the two");
  }
}

}  // namespace

void influence::check_options(const PgacOptions& options) {
  expect(options.alpha >= 0 && options.alpha < 1, "alpha", options.alpha, "from 0 to below 1");
  expect(options.quantile >= 0 && options.quantile <= 1, "quantile", options.quantile,
         "from 0 to 1");
  expect(options.hysteresis >= 0 && options.hysteresis < 1, "hysteresis", options.hysteresis,
         "from 0 to below 1");
  expect(options.steps >= 0, "steps", options.steps, "at least 0");
  expect(options.steps_between_changes >= 1, "steps_between_changes", options.steps_between_changes,
         "at least 1");
  expect(options.stride >= 1, "stride", options.stride, "at least 1");
  if (options.budget)
    expect(options.budget->count > 0, "budget", options.budget->count, "above 0 bytes");
  if (options.fill_budget && !options.budget) {
    throw UsageError("Pgac: fill_budget is set, but there is no budget to fill; give one");
  }
  if (options.exact_search) check_search(options);
  const bool goes_by_cost =
      options.ranking == PgacRanking::kCost || options.ranking == PgacRanking::kInfluenceTimesCost;
  if (goes_by_cost && !options.budget) {
    throw UsageError(
        "Pgac: a ranking by cost is given, but there is no budget for which layers would be "
        "ranked; give one");
  }
  check_gamma(options);
  if (options.lossy) check_lossy(options);
}

}  // namespace reprise
