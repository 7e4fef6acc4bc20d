// PGAC on real layers: gradients under every mask, the method step by step, budgets, states.
#include <ATen/autocast_mode.h>
#include <reprise/budget.h>
#include <reprise/checkpoint.h>
#include <reprise/experimental/pgac.h>
#include <reprise/planners.h>
#include <reprise/sequential.h>

#include <random>

#include "tests/influence/reference.h"
#include "tests/influence/testing.h"
#include "tests/refusal.h"

namespace reprise {
namespace {

using namespace reprise::testing;
using torch::nn::Sequential;

Tensors plain_step_of(Sequential model, const at::Tensor& sample) {
  return step_of(model, sample, [&](const at::Tensor& x) { return model->forward(x); });
}

Tensors pgac_step_of(Pgac& pgac, Sequential model, const at::Tensor& sample) {
  return step_of(model, sample, [&](const at::Tensor& x) { return pgac.run(model, x); });
}

std::vector<bool> mask_of_bits(unsigned bits, std::size_t layers) {
  std::vector<bool> mask;
  for (std::size_t i = 0; i < layers; ++i) mask.push_back((bits >> i & 1) != 0);
  return mask;
}

// It asks whether layers' results share memory with their inputs, which were dropped.
TEST(Pgac, RunsInsideAStepThatDropsEverything) {
  Sequential model = six_layers();
  const Tensors expected = plain_step_of(model, sample_of());
  MemoryBudget budget(GiB(64), {.min_bytes = Bytes(1), .paranoid = true});
  Pgac pgac;
  auto step = budget.step();
  const Tensors mine = pgac_step_of(pgac, model, sample_of());
  step.finish();
  EXPECT_TRUE(same_bits(mine, expected));
}

TEST(Pgac, GradientsAreThoseOfThePlainStepUnderEveryMask) {
  Sequential model = six_layers();
  const at::Tensor sample = sample_of();
  const Tensors expected = plain_step_of(model, sample);
  Pgac pgac;
  EXPECT_TRUE(same_bits(pgac_step_of(pgac, model, sample), expected));
  pgac.observe(0);
  ASSERT_EQ(pgac.layers().size(), 6u);
  const std::vector<double> scores = pgac.report().scores;
  for (unsigned bits = 0; bits < 64; ++bits) {
    pgac.set_mask(mask_of_bits(bits, 6));
    EXPECT_TRUE(same_bits(pgac_step_of(pgac, model, sample), expected)) << bits;
    pgac.observe(bits + 1);
    EXPECT_EQ(pgac.report().scores, scores) << "the mask changes no score, " << bits;
  }
}

TEST(Pgac, RecomputesWhatTheMaskSays) {
  struct CounterImpl : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x) {
      ++runs;
      return (x * 2).sin();
    }
    int runs = 0;
  };
  std::vector<torch::nn::ModuleHolder<CounterImpl>> model;
  for (int i = 0; i < 5; ++i) model.emplace_back(std::make_shared<CounterImpl>());
  const at::Tensor x = leaf();
  Pgac pgac;
  const auto runs_of = [&] {
    for (auto& layer : model) layer->runs = 0;
    pgac.run(model, x).sum().backward();
    std::vector<int> runs;
    for (auto& layer : model) runs.push_back(layer->runs);
    return runs;
  };
  EXPECT_EQ(runs_of(), (std::vector<int>{1, 1, 1, 1, 1}));
  pgac.set_mask({false, false, true, false, true});
  EXPECT_EQ(runs_of(), (std::vector<int>{2, 2, 1, 2, 1}));
  pgac.set_mask({true, false, true, false, false});
  EXPECT_EQ(runs_of(), (std::vector<int>{1, 2, 1, 1, 1})) << "the last run is kept";
  EXPECT_EQ(pgac.report().mask, (std::vector<bool>{true, false, true, true, true}));
  EXPECT_EQ(pgac.report().changes, 3 + 2);
  const at::NoGradGuard no_grad;
  const at::Tensor y = pgac.run(model, x);
  EXPECT_FALSE(y.requires_grad());
}

