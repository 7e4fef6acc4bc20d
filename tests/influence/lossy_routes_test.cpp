// The arithmetic of the lossy tier: routes, what audits say of layers, regimes.
#include "influence/routes.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "influence/regimes.h"
#include "influence/sensitivities.h"

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
  const std::vector<LayerNoise> layers = {{.spread = 6 * 255 * 255 * 1e-4, .sensitivity = 3},
                                          {.spread = 6 * 255 * 255 * 1e-3, .sensitivity = 0.5}};
  const auto noise = influence::noise_of({k8, k8}, layers);
  EXPECT_NEAR(noise[0], 1e-4, 1e-12);
  EXPECT_NEAR(noise[1], 1e-3, 1e-12);
  EXPECT_NEAR(influence::gradient_error(layers, noise), std::sqrt(1e-4 * 3 + 1e-3 * 0.5), 1e-12);
}

TEST(LossyRoutes, WhatIsNotFiniteIsKeptExact) {
  const std::vector<LayerNoise> layers(3, {.spread = 1e300, .sensitivity = 1e300});
  EXPECT_EQ(influence::tightened({k4, k8, k8}, layers, 0.1), (Routes{kExact, kExact, kExact}));
}

TEST(LossyRoutes, LayersOfWhichNotEnoughIsKnownAreKeptExact) {
  const LayerNoise known{.spread = 36, .sensitivity = 1};
  const std::vector<LayerNoise> layers = {known, {.spread = 36}, {.sensitivity = 1}};
  EXPECT_EQ(influence::tightened({k4, k4, k4}, layers, 10), (Routes{k4, kExact, kExact}));
}

TEST(LossyRoutes, TightenWhereTheErrorIsLargestUntilTheBoundHolds) {
  const std::vector<LayerNoise> layers(3, {.spread = 36, .sensitivity = 1});
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
}

// Of audits that differ by a factor alone.
influence::Sensitivities after_audits(std::size_t count, double factor, double carriers = 1e4) {
  influence::Sensitivities known;
  for (std::size_t i = 0; i < count; ++i) {
    const double by = std::pow(factor, static_cast<double>(i % 2));
    known.add_audit({{.sensitivity = 2 * by, .incoherence = 3, .carriers = carriers}}, 1);
    known.add_step({3});
  }
  return known;
}

TEST(Sensitivities, AreKnownAfterEightAudits) {
  EXPECT_EQ(after_audits(7, 1).limit(0), -1);
  EXPECT_NEAR(after_audits(8, 1).limit(0), 2, 1e-9);
}

TEST(Sensitivities, LimitIsAboveAllThatWasSeenAndGrowsWithTheSpread) {
  const double narrow = after_audits(12, 1.2).limit(0), wide = after_audits(12, 2).limit(0);
  EXPECT_GT(narrow, 2 * 1.2);
  EXPECT_GT(wide / 4, narrow / 2.4);
  // The logarithms' standard deviation of two values that take turns, and 3 + 11 / 12 of it.
  const double deviation = std::log(2) / 2 * std::sqrt(12. / 11);
  EXPECT_NEAR(wide, 2 * std::exp(std::log(2) / 2 + (3 + 11. / 12) * deviation), 1e-9);
}

TEST(Sensitivities, GrowWithTheLargestIncoherenceOfTheLastSteps) {
  influence::Sensitivities known = after_audits(8, 1);
  known.add_step({12});
  known.add_step({3});
  EXPECT_NEAR(known.limit(0), 2 * 12 / 3, 1e-9);
  for (std::size_t i = 0; i < influence::Sensitivities::kWindow; ++i) known.add_step({3});
  EXPECT_NEAR(known.limit(0), 2, 1e-9);
}

TEST(Sensitivities, TheWorstOfWhatAuditsMeasuredBesideTheFormulaCounts) {
  influence::Sensitivities known = after_audits(8, 1);
  known.add_audit({{.sensitivity = 2, .incoherence = 3, .carriers = 1e4}}, 5);
  EXPECT_GE(known.limit(0), 2 * 5);
}

TEST(Sensitivities, LayersWithHeavyTailsAreRefused) {
  EXPECT_FALSE(after_audits(8, 1).is_refused(0));
  EXPECT_TRUE(after_audits(8, 10).is_refused(0)) << "audits are too far apart";
  EXPECT_TRUE(after_audits(8, 1, 10).is_refused(0)) << "few elements carry the error";
  EXPECT_EQ(after_audits(8, 10).limit(0), -1);
}

TEST(Regimes, AreKnownWhereThreeAuditedStepsWereNear) {
  influence::Regimes regimes;
  torch::manual_seed(1);
  const auto features = [](double scale) {
    return influence::features_of(torch::randn({64, 64}) * scale);
  };
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(regimes.knows(0, features(1)));
    regimes.add({{{features(1), features(1)}}, {0.5}});
  }
  EXPECT_TRUE(regimes.knows(0, features(1)));
  EXPECT_TRUE(regimes.knows(0, features(1.1)));
  EXPECT_FALSE(regimes.knows(0, features(1.5)));
  EXPECT_FALSE(regimes.knows(0, influence::features_of(torch::rand({64, 64}))));
  EXPECT_FALSE(regimes.knows(0, influence::features_of(torch::randn({32, 64})))) << "a part";
  at::Tensor outlier = torch::randn({64, 64});
  outlier[3][4] = 50;
  EXPECT_FALSE(regimes.knows(0, influence::features_of(outlier)));
  EXPECT_TRUE(regimes.knows_weights({0.55}));
  EXPECT_FALSE(regimes.knows_weights({0.7}));
}

TEST(LossyRoutes, Bfloat16IsBetween8BitsAndExact) {
  const LayerNoise layer{.spread = 36};
  EXPECT_LT(influence::noise_of(layer, kBf16), influence::noise_of(layer, k8) / 10);
  EXPECT_GT(influence::noise_of(layer, kBf16), 0);
  EXPECT_EQ(influence::noise_of(layer, kExact), 0);
}

}  // namespace
}  // namespace reprise
