#include "influence/routes.h"

#include <algorithm>
#include <cmath>

namespace reprise::influence {
namespace {

// bf16 rounds to the nearest of 2^8 numbers a binade: ulp^2 / 12 by the mean square of what lies
// evenly in one.
constexpr double kBfloat16Noise = 1.0 / (1 << 14) / 12 / (7.0 / 3);

double levels_of(Compression compression) { return compression == Compression::kInt8 ? 255 : 15; }

// Each layer's part in the square of the error (docs/pgac.md, "Audits").
std::vector<double> parts_of(const std::vector<LayerNoise>& layers,
                             const std::vector<double>& noise) {
  std::vector<double> parts;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    parts.push_back(noise[i] > 0 ? noise[i] * layers[i].sensitivity : 0);
  }
  return parts;
}

}  // namespace

Compression route_of(CompressedForm form) {
  switch (form) {
    case CompressedForm::kBfloat16:
      return Compression::kBfloat16;
    case CompressedForm::kInt8:
      return Compression::kInt8;
    case CompressedForm::kInt4:
      return Compression::kInt4;
    case CompressedForm::kUncompressed:
    case CompressedForm::kMask:
    case CompressedForm::kSparse:
      break;
  }
  return Compression::kExact;
}

double noise_of(const LayerNoise& layer, Compression route) {
  switch (route) {
    case Compression::kExact:
      return 0;
    case Compression::kBfloat16:
      return layer.values * kBfloat16Noise;
    case Compression::kInt8:
    case Compression::kInt4:
      break;
  }
  const double levels = levels_of(route);
  return layer.spread / (6 * levels * levels);
}

std::vector<double> noise_of(const Routes& routes, const std::vector<LayerNoise>& layers) {
  std::vector<double> noise;
  for (std::size_t i = 0; i < routes.size(); ++i) {
    noise.push_back(noise_of(layers[i], routes[i]));
  }
  return noise;
}

double gradient_error(const std::vector<LayerNoise>& layers, const std::vector<double>& noise) {
  double square = 0;
  for (const double part : parts_of(layers, noise)) square += part;
  return std::sqrt(square);
}

Routes routes_of(const std::vector<bool>& keep, const std::vector<double>& averages,
                 double far_threshold) {
  Routes routes;
  for (std::size_t i = 0; i < keep.size(); ++i) {
    routes.push_back(keep[i]                       ? Compression::kExact
                     : averages[i] < far_threshold ? Compression::kInt4
                                                   : Compression::kInt8);
  }
  return routes;
}

Routes tightened(Routes routes, const std::vector<LayerNoise>& layers, double bound) {
  for (std::size_t i = 0; i < routes.size(); ++i) {
    if (!layers[i].is_known()) routes[i] = Compression::kExact;
  }
  while (true) {
    const std::vector<double> parts = parts_of(layers, noise_of(routes, layers));
    double square = 0;
    for (const double part : parts) square += part;
    if (square <= bound * bound) return routes;
    if (!std::isfinite(square)) {
      std::fill(routes.begin(), routes.end(), Compression::kExact);
      return routes;
    }
    const auto largest = std::max_element(parts.begin(), parts.end()) - parts.begin();
    Compression& route = routes[static_cast<std::size_t>(largest)];
    route = static_cast<Compression>(static_cast<int>(route) - 1);
  }
}

}  // namespace reprise::influence
