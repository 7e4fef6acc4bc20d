// A mask made to fit in a budget, by the measured layers (pgac.h, "The budget").
#pragma once

#include <reprise/bytes.h>
#include <reprise/chain.h>
#include <reprise/experimental/pgac.h>

#include <optional>
#include <vector>

#include "plan/chain/mask_planner.h"

namespace reprise::influence {

struct Fitted {
  plan::KeepMask mask;  // as it is run
  Bytes peak;
  Seconds time{}, recompute{};
  bool by_search = false;
};

// What speaks against discarding each layer.
struct Preference {
  std::vector<double> ranks;   // the layer with the least goes first
  std::vector<double> losses;  // by discarding it, to be summed
};

// What a model's layers take with inputs of one shape.
class Fitting {
 public:
  // `chain` as profile_chain() measures layers whose outputs are watched.
  explicit Fitting(Chain chain);

  const Chain& chain() const { return chain_; }
  Bytes least() const { return planner_.least(); }

  // By the ranking, from the moving averages, NaN where there is none. Layers without an average
  // rank above all others.
  Preference preference(PgacRanking ranking, const std::vector<double>& averages) const;

  // `wanted` itself where it fits and nothing is to be filled. Throws BudgetError.
  Fitted fit(const plan::KeepMask& wanted, const Preference& preference,
             std::optional<Bytes> budget, bool fills) const;
  // Of the masks that fit the one that discards the least sum of losses. Throws BudgetError.
  Fitted search(const std::vector<double>& losses, Bytes budget) const;
  // That with the least seconds.
  Fitted fastest(Bytes budget) const;

 private:
  Fitted cost_of(const plan::KeepMask& mask) const;
  Bytes named_least() const;
  [[noreturn]] void refuse(Bytes budget) const;

  Chain chain_;
  plan::MaskPlanner planner_;
};

}  // namespace reprise::influence
