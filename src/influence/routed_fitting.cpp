#include "influence/routed_fitting.h"

#include <reprise/chain.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "plan/chain/schedule_builder.h"

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
  return evaluate(chain, plan::masked_schedule(chain, all)).peak <= budget;
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

Bytes audit_peak_of(Chain chain) {
  const std::int64_t count = std::ssize(chain.stages);
  std::int64_t gradients = 0;
  Bytes input = chain.input_gradient;
  for (ChainStage& stage : chain.stages) {
    gradients += stage.parameter_gradients.count;
    // Beside its values, of which backward keeps none as yet: what it makes of them on the way, as
    // much again with noise; its gradients twice, how far they are apart, in double precision, and
    // two gradients of its result.
    const std::int64_t own = stage.parameter_gradients.count + input.count;
    stage.backward_temporaries = stage.backward_temporaries + stage.forward_temporaries +
                                 stage.output + stage.saved +
                                 Bytes(5 * own + 2 * stage.output_gradient.count);
    input = stage.output_gradient;
  }
  plan::ScheduleBuilder builder;
  // The last one too is run again, which never takes more than to keep it.
  for (std::int64_t i = 0; i + 1 < count; ++i) builder.advance({i, i + 1});
  for (std::int64_t i = count; i-- > 0;) {
    builder.keep({i, i + 1});
    builder.backward({i, i + 1});
  }
  return evaluate(chain, builder.take(chain)).peak + Bytes(2 * gradients);
}

}  // namespace

RoutedFit fit_routes(const RoutedChains& chains, Routes routes,
                     const std::function<bool(const Routes&)>& within_bound, PgacRanking ranking,
                     const std::vector<double>& averages, Bytes budget) {
  const Fitting exact(chains[index_of(Compression::kExact)]);
  const Preference preference = exact.preference(ranking, averages);
  RoutedFit fit;
  fit.exact = exact.fit(plan::KeepMask(routes.size(), true), preference, budget, false);
  fit.audit_peak = audit_peak_of(exact.chain());
  fit.may_audit = fit.audit_peak <= budget;
  fit.fitted = fit.exact;
  fit.routes.assign(routes.size(), Compression::kExact);
  if (!fit.may_audit) return fit;
  fit.routes = in_fewer_bits(chains, std::move(routes), within_bound, preference.ranks, budget);
  plan::KeepMask mask(fit.routes.size(), true);
  // What is run again is exact then, which takes more: until no more goes.
  while (true) {
    const Fitting fitting = fitting_of(chains, fit.routes);
    if (fitting.least() > budget) {
      // Layers that are read from fewer bits take more at once in their backward.
      fit.routes.assign(mask.size(), Compression::kExact);
      fit.fitted = fit.exact;
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
  return fit;
}

}  // namespace reprise::influence