// The real one, on real layers, against both references, which get its scores.
TEST(Pgac, AgreesWithTheReferencesForAThousandSteps) {
  Sequential model = six_layers(4);
  torch::manual_seed(3);
  for (const bool literal : {false, true}) {
    PgacOptions options{.alpha = 0.8,
                        .quantile = 0.4,
                        .gamma = GammaSchedule::linear(0.6, 1.4),
                        .steps = 1000,
                        .follow_pseudocode = literal};
    Pgac pgac(options);
    Reference reference(6, options);
    for (int step = 0; step < 1000; ++step) {
      const at::Tensor x = at::randn({3, 4}) * std::exp(std::sin(0.01 * step));
      model->zero_grad();
      pgac.run(model, x).square().sum().backward();
      pgac.observe(step);
      const PgacReport report = pgac.report();
      // A layer whose activation backward does not reach has no score; here all have one.
      const double gamma = 0.6 + 0.8 * (step / 1000.0);
      literal ? reference.literal_step(report.scores, gamma) : reference.step(report.scores, gamma);
      ASSERT_EQ(report.averages, reference.averages()) << step;
      ASSERT_DOUBLE_EQ(report.threshold, reference.threshold()) << step;
      ASSERT_EQ(report.wanted, reference.mask()) << step;
    }
    EXPECT_GT(pgac.report().changes, 10);
  }
}

TEST(Pgac, GammaFollowsItsSchedule) {
  const auto gamma_at = [](const GammaSchedule& schedule, std::int64_t step) {
    Sequential model = six_layers(4);
    Pgac pgac({.gamma = schedule, .steps = 10});
    pgac.run(model, sample_of(4)).sum().backward();
    pgac.observe(step);
    return pgac.report().gamma;
  };
  EXPECT_EQ(gamma_at(GammaSchedule::constant(0.7), 3), 0.7);
  EXPECT_EQ(gamma_at(GammaSchedule::linear(0.5, 1.5), 0), 0.5);
  EXPECT_DOUBLE_EQ(gamma_at(GammaSchedule::linear(0.5, 1.5), 3), 0.8);
  EXPECT_EQ(gamma_at(GammaSchedule::linear(0.5, 1.5), 10), 1.5);
  EXPECT_EQ(gamma_at(GammaSchedule::cosine(2, 1), 0), 2);
  EXPECT_NEAR(gamma_at(GammaSchedule::cosine(2, 1), 5), 1.5, 1e-12);
  EXPECT_NEAR(gamma_at(GammaSchedule::cosine(2, 1), 10), 1, 1e-12);
}

TEST(Pgac, LayersInPlaceBelongToTheOneBefore) {
  torch::manual_seed(4);
  const auto relu = torch::nn::ReLUOptions(/*inplace=*/true);
  Sequential model(torch::nn::Linear(8, 16), torch::nn::BatchNorm1d(16), torch::nn::ReLU(relu),
                   torch::nn::Linear(16, 32), torch::nn::Flatten(), torch::nn::ReLU(relu),
                   torch::nn::Linear(32, 4));
  const at::Tensor sample = sample_of(8);
  const Tensors expected = plain_step_of(model, sample);
  for (const std::optional<Bytes> budget : {std::optional<Bytes>(), std::optional(MB(10))}) {
    Pgac pgac({.budget = budget});
    EXPECT_TRUE(same_bits(pgac_step_of(pgac, model, sample), expected));
    ASSERT_EQ(pgac.layers().size(), 4u);
    EXPECT_EQ(pgac.layers()[1].name, "BatchNorm1d + ReLU");
    EXPECT_EQ(pgac.layers()[2].count, 3);
    for (unsigned bits = 0; bits < 16; ++bits) {
      pgac.set_mask(mask_of_bits(bits, 4));
      EXPECT_TRUE(same_bits(pgac_step_of(pgac, model, sample), expected)) << bits;
    }
    pgac.observe(0);
    for (const double score : pgac.report().scores) EXPECT_GT(score, 0);
    EXPECT_EQ(pgac.report().changed, 0) << "scored after the change";
  }
}

