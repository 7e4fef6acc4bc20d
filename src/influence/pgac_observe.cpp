// What an observed step leads to: scores, averages, a threshold, the next mask.
#include <reprise/error.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "core/lane_noise.h"
#include "influence/pgac_impl.h"

namespace reprise {
namespace {

constexpr double kNoScore = std::numeric_limits<double>::quiet_NaN();

}  // namespace

double Pgac::Impl::gamma_at(double fraction) const {
  const GammaSchedule& schedule = options.gamma;
  const double way = schedule.last - schedule.first;
  switch (schedule.kind) {
    case GammaSchedule::Kind::kConstant:
      return schedule.first;
    case GammaSchedule::Kind::kLinear:
      return schedule.first + way * fraction;
    case GammaSchedule::Kind::kCosine:
      return schedule.first + way * (1 - std::cos(M_PI * fraction)) / 2;
    case GammaSchedule::Kind::kLearned:
      return gamma.at(fraction);
  }
  return schedule.first;
}

// What a factor would cost: the seconds of the mask that it leads to, beside those of keeping all.
void Pgac::Impl::learn_gamma(double fraction, double quantile,
                             const std::vector<double>& combined) {
  const influence::Fitting& fitting = current->fitting;
  const influence::Preference preference = fitting.preference(options.ranking, combined);
  const double plain = (fitting.chain().forward() + fitting.chain().backward()).count();
  gamma.learn(fraction, [&](double factor) {
    const auto mask = influence::mask_of(combined, factor * quantile, wanted, options.hysteresis);
    return fitting.fit(mask, preference, options.budget, options.fill_budget).time.count() / plain;
  });
}

void Pgac::Impl::take_scores() {
  report.scores.assign(found.size(), kNoScore);
  report.error = 0;
  for (const InfluenceScore& score : meter->take()) {
    report.not_finite += score.not_finite;
    report.changed += score.changed;
    const auto layer = static_cast<std::size_t>(score.layer);
    if (score.gradients == 0 || layer >= found.size()) continue;
    report.scores[layer] = score.value;
    report.error = std::max(report.error, score.error);
  }
}

std::vector<double> Pgac::Impl::ranked_scores() const {
  if (options.ranking != PgacRanking::kRandom) return report.scores;
  std::vector<double> drawn;
  for (std::uint64_t i = 0; i < found.size(); ++i) {
    // 53 bits, and never zero.
    const std::uint64_t bits = substream(mixed(options.seed), i) >> 11;
    drawn.push_back(std::ldexp(static_cast<double>(bits + 1), -53));
  }
  return drawn;
}

void Pgac::Impl::combine(std::vector<double>& values) const {
  const std::size_t count = values.size();
  options.combine(values);
  if (values.size() != count) {
    throw UsageError("Pgac::observe: options.combine left " + std::to_string(values.size()) +
                     " averages of " + std::to_string(count) + "; it must keep one for each layer");
  }
}

void Pgac::Impl::observe(std::int64_t step) {
  if (found.empty()) {
    throw UsageError("Pgac::observe: no step has been run; call run() first");
  }
  const bool goes_by_steps = options.gamma.kind != GammaSchedule::Kind::kConstant;
  if (step < 0 || (goes_by_steps && step > options.steps)) {
    throw UsageError("Pgac::observe: the step is " + std::to_string(step) + "; it must be from 0" +
                     (goes_by_steps ? " to options.steps, " + std::to_string(options.steps) : ""));
  }
  take_scores();
  influence::Decision next = influence::averaged(averages, ranked_scores(), options);
  averages = next.averages;
  if (options.combine) {
    combine(next.averages);
    if (options.follow_pseudocode) {
      combine(next.considered);
    } else {
      next.considered = next.averages;
    }
  }
  const double fraction =
      options.steps > 0 ? static_cast<double>(step) / static_cast<double>(options.steps) : 0;
  const double quantile = influence::quantile_of(next.considered, options.quantile);
  if (options.gamma.kind == GammaSchedule::Kind::kLearned && !std::isnan(quantile) &&
      current != nullptr) {
    learn_gamma(fraction, quantile, next.averages);
  }
  report.step = step;
  report.gamma = gamma_at(fraction);
  report.threshold = report.gamma * quantile;
  if (lossy) lossy->end_step(report.scores, report);
  since_change = std::min(since_change + 1, options.steps_between_changes);
  const bool changed = decide(quantile, next.averages);
  if (!lossy || std::isnan(quantile)) return;
  // What is known of the noise is new in each step.
  lossy->choose(wanted, decided, report.threshold);
  if (!changed) ++decision;
}

bool Pgac::Impl::decide(double quantile, const std::vector<double>& combined) {
  const bool may_change = since_change >= options.steps_between_changes;
  if (std::isnan(quantile) || !(may_change || is_set)) return false;
  std::vector<bool> mask =
      influence::mask_of(combined, report.threshold, wanted, options.hysteresis);
  // What a search comes to may be new whenever averages are.
  if (mask != wanted || options.exact_search) since_change = 0;
  wanted = std::move(mask);
  decided = combined;
  is_set = false;
  ++decision;
  return true;
}

}  // namespace reprise
