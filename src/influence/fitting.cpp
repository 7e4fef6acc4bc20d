#include "influence/fitting.h"

#include <reprise/chain.h>
#include <reprise/error.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

namespace reprise::influence {
namespace {

// An output that is watched stays until its gradient has been made, whether or not the next layer
// saves it too. As measured, it is among what its layer saves.
Chain watched(Chain chain) {
  for (std::size_t i = 1; i < chain.stages.size(); ++i) {
    if (chain.stages[i - 1].saves_output) chain.stages[i].needs_input = true;
  }
  return chain;
}

// Stages from the least rank to the highest; the first of equals goes first.
std::vector<std::size_t> by_rank(const std::vector<double>& ranks) {
  std::vector<std::size_t> order(ranks.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return ranks[a] < ranks[b]; });
  return order;
}

void rank_unknown_highest(std::vector<double>& values) {
  double highest = 0;
  for (const double value : values) {
    if (!std::isnan(value)) highest = std::max(highest, value);
  }
  for (double& value : values) {
    if (std::isnan(value)) value = highest > 0 ? 2 * highest : 1;
  }
}

}  // namespace

Fitting::Fitting(Chain chain) : chain_(watched(std::move(chain))), planner_(chain_) {}

Preference Fitting::preference(PgacRanking ranking, const std::vector<double>& averages) const {
  Preference preference;
  for (std::size_t i = 0; i < chain_.stages.size(); ++i) {
    const ChainStage& stage = chain_.stages[i];
    const double seconds = stage.forward.count();
    const double bytes = std::max(1.0, static_cast<double>(stage.saved.count));
    const bool by_influence = ranking != PgacRanking::kCost;
    const bool by_cost = ranking != PgacRanking::kInfluence;
    const double influence = by_influence ? averages[i] : 1;
    preference.ranks.push_back(influence * (by_cost ? seconds / bytes : 1));
    preference.losses.push_back(influence * (by_cost ? seconds : 1));
  }
  rank_unknown_highest(preference.ranks);
  rank_unknown_highest(preference.losses);
  return preference;
}

Fitted Fitting::cost_of(const plan::KeepMask& mask) const {
  const ScheduleCost cost = evaluate(chain_, plan::masked_schedule(chain_, mask));
  return {plan::as_run(mask), cost.peak, cost.time, cost.recompute};
}

// Who gives these bytes has the layers measured anew, and each may come out larger by the bytes of
// some scalars.
Bytes Fitting::named_least() const {
  constexpr std::int64_t kSpread = 256;
  return least() + Bytes(kSpread * std::ssize(chain_.stages));
}

void Fitting::refuse(Bytes budget) const {
  throw BudgetError("Pgac: the budget is " + to_string(budget) + " (" +
                    std::to_string(budget.count) +
                    " bytes), but under every mask the layers need at least " +
                    to_string(named_least()) + " (" + std::to_string(named_least().count) +
                    " bytes); raise the budget, or give smaller layers or batches");
}

Fitted Fitting::fit(const plan::KeepMask& wanted, const Preference& preference,
                    std::optional<Bytes> budget, bool fills) const {
  Fitted fitted = cost_of(wanted);
  if (!budget) return fitted;
  if (*budget < least()) refuse(*budget);
  const std::vector<std::size_t> order = by_rank(preference.ranks);
  for (const std::size_t stage : order) {
    if (fitted.peak <= *budget) break;
    plan::KeepMask mask = fitted.mask;
    mask[stage] = false;
    // At the end of the chain it would be run as kept all the same.
    if (plan::as_run(mask) != fitted.mask) fitted = cost_of(mask);
  }
  if (fitted.peak > *budget) fitted = search(preference.losses, *budget);
  if (!fills) return fitted;
  for (auto stage = order.rbegin(); stage != order.rend(); ++stage) {
    if (fitted.mask[*stage]) continue;
    plan::KeepMask fuller = fitted.mask;
    fuller[*stage] = true;
    Fitted tried = cost_of(fuller);
    tried.by_search = fitted.by_search;
    if (tried.peak <= *budget) fitted = std::move(tried);
  }
  return fitted;
}

Fitted Fitting::search(const std::vector<double>& losses, Bytes budget) const {
  if (budget < least()) refuse(budget);
  Fitted fitted = cost_of(*planner_.cheapest(budget, losses));
  fitted.by_search = true;
  return fitted;
}

Fitted Fitting::fastest(Bytes budget) const {
  return search(preference(PgacRanking::kCost, {}).losses, budget);
}

}  // namespace reprise::influence
