#include "plan/step/hindsight.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/clock.h"
#include "plan/step/annealing.h"
#include "plan/step/keep_set.h"
#include "plan/step/next_use_policy.h"

namespace reprise::plan {
namespace {

using Index = StepGraph::Index;

constexpr double kBetas[] = {0.5, 0, 1, 0.25, 0.75};
// A policy drops what it will not read again only when it needs the room, a plan at once: so a
// policy may be given more than the budget.
constexpr double kMostInflation = 1.35, kInflationStep = 1.02;
// What a storage that is to be kept, or made again, counts more or less than by itself.
constexpr double kFactor = 1e4;
// In the logarithm of the price: sets that just fit are worth a close look.
constexpr double kPricesAway[] = {0,   0.01, 0.02, 0.03, 0.05, 0.08, 0.13,
                                  0.2, 0.3,  0.45, 0.7,  1,    1.5};
// Shares of the time.
constexpr double kForPolicies = 0.2, kForCuts = 0.5, kWithoutStore = 0.4;
// Policies are given up there.
constexpr double kMostSlowdown = 10;

class HindsightSearch {
 public:
  HindsightSearch(const StepGraph& graph, const HindsightOptions& options)
      : graph_(graph), options_(options), best_(std::numeric_limits<std::int64_t>::max()) {}

  Hindsight run() {
    consider(GraphPlan(graph_));
    if (graph_.has_store() && !found_.plan) without_store();
    const Index fullest = cost_of(graph_, GraphPlan(graph_)).peak_slot;
    found_.least_nanoseconds =
        least_recompute(graph_, fullest, options_.budget, [this] { return is_over(kForPolicies); });
    // Nothing to decide; a step may also be constants alone.
    if (best_ == 0 || graph_.operators() == 0) return std::move(found_);
    by_policies();
    by_cuts(fullest);
    by_annealing();
    return std::move(found_);
  }

 private:
  bool is_cancelled() const { return options_.is_cancelled && options_.is_cancelled(); }
  bool is_over(double share) const {
    if (is_cancelled()) return true;
    // What the search without a store took is gone.
    return options_.moves == 0 &&
           watch_.elapsed().count() > begin_ + share * (options_.seconds - begin_);
  }

  // So that a store never makes a plan slower.
  void without_store() {
    StepGraph plain = graph_;
    plain.forget_store();
    HindsightOptions options = options_;
    options.seconds *= kWithoutStore;
    if (Hindsight found = HindsightSearch(plain, options).run(); found.plan) {
      consider(*std::move(found.plan));
    }
    begin_ = watch_.elapsed().count();
  }

  void consider(GraphPlan plan) {
    const GraphCost cost = cost_of(graph_, plan);
    if (cost.peak > options_.budget || cost.nanoseconds() >= best_) return;
    best_ = cost.nanoseconds();
    found_.cost = cost;
    found_.plan = std::move(plan);
  }

  void try_policy(double beta, double inflation, Index slot = 0,
                  const std::vector<double>& factors = {}) {
    NextUseOptions options;
    options.budget = std::llround(inflation * static_cast<double>(options_.budget));
    options.beta = beta;
    options.most_nanoseconds = std::min<std::int64_t>(
        best_, std::llround((kMostSlowdown - 1) * static_cast<double>(graph_.nanoseconds())));
    options.slot = slot;
    options.factors = factors;
    options.is_cancelled = options_.is_cancelled;
    if (std::optional<GraphPlan> plan = plan_by_next_use(graph_, options)) {
      consider(*std::move(plan));
    }
  }

  void by_policies() {
    for (double inflation = 1; inflation < kMostInflation; inflation *= kInflationStep) {
      for (const double beta : kBetas) {
        // However little time there is, a plan is better than none.
        const bool is_first = !found_.plan && inflation == 1 && !is_cancelled();
        if (is_over(kForPolicies) && !is_first) return;
        try_policy(beta, inflation);
      }
    }
  }

  // From the price at which what is kept just fits, outward.
  void by_cuts(Index slot) {
    const std::int64_t room = bytes_across(graph_, slot, options_.budget);
    double low = std::log(1e-7), high = std::log(1e4);
    for (int i = 0; i < 24; ++i) {
      if (is_over(kForCuts)) return;
      const double middle = (low + high) / 2;
      (keep_set(graph_, slot, std::exp(middle)).kept_bytes > room ? low : high) = middle;
    }
    for (const double inflation : {1., 1.05}) {
      for (const double away : kPricesAway) {
        for (const double sign : {1., -1.}) {
          if (away > 0 || sign > 0) try_cut(slot, std::exp(high + sign * away), inflation);
          if (is_over(kForCuts)) return;
        }
      }
    }
  }

  void try_cut(Index slot, double price, double inflation) {
    const KeepSet set = keep_set(graph_, slot, price);
    std::vector<double> factors(graph_.storages(), 1);
    for (Index storage = 0; storage < graph_.storages(); ++storage) {
      if (set.kept[storage]) factors[storage] = kFactor;
      if (set.made_again[storage]) factors[storage] = 1 / kFactor;
    }
    for (const double beta : {1., 0.5, 0.}) {
      if (is_over(kForCuts)) return;
      try_policy(beta, inflation, slot, factors);
    }
  }

  void by_annealing() {
    AnnealingOptions options;
    options.budget = options_.budget;
    options.seed = options_.seed;
    options.moves = options_.moves;
    options.is_over = [this] { return is_over(1); };
    if (options_.moves != 0) return consider(anneal(graph_, start(), options));
    // As many moves as there is time for, as told by those before: they are quicker when it is
    // cold, so that some is left.
    constexpr std::int64_t kTrial = 4096;
    constexpr double kMostMoves = 1e15, kWorthIt = 0.02;
    for (options.moves = kTrial;; ++options.seed) {
      const Stopwatch watch;
      consider(anneal(graph_, start(), options));
      const double left = options_.seconds - watch_.elapsed().count();
      if (is_over(1) || left < kWorthIt * options_.seconds) return;
      const double rate = static_cast<double>(options.moves) / watch.elapsed().count();
      options.moves = std::llround(std::clamp(left * rate, 1., kMostMoves));
    }
  }

  // Annealing may come to plans that fit from one that does not.
  GraphPlan start() const { return found_.plan ? *found_.plan : GraphPlan(graph_); }

  const StepGraph& graph_;
  const HindsightOptions& options_;
  const Stopwatch watch_;
  double begin_ = 0;  // of what has its share of the time
  Hindsight found_;
  std::int64_t best_;  // nanoseconds beyond the plain step's
};

}  // namespace

Hindsight plan_with_hindsight(const StepGraph& graph, const HindsightOptions& options) {
  return HindsightSearch(graph, options).run();
}

}  // namespace reprise::plan