TEST(Pgac, AFirstLayerThatWritesToTheInputIsKept) {
  Sequential model(torch::nn::ReLU(torch::nn::ReLUOptions(true)), torch::nn::Linear(8, 8),
                   torch::nn::Tanh(), torch::nn::Linear(8, 8));
  const auto step = [&](auto&& run) {
    model->zero_grad();
    at::Tensor x = sample_of(8);
    run(x).sum().backward();
    return take_gradients(model->parameters());
  };
  const Tensors expected = step([&](const at::Tensor& x) { return model->forward(x); });
  Pgac pgac;
  step([&](const at::Tensor& x) { return pgac.run(model, x); });
  // What reads the memory that was written to belongs to it.
  EXPECT_EQ(pgac.layers()[0].name, "ReLU + Linear");
  pgac.set_mask({false, false, true});
  EXPECT_TRUE(same_bits(step([&](const at::Tensor& x) { return pgac.run(model, x); }), expected));
  EXPECT_EQ(pgac.report().mask, (std::vector<bool>{true, false, true}));
}

TEST(Pgac, FrozenLayersHaveNoScore) {
  Sequential model(torch::nn::Linear(8, 8), torch::nn::Tanh(), torch::nn::Linear(8, 8),
                   torch::nn::Tanh(), torch::nn::Linear(8, 8));
  for (at::Tensor& parameter : model[0]->parameters()) parameter.requires_grad_(false);
  Pgac pgac;
  for (int step = 0; step < 3; ++step) {
    model->zero_grad();
    pgac.run(model, sample_of(8)).sum().backward();
    pgac.observe(step);
  }
  const PgacReport report = pgac.report();
  EXPECT_TRUE(std::isnan(report.scores[0]));
  EXPECT_TRUE(std::isnan(report.averages[1]));
  EXPECT_GT(report.averages[2], 0);
  EXPECT_TRUE(report.wanted[0]);
}

TEST(Pgac, AChangeOfTheMaskWaits) {
  Sequential model = six_layers(4);
  torch::manual_seed(5);
  Pgac pgac({.alpha = 0, .quantile = 0.5, .steps_between_changes = 4});
  std::vector<bool> before;
  int last_change = -4;
  for (int step = 0; step < 48; ++step) {
    model->zero_grad();
    pgac.run(model, at::randn({3, 4})).square().sum().backward();
    pgac.observe(step);
    const std::vector<bool> wanted = pgac.report().wanted;
    if (!before.empty() && wanted != before) {
      EXPECT_GE(step - last_change, 4);
      last_change = step;
    }
    before = wanted;
  }
  EXPECT_GT(last_change, 0) << "it does change";
}

TEST(Pgac, RefusesOptionsOutOfRange) {
  const auto refusal = [](const PgacOptions& options) {
    return refusal_of([&] { const Pgac pgac(options); });
  };
  EXPECT_TRUE(
      contains(refusal({.alpha = 1}), "Pgac: alpha is 1.000000; it must be from 0 to below 1"));
  EXPECT_TRUE(contains(refusal({.alpha = std::nan("")}), "alpha is nan"));
  EXPECT_TRUE(contains(refusal({.quantile = 1.5}), "quantile is 1.500000; it must be from 0 to 1"));
  EXPECT_TRUE(contains(refusal({.gamma = GammaSchedule::constant(-1)}), "gamma.first is -1.0"));
  EXPECT_TRUE(contains(refusal({.gamma = {.first = 2}}),
                       "gamma.last is 1.000000; it must be the same as gamma.first, 2.000000"));
  EXPECT_TRUE(contains(refusal({.gamma = GammaSchedule::linear(1, 2)}),
                       "steps is 0; it must be at least 1, the steps of the training"));
  EXPECT_TRUE(contains(refusal({.gamma = GammaSchedule::learned(), .steps = 5}),
                       "gamma is learned, but there is no budget"));
  EXPECT_TRUE(contains(refusal({.ranking = PgacRanking::kCost}), "there is no budget"));
  EXPECT_TRUE(contains(refusal({.fill_budget = true}), "there is no budget to fill"));
  EXPECT_TRUE(contains(refusal({.budget = Bytes(0)}), "budget is 0; it must be above 0 bytes"));
  EXPECT_TRUE(contains(refusal({.hysteresis = 1}), "hysteresis is 1.000000"));
  EXPECT_TRUE(contains(refusal({.steps_between_changes = 0}), "steps_between_changes is 0"));
  EXPECT_TRUE(contains(refusal({.stride = 0}), "stride is 0"));
}

