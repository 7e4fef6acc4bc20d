// Routes made to fit in a budget, by the layers measured in each route (docs/pgac.md,
// "Cost").
#pragma once

#include <reprise/chain.h>

#include <array>
#include <functional>
#include <vector>

#include "influence/fitting.h"
#include "influence/routes.h"

namespace reprise::influence {

// The model's layers as profile_chain() measures them in each Compression.
using RoutedChains = std::array<Chain, 4>;

struct RoutedFit {
  Routes routes;
  Fitted fitted;  // what its mask discards is run again, and exact
  Fitted exact;   // of a step without the tier
  // Of a step that audits: layers are run again one by one, a layer's values are there twice, its
  // gradients five times, and all parameters' gradients twice more.
  Bytes audit_peak;
  bool may_audit = false;
};

// `routes` is what is wanted; `within_bound` says whether others are right, too. Where a step that
// audits does not fit, all is exact.
RoutedFit fit_routes(const RoutedChains& chains, Routes routes,
                     const std::function<bool(const Routes&)>& within_bound, PgacRanking ranking,
                     const std::vector<double>& averages, Bytes budget);

}  // namespace reprise::influence
