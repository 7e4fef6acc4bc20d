// The arithmetic of the lossy tier (pgac.h, LossyOptions): which layer is kept in how many
// bits, and what that does to the gradients.
#pragma once

#include <reprise/store.h>

#include <cstddef>
#include <vector>

namespace reprise::influence {

using Routes = std::vector<Compression>;

// What is known of a layer.
struct LayerNoise {
  static constexpr double kUnknown = -1;

  // CompressionResult::spread, summed over the values that it parks; kUnknown before the first.
  double spread = kUnknown;
  double values = 1;  // how many these are
  // The most that noise of n in its values adds to the square of the relative error of the step's
  // gradients, divided by n (Sensitivities::limit); kUnknown: nothing is known, or nothing to rely
  // on.
  double sensitivity = kUnknown;

  // A layer of which this is not known is kept as it is.
  bool is_known() const { return spread != kUnknown && sensitivity != kUnknown; }
  bool operator==(const LayerNoise&) const = default;
};

// The compression that leads to a form; kExact for those that change nothing.
Compression route_of(CompressedForm form);

// n of a layer in that route.
double noise_of(const LayerNoise& layer, Compression route);
std::vector<double> noise_of(const Routes& routes, const std::vector<LayerNoise>& layers);

// (docs/pgac.md, "Margin".) `noise`: n of each layer.
double gradient_error(const std::vector<LayerNoise>& layers, const std::vector<double>& noise);

// By threshold: `keep`, or else 8 bits, or 4 where the average is below `far_threshold`.
Routes routes_of(const std::vector<bool>& keep, const std::vector<double>& averages,
                 double far_threshold);

// Layers are made more exact, one step after the other where the error is largest, until it is at
// most `bound`. Layers of which not enough is known are kept as they are.
Routes tightened(Routes routes, const std::vector<LayerNoise>& layers, double bound);

}  // namespace reprise::influence
