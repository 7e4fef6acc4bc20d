// The arithmetic of the lossy tier (reprise/pgac.h, LossyOptions): which layer is kept in how many
// bits, and what that does to the gradients.
#pragma once

#include <reprise/compressed_store.h>

#include <cstddef>
#include <vector>

namespace reprise::influence {

using Routes = std::vector<Compression>;

// What is known of a layer.
struct LayerNoise {
  static constexpr double kUnknown = -1;

  // CompressedAs::spread, summed over the values that it parks; kUnknown before it has parked any.
  double spread = kUnknown;
  double values = 1;  // how many these are
  // a: noise in the gradient of its input, by that in its values; relative squares.
  double input_gain = 1;
  // b: the square of the error of its parameters' gradients, by the relative square of the noise in
  // its values; when it was probed, and with what score.
  double parameter_noise = kUnknown;
  double score_then = 0;
  double score = 0;                   // of the last step
  double gradient_square = kUnknown;  // |g|^2 of its parameters, of the last step

  // b, as it is by now: it is of the size of the influence's square, a sum over the same gradients
  // and activations.
  double parameter_noise_now() const;
  // A layer of which this is not known is kept as it is.
  bool is_known() const { return spread != kUnknown; }
  bool operator==(const LayerNoise&) const = default;
};

// The compression that leads to a form; kExact for those that change nothing.
Compression route_of(CompressedForm form);

// n of a layer in that route.
double noise_of(const LayerNoise& layer, Compression route);
std::vector<double> noise_of(const Routes& routes, const std::vector<LayerNoise>& layers);

// (LossyOptions, "Error".) `noise`: n of each layer.
double gradient_error(const std::vector<LayerNoise>& layers, const std::vector<double>& noise);

// By threshold: `keep`, or else 8 bits, or 4 where the average is below `far_threshold`.
Routes routes_of(const std::vector<bool>& keep, const std::vector<double>& averages,
                 double far_threshold);

// Layers from `first` on are made more exact, one step after the other where the error is largest,
// until it is at most `bound`. `noise` is what was measured of those before `first`.
Routes tightened(Routes routes, const std::vector<LayerNoise>& layers, double bound,
                 std::size_t first = 0, const std::vector<double>& noise = {});

}  // namespace reprise::influence
