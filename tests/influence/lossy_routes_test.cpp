// The arithmetic of the lossy tier's routes.
#include "influence/routes.h"

#include <gtest/gtest.h>

#include <cmath>

namespace reprise {
namespace {

using influence::LayerNoise;
using influence::Routes;

constexpr auto kExact = Compression::kExact;
constexpr auto kBf16 = Compression::kBfloat16;
constexpr auto k8 = Compression::kInt8;
constexpr auto k4 = Compression::kInt4;

TEST(LossyRoutes, GoByTheThreshold) {
  const Routes routes = influence::routes_of({true, false, false, true}, {5, 2, 0.5, 3}, 1);
  EXPECT_EQ(routes, (Routes{kExact, k8, k4, kExact}));
}

TEST(LossyRoutes, ErrorIsThatOfTheFormula) {
  std::vector<LayerNoise> layers = {{.spread = 6 * 255 * 255 * 1e-4,
                                     .input_gain = 2,
                                     .parameter_noise = 12,
                                     .gradient_square = 4},
                                    {.spread = 6 * 255 * 255 * 1e-3,
                                     .input_gain = 5,
                                     .parameter_noise = 7,
                                     .gradient_square = 20}};
  const auto noise = influence::noise_of({k8, k8}, layers);
  EXPECT_NEAR(noise[0], 1e-4, 1e-12);
  EXPECT_NEAR(noise[1], 1e-3, 1e-12);
  // (1e-4 b_0 + 1e-3 (b_1 + a_1 max(|g_0|^2, b_0))) / (|g_0|^2 + |g_1|^2)
  EXPECT_NEAR(influence::gradient_error(layers, noise),
              std::sqrt((1e-4 * 12 + 1e-3 * (7 + 5 * 12)) / 24), 1e-12);
  // Scores three times as large as they were at the probe.
  layers[1].score_then = 2;
  layers[1].score = 6;
  EXPECT_NEAR(influence::gradient_error(layers, noise),
              std::sqrt((1e-4 * 12 + 1e-3 * (7 * 9 + 5 * 12)) / 24), 1e-12);
  // Nothing is known of the first: b = |g|^2, and that the mean of those that are known.
  layers[0] = {.spread = layers[0].spread};
  EXPECT_NEAR(influence::gradient_error(layers, noise),
              std::sqrt((1e-4 * 20 + 1e-3 * (7 * 9 + 5 * 20)) / 40), 1e-12);
}

TEST(LossyRoutes, WhatIsNotFiniteIsKeptExact) {
  const std::vector<LayerNoise> layers(3, {.spread = 36,
                                           .parameter_noise = 1e300,
                                           .score_then = 1e-60,
                                           .score = 1e60,
                                           .gradient_square = 1e300});
  EXPECT_EQ(influence::tightened({k4, k8, k8}, layers, 0.1), (Routes{kExact, kExact, kExact}));
}

TEST(LossyRoutes, TightenWhereTheErrorIsLargestUntilTheBoundHolds) {
  const std::vector<LayerNoise> layers(3, {.spread = 36, .gradient_square = 1});
  const Routes routes = {k4, k8, k8};
  const double loose = influence::gradient_error(layers, influence::noise_of(routes, layers));
  EXPECT_EQ(influence::tightened(routes, layers, loose * 1.0001), routes);
  const Routes tight = influence::tightened(routes, layers, loose * 0.9999);
  EXPECT_EQ(tight, (Routes{k8, k8, k8}));
  for (const double bound : {1e-1, 1e-2, 1e-3, 1e-4}) {
    const Routes at_most = influence::tightened(routes, layers, bound);
    EXPECT_LE(influence::gradient_error(layers, influence::noise_of(at_most, layers)), bound);
  }
  EXPECT_EQ(influence::tightened(routes, layers, 1e-9), (Routes{kExact, kExact, kExact}));
  // The first layer has run, and was noisier than expected.
  EXPECT_EQ(influence::tightened(routes, layers, loose, 1, {1.0}), (Routes{k4, kExact, kExact}));
}

TEST(LossyRoutes, Bfloat16IsBetween8BitsAndExact) {
  const LayerNoise layer{.spread = 36};
  EXPECT_LT(influence::noise_of(layer, kBf16), influence::noise_of(layer, k8) / 10);
  EXPECT_GT(influence::noise_of(layer, kBf16), 0);
  EXPECT_EQ(influence::noise_of(layer, kExact), 0);
}

}  // namespace
}  // namespace reprise
