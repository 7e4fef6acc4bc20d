// Scores that come in while backward runs, summed until somebody takes them: those of layers that
// are watched, and those of a budget's values.
#pragma once

#include <ATen/core/Tensor.h>
#include <reprise/experimental/pgac.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "influence/score.h"
#include "libtorch/memory/transfer_engine.h"

namespace reprise::influence {

// Whether a score can be made of such a tensor at all.
bool can_be_scored(const at::Tensor& tensor);

// add() and note_...() on several threads at once, also beside take() or clear(), of which one at a
// time.
class Collection {
 public:
  // Of two tensors of one shape, device and type for which can_be_scored(), which have their bytes.
  void add(std::int64_t layer, const at::Tensor& gradient, const at::Tensor& activation,
           std::int64_t stride);
  void note_changed(std::int64_t layer);
  void note_missed(std::int64_t layer);

  // As InfluenceMeter::take() and clear().
  std::vector<InfluenceScore> take();
  void clear();

 private:
  // What came for a layer since the last take().
  struct Collected {
    SquareSum squares;
    at::Tensor on_device;  // sums of squares that have not been read
    std::int64_t gradients = 0, not_finite = 0, changed = 0, missed = 0;
  };
  using ByLayer = std::map<std::int64_t, Collected>;
  // Sums on their way from an accelerator.
  struct Underway {
    ByLayer layers;
    std::map<std::int64_t, at::Tensor> on_host;
    std::vector<std::unique_ptr<libtorch::DeviceEvent>> arrivals;
  };

  static InfluenceScore score_of(std::int64_t layer, const Collected& collected);
  static void send_to_host(Underway& underway);
  static void read_from_host(Underway& underway, ByLayer& layers);
  void add(std::int64_t layer, const SquareSum& squares);
  ByLayer exchange_layers();

  std::mutex mutex_;  // protects what follows from backward's threads
  ByLayer layers_;
  std::optional<Underway> underway_;
};

}  // namespace reprise::influence
