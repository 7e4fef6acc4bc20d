// The lossy tier: what routes save, what they do to the gradients, and what is estimated of that.
#include <reprise/experimental/pgac.h>
#include <reprise/memory.h>

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
  // The first steps are audited, and exact.
  for (int step = 0; step < 10; ++step) {
    EXPECT_TRUE(same_bits(step_under(pgac, model, sample), plain));
    pgac.observe(step);
  }
  double measured = 0, estimated = 0, audited = 0;
  int compressed = 0;
  for (int step = 10; step < 20; ++step) {
    const double error = relative_error(step_under(pgac, model, sample), plain);
    pgac.observe(step);
    const PgacReport report = pgac.report();
    audited = report.audited_error;
    if (report.audited) continue;
    ++compressed;
    measured += error;
    estimated += report.gradient_error;
    EXPECT_GT(error, 1e-4);
    EXPECT_GE(report.gradient_error, error);
    EXPECT_EQ(std::ranges::count(report.routes, PgacRoute::kKept), 0);
    EXPECT_LT(report.compressed_to.count * 3, report.compressed_from.count);
  }
  EXPECT_GE(compressed, 5);
  EXPECT_LT(estimated, measured * 3) << measured;
  // What an audit says that a step's error would be is what it is.
  EXPECT_NEAR(audited / (measured / compressed), 1, 0.1);
}

TEST(LossyTier, EstimateStaysWithinTheBound) {
  Sequential model = gelu_layers();
  const at::Tensor sample = wide_sample();
  for (const double bound : {3e-2, 1e-2, 3e-3, 1e-3}) {
    Pgac pgac(lossy_options(bound));
    bool is_lossy = false;
    for (int step = 0; step < 16; ++step) {
      step_under(pgac, model, sample);
      pgac.observe(step);
      EXPECT_LE(pgac.report().gradient_error, bound);
      is_lossy = is_lossy || pgac.report().gradient_error > 0;
    }
    EXPECT_TRUE(is_lossy) << bound;
  }
}

TEST(LossyTier, LayersAboveTheThresholdStayExact) {
  Sequential model = gelu_layers();
  const at::Tensor sample = wide_sample();
  Pgac pgac(lossy_options(0.5, 0.5, 1));
  PgacReport report;
  for (int step = 0; step < 10 || report.audited; ++step) {
    step_under(pgac, model, sample);
    pgac.observe(step);
    report = pgac.report();
  }
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
  for (int step = 0; step < 16; ++step) {
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
  for (int step = 0; step < 12; ++step) {
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
  pgac.run(model, sample);  // an audit; its graph is dropped without a backward
  EXPECT_EQ(live_bytes(), before);
  {
    at::Tensor result = pgac.run(model, sample);
    result.sum().backward();
  }
  model->zero_grad();
  sample.mutable_grad() = at::Tensor();
  // Until then it holds the gradients of an audit.
  pgac.discard_step();
  EXPECT_EQ(live_bytes(), before);
}

TEST(LossyTier, AnAuditLeavesTheProgramsHooksOnActivationsAlone) {
  Sequential model = gelu_layers(2);
  const at::Tensor sample = wide_sample();
  Pgac pgac(lossy_options(0.5));
  step_under(pgac, model, sample);
  pgac.observe(0);
  for (int step = 1; step < 4; ++step) {
    const at::Tensor x = sample * 1;
    int calls = 0;
    x.register_hook([&](const at::Tensor&) { ++calls; });
    pgac.run(model, x).sum().backward();
    EXPECT_EQ(calls, 1);
    pgac.observe(step);
    EXPECT_GT(pgac.report().scores[0], 0);
  }
  EXPECT_TRUE(pgac.report().audited);
}

}  // namespace
}  // namespace reprise
