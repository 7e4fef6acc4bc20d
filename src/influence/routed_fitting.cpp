#include "influence/routed_fitting.h"

#include <reprise/schedule.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace reprise::influence {
namespace {

std::size_t index_of(Compression route) { return static_cast<std::size_t>(route); }

Chain routed(const RoutedChains& chains, const Routes& routes) {
  Chain chain = chains[index_of(Compression::kExact)];
  for (std::size_t i = 0; i < routes.size(); ++i) {
    chain.stages[i] = chains[index_of(routes[i])].stages[i];
  }
  return chain;
}

Fitting fitting_of(const RoutedChains& chains, const Routes& routes) {
  return Fitting(routed(chains, routes));
}

bool all_fit(const RoutedChains& chains, const Routes& routes, Bytes budget) {
  const plan::KeepMask all(routes.size(), true);
  const Chain chain = routed(chains, routes);
  return check(chain, plan::masked_schedule(chain, all)).peak <= budget;
}

// Fewer bits for those of least rank, from one step to the next.
Routes in_fewer_bits(const RoutedChains& chains, Routes routes,
                     const std::function<bool(const Routes&)>& within_bound,
                     const std::vector<double>& ranks, Bytes budget) {
  std::vector<std::size_t> order(ranks.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return ranks[a] < ranks[b]; });
  for (const Compression route : {Compression::kInt8, Compression::kInt4}) {
    for (const std::size_t i : order) {
      if (all_fit(chains, routes, budget)) return routes;
      if (routes[i] >= route) continue;
      Routes fewer = routes;
      fewer[i] = route;
      if (within_bound(fewer)) routes = std::move(fewer);
    }
  }
  return routes;
}

// What a probe of that layer takes beside: its result until backward has come to it; then its
// values with noise, and gradients in three forms.
Chain with_probe(Chain chain, std::size_t probed) {
  ChainStage& stage = chain.stages[probed];
  if (!std::exchange(stage.saves_output, true)) stage.saved += stage.output;
  const Bytes input = probed > 0 ? chain.stages[probed - 1].output_gradient : chain.input_gradient;
  const Bytes gradients = stage.parameter_gradients + stage.output_gradient + input;
  stage.backward_temporaries =
      stage.backward_temporaries + stage.saved + stage.saved + Bytes(4 * gradients.count);
  return chain;
}

}  // namespace

RoutedFit fit_routes(const RoutedChains& chains, Routes routes,
                     const std::function<bool(const Routes&)>& within_bound, PgacRanking ranking,
                     const std::vector<double>& averages, Bytes budget,
                     std::optional<std::size_t> probed) {
  const Fitting exact(chains[index_of(Compression::kExact)]);
  const Preference preference = exact.preference(ranking, averages);
  RoutedFit fit{
      in_fewer_bits(chains, std::move(routes), within_bound, preference.ranks, budget), {}, false};
  plan::KeepMask mask(fit.routes.size(), true);
  // What is run again is exact then, which takes more: until no more goes.
  while (true) {
    const Fitting fitting = fitting_of(chains, fit.routes);
    if (fitting.least() > budget) {
      // Layers that are read from fewer bits take more at once in their backward.
      fit.routes.assign(mask.size(), Compression::kExact);
      fit.fitted = exact.fit(plan::KeepMask(mask.size(), true), preference, budget, false);
      break;
    }
    fit.fitted = fitting.fit(mask, preference, budget, false);
    bool is_new = false;
    for (std::size_t i = 0; i < mask.size(); ++i) {
      if (fit.fitted.mask[i] || fit.routes[i] == Compression::kExact) continue;
      fit.routes[i] = Compression::kExact;
      is_new = true;
    }
    if (!is_new) break;
    mask = fit.fitted.mask;
  }
  if (probed && fit.fitted.mask[*probed]) {
    Routes routes_then = fit.routes;
    routes_then[*probed] = Compression::kExact;
    const Chain chain = with_probe(routed(chains, routes_then), *probed);
    const Bytes peak = check(chain, plan::masked_schedule(chain, fit.fitted.mask)).peak;
    fit.may_probe = peak <= budget;
    if (fit.may_probe) fit.fitted.peak = std::max(fit.fitted.peak, peak);
  }
  return fit;
}

}  // namespace reprise::influence
