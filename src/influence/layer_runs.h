// How a model's layers are run under a mask: those that are kept by themselves, neighbours that are
// not as one region, and each one's output watched.
#pragma once

#include <reprise/influence.h>
#include <reprise/pgac.h>

#include <memory>
#include <vector>

namespace reprise::influence {

using Meter = std::shared_ptr<const InfluenceMeter>;

struct FoundLayers {
  std::vector<PgacLayer> layers;
  // The first one writes to the model's input, from which no region could run it again.
  bool first_writes_input = false;
  at::Tensor result;
};

// A plain run, which finds out which layers are one: see reprise/pgac.h.
FoundLayers run_and_find(const detail::Layers& layers, const at::Tensor& input, const Meter& meter);

// `keep`: of each of `found`.
at::Tensor run_masked(const detail::Layers& layers, const std::vector<PgacLayer>& found,
                      const std::vector<bool>& keep, const at::Tensor& input, const Meter& meter);

// The layers with each one's output watched, as profile_chain() is to measure them.
detail::Layers watched(detail::Layers layers, const Meter& meter);

}  // namespace reprise::influence
