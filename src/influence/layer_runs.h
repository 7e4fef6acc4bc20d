// How a model's layers are run under a mask: those that are kept by themselves, neighbours that are
// not as one region, and each one's output watched.
#pragma once

#include <reprise/experimental/pgac.h>

#include <functional>
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

// A plain run, which finds out which layers are one: see pgac.h.
FoundLayers run_and_find(const detail::Layers& layers, const at::Tensor& input, const Meter& meter);

// How layers that are kept are run, other than by themselves.
class KeptRunner {
 public:
  virtual ~KeptRunner() = default;
  // What `call` makes of the input. `watch`, to be called once before it, watches the input, which
  // is saved for that in the way that is in force then.
  virtual at::Tensor run(std::size_t layer, const TensorFunction& call,
                         const std::function<void()>& watch, const at::Tensor& input) = 0;
};

// `keep`: of each of `found`. `runner`: for those that are kept; null: by themselves.
at::Tensor run_masked(const detail::Layers& layers, const std::vector<PgacLayer>& found,
                      const std::vector<bool>& keep, const at::Tensor& input, const Meter& meter,
                      KeptRunner* runner = nullptr);

// The layers with each one's output watched, as profile_chain() is to measure them.
detail::Layers watched(detail::Layers layers, const Meter& meter);
// The same as a runner runs them: with each one's input watched, and the last one's output.
// `around` makes what is in force while a layer runs.
detail::Layers watched_by_readers(detail::Layers layers, const Meter& meter,
                                  const std::function<std::shared_ptr<void>(std::size_t)>& around);

}  // namespace reprise::influence
