// The lossy tier: what routes save, what they do to the gradients, and what is estimated of that.
#include <reprise/memory.h>
#include <reprise/pgac.h>

#include <algorithm>

#include "tests/influence/lossy_layers.h"

namespace reprise {
namespace {

using namespace reprise::testing;
using torch::nn::Sequential;

TEST(LossyTier, ParametersGradientsAreNearThePlainStepsAndItsOwnEstimate) {
  Sequential model = gelu_layers();
  const at::Tensor sample = wide_sample();
  const Tensors plain =
      step_of(model, sample, [&](const at::Tensor& x) { return model->forward(x); });
  Pgac pgac(lossy_options(0.5));
  // The first keeps all; in those after it each layer is probed, so the errors are small at first.
  EXPECT_TRUE(same_bits(step_under(pgac, model, sample), plain));
  pgac.observe(0);
  for (int step = 1; step < 9; ++step) {
    step_under(pgac, model, sample);
    pgac.observe(step);
  }
  double measured = 0, estimated = 0;
  for (int step = 9; step < 15; ++step) {
    const double error = relative_error(step_under(pgac, model, sample), plain);
    pgac.observe(step);
    measured += error / 6;
    estimated += pgac.report().gradient_error / 6;
    EXPECT_GT(error, 1e-4);
    EXPECT_LE(std::ranges::count(pgac.report().routes, PgacRoute::kKept), 1) << "probed";
  }
  EXPECT_GT(estimated, measured / 2);
  EXPECT_LT(estimated, measured * 2) << measured;
  EXPECT_LT(pgac.report().compressed_to.count * 3, pgac.report().compressed_from.count);
}

TEST(LossyTier, EstimateStaysWithinTheBound) {
  Sequential model = gelu_layers();
  const at::Tensor sample = wide_sample();
  for (const double bound : {3e-2, 1e-2, 3e-3, 1e-3}) {
    Pgac pgac(lossy_options(bound));
    bool is_lossy = false;
    for (int step = 0; step < 12; ++step) {
      step_under(pgac, model, sample);
      pgac.observe(step);
      EXPECT_LE(pgac.report().gradient_error, bound * 1.02);
      is_lossy = is_lossy || pgac.report().gradient_error > 0;
    }
    EXPECT_TRUE(is_lossy) << bound;
  }
}

TEST(LossyTier, LayersAboveTheThresholdStayExact) {
  Sequential model = gelu_layers();
  const at::Tensor sample = wide_sample();
  Pgac pgac(lossy_options(0.5, 0.5, 1));
  for (int step = 0; step < 10; ++step) {
    step_under(pgac, model, sample);
    pgac.observe(step);
  }
  const PgacReport report = pgac.report();
  for (std::size_t i = 0; i < 6; ++i) {
    if (!report.wanted[i]) continue;
    EXPECT_EQ(report.routes[i], PgacRoute::kKept) << i;
  }
  EXPECT_GT(std::ranges::count(report.routes, PgacRoute::kInt8) +
                std::ranges::count(report.routes, PgacRoute::kInt4),
            0);
}

TEST(LossyTier, ScoresAreThoseOfTheExactStepButForTheNoise) {
  Sequential model = gelu_layers();
  const at::Tensor sample = wide_sample();
  Pgac exact({.alpha = 0}), lossy(lossy_options(0.5));
  for (int step = 0; step < 9; ++step) {
    step_under(exact, model, sample);
    step_under(lossy, model, sample);
    exact.observe(step);
    lossy.observe(step);
    for (std::size_t i = 0; i < 6; ++i) {
      EXPECT_NEAR(lossy.report().scores[i] / exact.report().scores[i], 1, 0.2) << step << ' ' << i;
    }
  }
}

TEST(LossyTier, SavesMemory) {
  Sequential model = gelu_layers(8);
  const at::Tensor sample = wide_sample();
  const auto live_after_forward = [&](Pgac& pgac) {
    const Bytes before = live_bytes();
    const at::Tensor result = pgac.run(model, sample);
    const Bytes after = live_bytes();
    result.sum().backward();
    return after.count - before.count;
  };
  Pgac plain({.quantile = 0}), lossy(lossy_options(0.9));
  for (int step = 0; step < 10; ++step) {
    live_after_forward(plain);
    plain.observe(step);
    live_after_forward(lossy);
    lossy.observe(step);
  }
  EXPECT_LT(live_after_forward(lossy) * 2.5, live_after_forward(plain));
}

TEST(LossyTier, LeavesNothingBehind) {
  Sequential model = gelu_layers();
  const at::Tensor sample = wide_sample();
  Pgac pgac(lossy_options(0.5));
  for (int step = 0; step < 3; ++step) {
    step_under(pgac, model, sample);
    pgac.observe(step);
  }
  model->zero_grad();
  sample.mutable_grad() = at::Tensor();
  const Bytes before = live_bytes();
  pgac.run(model, sample);  // with a probe; its graph is dropped without a backward
  EXPECT_EQ(live_bytes(), before);
  {
    at::Tensor result = pgac.run(model, sample);
    result.sum().backward();
  }
  model->zero_grad();
  sample.mutable_grad() = at::Tensor();
  EXPECT_EQ(live_bytes(), before);
}

TEST(LossyTier, AProbeLeavesTheProgramsHooksOnActivationsAlone) {
  Sequential model = gelu_layers(2);
  const at::Tensor sample = wide_sample();
  Pgac pgac(lossy_options(0.5));
  step_under(pgac, model, sample);
  pgac.observe(0);
  const at::Tensor x = sample * 1;
  int calls = 0;
  x.register_hook([&](const at::Tensor&) { ++calls; });
  pgac.run(model, x).sum().backward();
  EXPECT_EQ(calls, 1);
  pgac.observe(1);
  EXPECT_GT(pgac.report().scores[0], 0);
}

}  // namespace
}  // namespace reprise
