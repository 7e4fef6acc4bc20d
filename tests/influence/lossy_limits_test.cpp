// The lossy tier where something stands in its way: budgets, regions, layers that cannot be probed,
// gradients that tell nothing; its state.
#include <reprise/checkpoint.h>
#include <reprise/experimental/pgac.h>
#include <reprise/memory.h>

#include <algorithm>
#include <limits>

#include "tests/influence/lossy_layers.h"
#include "tests/refusal.h"

namespace reprise {
namespace {

using namespace reprise::testing;
using torch::nn::Sequential;

// As a loss scale that is too large in a training's first steps.
TEST(LossyTier, StepsWithoutFiniteGradientsTellNothing) {
  Sequential model = gelu_layers();
  const at::Tensor sample = wide_sample();
  const Tensors plain =
      step_of(model, sample, [&](const at::Tensor& x) { return model->forward(x); });
  for (const double scale : {0.0, std::numeric_limits<double>::infinity()}) {
    Pgac pgac(lossy_options(3e-2));
    for (int step = 0; step < 8; ++step) {
      step_of(model, sample, [&](const at::Tensor& x) { return pgac.run(model, x) * scale; });
      pgac.observe(step);
      EXPECT_EQ(pgac.report().gradient_error, 0);
    }
    bool is_lossy = false;
    // Audits have become rarer meanwhile.
    for (int step = 8; step < 48; ++step) {
      const double error = relative_error(step_under(pgac, model, sample), plain);
      pgac.observe(step);
      EXPECT_LE(error, 3e-2) << step << ' ' << scale;
      is_lossy = is_lossy || error > 0;
    }
    EXPECT_TRUE(is_lossy);
    EXPECT_EQ(pgac.report().lossy_off, "");
  }
}

TEST(LossyTier, AFrozenLayerDoesNotStopTheOthers) {
  Sequential model = gelu_layers(4);
  for (at::Tensor& parameter : model[0]->as<GeluBlock>()->parameters()) {
    parameter.requires_grad_(false);
  }
  torch::manual_seed(4);
  const at::Tensor x = torch::randn({512, 64});  // so nothing of the first layer has a gradient
  Pgac pgac(lossy_options(0.5));
  for (int step = 0; step < 16; ++step) {
    pgac.run(model, x).square().mean().backward();
    pgac.observe(step);
    model->zero_grad();
  }
  const PgacReport report = pgac.report();
  EXPECT_EQ(report.lossy_off, "");
  EXPECT_GE(report.audits, 8);
  bool is_lossy = report.audited;
  for (std::size_t i = 1; i < 4; ++i) is_lossy = is_lossy || report.routes[i] > PgacRoute::kKept;
  EXPECT_TRUE(is_lossy);
}

// A frozen step parks nothing, and says nothing of the noise in one that trains.
TEST(LossyTier, StaysWithinTheBoundAfterStepsThatSaveNothing) {
  Sequential model = gelu_layers();
  const at::Tensor sample = wide_sample();
  const Tensors plain =
      step_of(model, sample, [&](const at::Tensor& x) { return model->forward(x); });
  constexpr double kBound = 3e-3;
  Pgac pgac(lossy_options(kBound));
  bool is_lossy = false;
  for (int step = 0; step < 27; ++step) {
    if (step % 4 == 3) {
      for (at::Tensor& each : model->parameters()) each.requires_grad_(false);
      pgac.run(model, sample.detach());
      for (at::Tensor& each : model->parameters()) each.requires_grad_(true);
      pgac.observe(step);
      continue;
    }
    const double error = relative_error(step_under(pgac, model, sample), plain);
    pgac.observe(step);
    EXPECT_LE(error, kBound) << step;
    is_lossy = is_lossy || error > 0;
  }
  EXPECT_TRUE(is_lossy);
}

// An audit's backward must end where its layer begins, also on the way to a weight that it shares
// with a layer before.
TEST(LossyTier, AnAuditOfALayerWithASharedWeightStaysInItsLayer) {
  struct SharingImpl : torch::nn::Module {
    explicit SharingImpl(at::Tensor shared) : weight(std::move(shared)) {
      own = register_parameter("own", torch::randn({64, 64}) / 8);
    }
    at::Tensor forward(const at::Tensor& x) { return torch::gelu(x.mm(weight)).mm(own); }
    at::Tensor weight, own;
  };
  using Sharing = torch::nn::ModuleHolder<SharingImpl>;
  torch::manual_seed(5);
  const at::Tensor shared = (torch::randn({64, 64}) / 8).requires_grad_();
  std::vector<Sharing> layers;
  for (int i = 0; i < 3; ++i) layers.emplace_back(shared);
  const at::Tensor x = torch::randn({512, 64}).requires_grad_();
  Pgac exact({.alpha = 0}), lossy(lossy_options(0.5));
  for (int step = 0; step < 8; ++step) {
    const at::Tensor begin = x * 1;
    int calls = 0;
    begin.register_hook([&](const at::Tensor&) { ++calls; });
    exact.run(layers, x * 1).square().mean().backward();
    exact.observe(step);
    lossy.run(layers, begin).square().mean().backward();
    lossy.observe(step);
    EXPECT_EQ(calls, 1) << step;
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_NEAR(lossy.report().scores[i] / exact.report().scores[i], 1, 0.2) << step;
    }
  }
}

TEST(LossyTier, WorksInsideARegion) {
  Sequential model = gelu_layers();
  const at::Tensor sample = wide_sample();
  const Tensors plain =
      step_of(model, sample, [&](const at::Tensor& x) { return model->forward(x); });
  Pgac pgac(lossy_options(3e-2));
  bool is_lossy = false;
  for (int step = 0; step < 16; ++step) {
    const Tensors found = step_of(model, sample, [&](const at::Tensor& x) {
      return checkpoint([&](const at::Tensor& y) { return pgac.run(model, y); }, x);
    });
    pgac.observe(step);
    const double error = relative_error(found, plain);
    EXPECT_LE(error, 3e-2) << step;
    is_lossy = is_lossy || error > 0;
  }
  EXPECT_TRUE(is_lossy);
}

TEST(LossyTier, AReentrantRegionInsideALayerEndsTheTierAndDoesNoHarm) {
  struct OuterImpl : torch::nn::Module {
    OuterImpl() { inner = register_module("inner", GeluBlock()); }
    at::Tensor forward(const at::Tensor& x) { return checkpoint(reentrant(), inner, x); }
    GeluBlock inner = nullptr;
  };
  Sequential model = gelu_layers(2);
  model->push_back(std::make_shared<OuterImpl>());
  const at::Tensor sample = wide_sample();
  Pgac pgac(lossy_options(3e-2));
  for (int step = 0; step < 6; ++step) {
    EXPECT_NO_THROW(step_under(pgac, model, sample));
    pgac.observe(step);
  }
  EXPECT_TRUE(contains(pgac.report().lossy_off, "layer 2 cannot be audited: its backward cannot"));
}

TEST(LossyTier, RefusesADamagedState) {
  Sequential model = gelu_layers(2);
  const at::Tensor sample = wide_sample();
  Pgac pgac(lossy_options(3e-2));
  for (int step = 0; step < 4; ++step) {
    step_under(pgac, model, sample);
    pgac.observe(step);
  }
  const std::string state = pgac.state();
  const auto damaged = [&](const std::string& field, const std::string& value) {
    const auto at = state.find("\"" + field + "\":");
    const auto end = state.find_first_of(",\n", at);
    std::string text = state;
    text.replace(at, end - at, "\"" + field + "\": " + value);
    return refusal_of([&] { Pgac(lossy_options(3e-2)).restore(text); });
  };
  EXPECT_TRUE(contains(damaged("sensitivity", "1e308"), "sensitivity"));
  EXPECT_TRUE(contains(damaged("spread", "-0.5"), "it must be from 0, or -1 for unknown"));
  EXPECT_TRUE(contains(damaged("route", "7"), "route"));
  const auto damaged_list = [&](const std::string& field, const std::string& first) {
    const auto at = state.find('[', state.find("\"" + field + "\":")) + 1;
    std::string text = state;
    text.replace(at, text.find_first_of(",]", at) - at, first);
    return refusal_of([&] { Pgac(lossy_options(3e-2)).restore(text); });
  };
  EXPECT_TRUE(contains(damaged_list("ratios", "-1"), "ratios[0]"));
  EXPECT_TRUE(contains(damaged_list("weights", "0, 0"), "has 3 entries; it must have 2"));
  EXPECT_TRUE(contains(damaged("audit_interval", "0"), "audit_interval"));
}

TEST(LossyTier, IsExactUnderABudgetThatItCannotMeetOtherwise) {
  Sequential model = gelu_layers();
  const at::Tensor sample = wide_sample();
  PgacOptions options = lossy_options(1e-9);
  options.budget = MB(64);
  Pgac pgac(options);
  const Tensors plain =
      step_of(model, sample, [&](const at::Tensor& x) { return model->forward(x); });
  for (int step = 0; step < 4; ++step) {
    EXPECT_TRUE(same_bits(step_under(pgac, model, sample), plain));
    pgac.observe(step);
    EXPECT_EQ(pgac.report().gradient_error, 0);
  }
}

TEST(LossyTier, PeakStaysBelowTheBudget) {
  Sequential model = gelu_layers(8);
  const at::Tensor sample = wide_sample();
  const auto peak_of = [&](Pgac& pgac) {
    const Bytes before = live_bytes();
    const PeakScope meter;
    at::Tensor loss;
    loss = pgac.run(model, sample).sum();  // which alone stays
    loss.backward();
    const Bytes peak = meter.peak();
    model->zero_grad();
    sample.mutable_grad() = at::Tensor();
    return Bytes(peak.count - before.count);
  };
  Pgac unbounded({.quantile = 0});
  const Bytes plain = peak_of(unbounded);
  bool compresses = false, recomputes = false;
  for (const double share : {0.85, 0.6, 0.5}) {
    PgacOptions options = lossy_options(2e-2);
    options.budget = Bytes(static_cast<std::int64_t>(share * static_cast<double>(plain.count)));
    Pgac pgac(options);
    for (int step = 0; step < 18; ++step) {
      EXPECT_LE(peak_of(pgac), *options.budget) << share << " in step " << step;
      pgac.observe(step);
      compresses = compresses || pgac.report().compressed_from.count > 0;
      recomputes =
          recomputes || std::ranges::count(pgac.report().routes, PgacRoute::kRecomputed) > 0;
    }
  }
  EXPECT_TRUE(compresses);
  EXPECT_TRUE(recomputes);
}

TEST(LossyTier, AResumedRunGoesOnAsIfItHadNotEnded) {
  Sequential model = gelu_layers();
  const at::Tensor sample = wide_sample();
  Pgac whole(lossy_options(3e-2));
  std::string state;
  std::vector<Tensors> expected;
  for (int step = 0; step < 24; ++step) {
    if (step == 9) state = whole.state();
    Tensors gradients = step_under(whole, model, sample);
    whole.observe(step);
    if (step >= 9) expected.push_back(std::move(gradients));
  }
  Pgac resumed(lossy_options(3e-2));
  resumed.restore(state);
  for (int step = 9; step < 24; ++step) {
    EXPECT_TRUE(same_bits(step_under(resumed, model, sample), expected[step - 9])) << step;
    resumed.observe(step);
  }
  Pgac exact;
  EXPECT_TRUE(contains(refusal_of([&] { exact.restore(state); }), "with the lossy tier"));
}

TEST(LossyTier, RefusesWhatItCannotDo) {
  const auto refusal = [](const auto& change) {
    PgacOptions options{.lossy = LossyOptions{}};
    change(options);
    return refusal_of([&] { Pgac pgac(options); });
  };
  EXPECT_TRUE(contains(refusal([](PgacOptions& o) { o.lossy->gradient_error = 0; }),
                       "lossy.gradient_error is 0.000000; it must be above 0"));
  EXPECT_TRUE(contains(refusal([](PgacOptions& o) { o.lossy->int4_threshold = 1.5; }),
                       "lossy.int4_threshold is 1.500000; it must be from 0 to 1"));
  EXPECT_TRUE(contains(refusal([](PgacOptions& o) { o.lossy->min_bytes = Bytes(-1); }),
                       "lossy.min_bytes is -1; it must be at least 0 bytes"));
  EXPECT_TRUE(contains(refusal([](PgacOptions& o) { o.lossy->audit_every = 0; }),
                       "lossy.audit_every is 0; it must be from 1 to "));
  EXPECT_TRUE(contains(refusal([](PgacOptions& o) { o.lossy->block = 5; }), "multiple of 32"));
  EXPECT_TRUE(contains(refusal([](PgacOptions& o) {
                         o.gamma = GammaSchedule::learned();
                         o.steps = 4;
                         o.budget = MB(1);
                       }),
                       "gamma is learned"));
}

}  // namespace
}  // namespace reprise