TEST(Pgac, RefusesCallsOutOfOrderAndOtherModels) {
  Pgac pgac;
  EXPECT_TRUE(contains(refusal_of([&] { pgac.observe(0); }), "no step has been run"));
  EXPECT_TRUE(contains(refusal_of([&] { pgac.set_mask({true}); }), "no step has been run"));
  Sequential empty, model = six_layers(4);
  EXPECT_TRUE(
      contains(refusal_of([&] { pgac.run(empty, leaf()); }), "the list of layers is empty"));
  pgac.run(model, sample_of(4));
  EXPECT_TRUE(contains(refusal_of([&] { pgac.observe(-1); }), "the step is -1; it must be from 0"));
  EXPECT_TRUE(contains(refusal_of([&] { pgac.set_mask({true}); }),
                       "the mask has 1 entries, but there are 6 layers"));
  Sequential other{torch::nn::Tanh()};
  EXPECT_TRUE(contains(refusal_of([&] { pgac.run(other, leaf()); }),
                       "the model has 1 layers, but the one before had 6"));
  Pgac scheduled({.gamma = GammaSchedule::linear(1, 2), .steps = 5});
  scheduled.run(model, sample_of(4));
  EXPECT_TRUE(contains(refusal_of([&] { scheduled.observe(6); }), "from 0 to options.steps, 5"));
}

TEST(Pgac, InsideOfARegionTheFirstRunIsAsAllOthers) {
  // The saved tensors of these look alike: in another order they would be taken for each other.
  torch::manual_seed(6);
  Sequential model(torch::nn::Linear(8, 8), torch::nn::Tanh(), torch::nn::Linear(8, 8),
                   torch::nn::Tanh());
  const at::Tensor x = leaf({4, 8});
  Tensors leaves = model->parameters();
  leaves.push_back(x);
  const Tensors expected = gradients_of([&] { return model->forward(x); }, leaves);
  Pgac pgac;
  const auto run = [&](const at::Tensor& input) { return pgac.run(model, input); };
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(same_bits(gradients_of([&] { return checkpoint(run, x); }, leaves), expected)) << i;
    if (i == 1) pgac.set_mask({false, true, false, true});
  }
}

TEST(Pgac, ALayerThatReturnsItsInputIsNoneOfItsOwn) {
  Sequential model(torch::nn::Linear(8, 8), torch::nn::Dropout(0.5), torch::nn::Tanh(),
                   torch::nn::Dropout(0.5), torch::nn::Linear(8, 8));
  const at::Tensor x = leaf({4, 8});
  Pgac pgac;
  pgac.run(model, x).sum().backward();
  pgac.set_mask({true, false, false, false, true});
  model->eval();
  const Tensors expected = gradients_of([&] { return model->forward(x); }, model->parameters());
  const Bytes before = live_bytes();
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(
        same_bits(gradients_of([&] { return pgac.run(model, x); }, model->parameters()), expected));
    pgac.run(model, x);  // and a graph that is dropped
  }
  EXPECT_LE(live_bytes(), before + KiB(1)) << "nothing refers to itself";
}

TEST(Pgac, MicroBatchesAddTheirSquares) {
  Sequential model = six_layers();
  model->eval();
  const at::Tensor sample = sample_of();
  const auto score_of_rows = [&](std::vector<at::Tensor> parts) {
    Pgac pgac;
    for (const at::Tensor& part : parts) pgac.run(model, part).sum().backward();
    pgac.observe(0);
    return pgac.report().scores;
  };
  const auto whole = score_of_rows({sample});
  const auto parts = score_of_rows({sample.slice(0, 0, 16), sample.slice(0, 16, 64)});
  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(parts[i] / whole[i], 1, 1e-5);
}

