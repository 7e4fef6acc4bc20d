// Routes made to fit in a budget, by the layers measured in each route (reprise/pgac.h,
// LossyOptions, "Budget").
#pragma once

#include <reprise/chain.h>

#include <array>
#include <functional>
#include <optional>
#include <vector>

#include "influence/fitting.h"
#include "influence/routes.h"

namespace reprise::influence {

// The model's layers as profile_chain() measures them in each Compression.
using RoutedChains = std::array<Chain, 4>;

struct RoutedFit {
  Routes routes;
  Fitted fitted;           // what its mask discards is run again, and exact
  bool may_probe = false;  // whether the layer to be probed may be kept as it is
};

// `routes` is what is wanted; `within_bound` says whether others are right, too.
RoutedFit fit_routes(const RoutedChains& chains, Routes routes,
                     const std::function<bool(const Routes&)>& within_bound, PgacRanking ranking,
                     const std::vector<double>& averages, Bytes budget,
                     std::optional<std::size_t> probed);

}  // namespace reprise::influence