TEST(Pgac, KeptGraphsAndAutocastAreThoseOfThePlainStep) {
  Sequential model = six_layers();
  const at::Tensor sample = sample_of();
  Pgac pgac;
  pgac.run(model, sample);
  pgac.set_mask({false, true, false, false, true, true});
  const auto twice = [&](auto&& run) {
    return step_of(model, sample, [&](const at::Tensor& x) {
      at::Tensor y = run(x);
      y.sum().backward({}, /*retain_graph=*/true);
      return y;
    });
  };
  EXPECT_TRUE(same_bits(twice([&](const at::Tensor& x) { return pgac.run(model, x); }),
                        twice([&](const at::Tensor& x) { return model->forward(x); })));
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const Tensors found = pgac_step_of(pgac, model, sample);
  const Tensors expected = plain_step_of(model, sample);
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_TRUE(same_bits(found, expected));
}

TEST(Pgac, AGraphMayOutliveIt) {
  Sequential model = six_layers();
  const at::Tensor sample = sample_of();
  const Tensors expected = plain_step_of(model, sample);
  const Tensors found = step_of(model, sample, [&](const at::Tensor& x) {
    Pgac pgac;
    pgac.run(model, x);
    for (at::Tensor& buffer : model->buffers()) buffer.zero_();
    torch::manual_seed(13);
    pgac.set_mask({false, false, true, false, true, true});
    return pgac.run(model, x);
  });
  EXPECT_TRUE(same_bits(found, expected));
}

TEST(Pgac, AStepThatThrowsLeavesItUsable) {
  struct ThrowerImpl : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x) {
      if (throws) throw std::runtime_error("thrown");
      return x.sin();
    }
    bool throws = false;
  };
  std::vector<torch::nn::ModuleHolder<ThrowerImpl>> model;
  for (int i = 0; i < 4; ++i) model.emplace_back(std::make_shared<ThrowerImpl>());
  const at::Tensor x = leaf();
  const Tensors expected = gradients_of([&] { return x.sin().sin().sin().sin(); }, {x});
  Pgac pgac;
  model[2]->throws = true;
  EXPECT_THROW(pgac.run(model, x), std::runtime_error);
  model[2]->throws = false;
  EXPECT_TRUE(same_bits(gradients_of([&] { return pgac.run(model, x); }, {x}), expected));
  pgac.set_mask({false, false, false, true});
  const at::Tensor y = pgac.run(model, x);
  model[2]->throws = true;
  EXPECT_THROW(y.sum().backward(), std::runtime_error);
  model[2]->throws = false;
  take_gradients({x});
  pgac.discard_step();
  pgac.observe(0);
  EXPECT_TRUE(std::isnan(pgac.report().averages[3]));
  pgac.set_mask({false, false, false, true});
  EXPECT_TRUE(same_bits(gradients_of([&] { return pgac.run(model, x); }, {x}), expected));
}

TEST(Pgac, ALayerThatComesToWriteToWhatItIsRunAgainFromIsNamed) {
  using torch::nn::Linear;
  Sequential model(Linear(24, 24), torch::nn::Dropout(0.2),
                   torch::nn::ReLU(torch::nn::ReLUOptions(true)), Linear(24, 24), Linear(24, 24));
  const at::Tensor sample = sample_of();
  Pgac pgac;
  pgac.run(model, sample);
  pgac.set_mask({true, false, true, true});
  pgac.run(model, sample).sum().backward();
  model->eval();  // in which dropout returns what it was given
  EXPECT_TRUE(contains(refusal_of([&] { pgac.run(model, sample); }),
                       "layer 1 (Dropout + ReLU) is run again from an input that it or"));
  pgac.set_mask({true, true, true, true});
  pgac.run(model, sample).sum().backward();
}

}  // namespace
}  // namespace reprise
