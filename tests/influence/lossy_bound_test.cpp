// The lossy tier's bound beside real errors: whole steps' gradients against those of the exact
// step, in regimes that were made to break it. No factor is allowed anywhere.
#include <reprise/experimental/pgac.h>

#include <algorithm>
#include <functional>
#include <string>

#include "tests/influence/lossy_layers.h"
#include "tests/refusal.h"

namespace reprise {
namespace {

using namespace reprise::testing;
using torch::nn::Sequential;

constexpr double kBound = 1e-2;

using Activation = std::function<at::Tensor(const at::Tensor&)>;

struct BentImpl : torch::nn::Module {
  BentImpl(std::int64_t width, Activation given) : activation(std::move(given)) {
    weight = register_parameter(
        "weight", torch::randn({width, width}) / std::sqrt(static_cast<double>(width)));
  }
  at::Tensor forward(const at::Tensor& x) { return activation(x.mm(weight)); }
  at::Tensor weight;
  Activation activation;
};
TORCH_MODULE(Bent);

Sequential bent_layers(const Activation& activation, int count = 5) {
  torch::manual_seed(7);
  Sequential model;
  for (int i = 0; i < count; ++i) model->push_back(Bent(96, activation));
  return model;
}

at::Tensor bent_tanh(const at::Tensor& a) { return torch::tanh(a); }
at::Tensor heavy(const at::Tensor& a) { return a / (a * a + 1e-3); }
at::Tensor batch() { return torch::randn({192, 96}); }

struct Outcome {
  int above = 0;       // steps whose real error was above the bound
  int compressed = 0;  // steps that were
  int unsaid = 0;      // above the bound, and not by the report
  double worst = 0;
  std::vector<double> errors;
  PgacReport report;
};

PgacOptions bound_options(double bound = kBound) {
  PgacOptions options = lossy_options(bound);
  options.lossy->int4_threshold = 1;
  options.lossy->audit_every = 16;
  return options;
}

// `step` makes a step's batch, `loss` its loss of the model's result; `after` is called after it.
struct Training {
  std::function<at::Tensor(int)> sample;
  std::function<at::Tensor(const at::Tensor&, int)> loss = [](const at::Tensor& y, int) {
    return y.square().mean();
  };
  std::function<void(int)> before = [](int) {};
  std::function<void(int)> after = [](int) {};
};

template <class Model>
Outcome outcome_of(Model& model, const Tensors& parameters, const Training& training, int steps,
                   const PgacOptions& options = bound_options()) {
  Pgac pgac(options);
  Outcome outcome;
  for (int step = 0; step < steps; ++step) {
    torch::manual_seed(1000 + static_cast<std::uint64_t>(step));
    training.before(step);
    const at::Tensor x = training.sample(step);
    const auto gradients = [&](bool is_lossy) {
      for (const at::Tensor& each : parameters) each.mutable_grad() = at::Tensor();
      torch::manual_seed(static_cast<std::uint64_t>(step));
      at::Tensor y = x;
      if (is_lossy) {
        y = pgac.run(model, x);
      } else {
        for (auto& layer : model) y = layer.forward(y);
      }
      const at::Tensor loss = training.loss(y, step);
      if (loss.requires_grad()) loss.backward();
      Tensors all{{}, {}};
      for (const at::Tensor& each : parameters) {
        all.push_back(each.grad().defined() ? each.grad().clone() : torch::zeros_like(each));
      }
      return all;
    };
    const Tensors plain = gradients(false), lossy = gradients(true);
    pgac.observe(step);
    training.after(step);
    outcome.report = pgac.report();
    // Of gradients that are zero, or infinite, there is none.
    const double relative = relative_error(lossy, plain);
    const double error = std::isfinite(relative) ? relative : 0;
    if (outcome.report.compressed_to < outcome.report.compressed_from) ++outcome.compressed;
    outcome.errors.push_back(error);
    outcome.worst = std::max(outcome.worst, error);
    if (error <= options.lossy->gradient_error) continue;
    ++outcome.above;
    if (outcome.report.gradient_error <= options.lossy->gradient_error) ++outcome.unsaid;
  }
  return outcome;
}

Outcome outcome_of(Sequential& model, const Training& training, int steps,
                   const PgacOptions& options = bound_options()) {
  std::vector<torch::nn::AnyModule> layers(model->begin(), model->end());
  return outcome_of(layers, model->parameters(), training, steps, options);
}

TEST(LossyBound, HoldsWhereNothingChanges) {
  for (const Activation& activation :
       {Activation(bent_tanh), Activation([](const at::Tensor& a) { return torch::sin(a) * 3; })}) {
    Sequential model = bent_layers(activation);
    const Outcome outcome = outcome_of(model, {.sample = [](int) { return batch(); }}, 60);
    EXPECT_EQ(outcome.above, 0) << outcome.worst;
    EXPECT_GE(outcome.compressed, 30);
    EXPECT_EQ(outcome.report.lossy_off, "");
  }
}

TEST(LossyBound, HoldsWhereSomeBatchesAreLarger) {
  for (const double factor : {30.0, 3.0, 0.05}) {
    Sequential model = bent_layers(bent_tanh);
    const Outcome outcome = outcome_of(
        model, {.sample = [&](int step) { return batch() * (step % 5 == 4 ? factor : 1.0); }}, 60);
    EXPECT_EQ(outcome.above, 0) << factor << ": " << outcome.worst;
    EXPECT_GE(outcome.compressed, 15) << factor;
  }
}

TEST(LossyBound, ARegimeThatWasNeverSeenIsExact) {
  Sequential model = bent_layers(bent_tanh);
  const Outcome outcome = outcome_of(
      model,
      {.sample = [](int step) { return batch() * (step >= 40 && step % 4 == 0 ? 100.0 : 1.0); }},
      49);
  EXPECT_EQ(outcome.above, 0) << outcome.worst;
  EXPECT_GT(outcome.errors[39], 0) << "the one that was";
  for (const int step : {40, 44, 48}) EXPECT_EQ(outcome.errors[step], 0) << step;
}

TEST(LossyBound, HeavyTailedLayersAreRefused) {
  Sequential model = bent_layers(heavy);
  const Outcome outcome = outcome_of(model, {.sample = [](int) { return batch(); }}, 60);
  EXPECT_EQ(outcome.above, 0) << outcome.worst;
  EXPECT_EQ(std::ranges::count(outcome.report.refused, true), 5);
  EXPECT_EQ(outcome.compressed, 0);
  // One among others.
  Sequential mixed = bent_layers(bent_tanh, 3);
  mixed->push_back(Bent(96, heavy));
  mixed->push_back(Bent(96, bent_tanh));
  const Outcome one = outcome_of(mixed, {.sample = [](int) { return batch(); }}, 60);
  EXPECT_EQ(one.above, 0) << one.worst;
  EXPECT_TRUE(one.report.refused[3]);
  EXPECT_GE(one.compressed, 30) << "the others";
}

TEST(LossyBound, HoldsWithOutliersNowAndThen) {
  Sequential model = bent_layers([](const at::Tensor& a) { return torch::gelu(a); });
  const Outcome outcome = outcome_of(model,
                                     {.sample =
                                          [](int step) {
                                            at::Tensor x = batch();
                                            if (step % 7 == 6) x[step][step] = 500;
                                            return x;
                                          }},
                                     60);
  EXPECT_EQ(outcome.above, 0) << outcome.worst;
  EXPECT_GE(outcome.compressed, 20);
}

TEST(LossyBound, HoldsWhileWeightsGrow) {
  for (const double factor : {1.03, 1.3}) {
    Sequential model = bent_layers([](const at::Tensor& a) { return torch::gelu(a); });
    const Outcome outcome = outcome_of(model,
                                       {.sample = [](int) { return batch(); },
                                        .after =
                                            [&](int) {
                                              const at::NoGradGuard no_grad;
                                              for (at::Tensor& each : model->parameters()) {
                                                each.mul_(factor);
                                              }
                                            }},
                                       50);
    EXPECT_EQ(outcome.above, 0) << factor << ": " << outcome.worst;
  }
}

TEST(LossyBound, HoldsWhenALayersWeightsJump) {
  Sequential model = bent_layers(bent_tanh);
  const Outcome outcome =
      outcome_of(model,
                 {.sample = [](int) { return batch(); },
                  .before =
                      [&](int step) {
                        if (step < 30 || step % 6 > 1) return;
                        const at::NoGradGuard no_grad;
                        model->parameters()[3].mul_(step % 6 == 0 ? 40 : 1. / 40);
                      }},
                 60);
  EXPECT_EQ(outcome.above, 0) << outcome.worst;
  EXPECT_GE(outcome.compressed, 15);
}

// Gradients of single samples come to cancel, and the noise in them does not.
TEST(LossyBound, HoldsWhileATrainingMemorises) {
  Sequential model = gelu_layers(4);
  torch::manual_seed(6);
  const at::Tensor x = torch::randn({256, 64}), target = torch::randn({256, 64});
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(2e-3));
  const Outcome outcome =
      outcome_of(model,
                 {.sample = [&](int) { return x; },
                  .loss = [&](const at::Tensor& y, int) { return (y - target).square().mean(); },
                  .after = [&](int) { optimizer.step(); }},
                 120, bound_options(2e-2));
  EXPECT_EQ(outcome.above, 0) << outcome.worst;
  EXPECT_GE(outcome.compressed, 20);
}

TEST(LossyBound, HoldsForWeightsThatLayersShare) {
  torch::manual_seed(5);
  const at::Tensor shared = (torch::randn({96, 96}) / 10).requires_grad_();
  struct SharingImpl : torch::nn::Module {
    explicit SharingImpl(at::Tensor given) : weight(std::move(given)) {
      own = register_parameter("own", torch::randn({96, 96}) / 10);
    }
    at::Tensor forward(const at::Tensor& x) { return torch::gelu(x.mm(weight)).mm(own); }
    at::Tensor weight, own;
  };
  using Sharing = torch::nn::ModuleHolder<SharingImpl>;
  std::vector<torch::nn::AnyModule> layers;
  Tensors parameters{shared};
  for (int i = 0; i < 4; ++i) {
    Sharing layer(shared);
    parameters.push_back(layer->own);
    layers.emplace_back(layer);
  }
  const Outcome outcome =
      outcome_of(layers, parameters, {.sample = [](int) { return batch(); }}, 50);
  EXPECT_EQ(outcome.above, 0) << outcome.worst;
  EXPECT_GE(outcome.compressed, 20);
}

TEST(LossyBound, HoldsWithDropoutAndFrozenSteps) {
  Sequential model = bent_layers(
      [](const at::Tensor& a) { return torch::dropout(torch::gelu(a), 0.3, /*train=*/true); });
  const auto train = [&](bool trains) {
    for (at::Tensor& each : model->parameters()) each.requires_grad_(trains);
  };
  const Outcome outcome = outcome_of(model,
                                     {.sample = [](int) { return batch(); },
                                      .before = [&](int step) { train(step % 4 != 3); },
                                      .after = [&](int) { train(true); }},
                                     60);
  EXPECT_EQ(outcome.above, 0) << outcome.worst;
  EXPECT_GE(outcome.compressed, 15);
}

// No decision before backward can know of it: the report says so, or an audit ends the tier.
TEST(LossyBound, ALossThatChangesIsSaidOrSeenByAnAudit) {
  Sequential model = bent_layers(bent_tanh);
  const Outcome outcome = outcome_of(model,
                                     {.sample = [](int) { return batch(); },
                                      .loss =
                                          [](const at::Tensor& y, int step) {
                                            // Gradients of samples that cancel: of sign at random.
                                            return step >= 30 && step % 3 == 0
                                                       ? (y * torch::randn_like(y)).mean()
                                                       : y.square().mean() + y.mean();
                                          }},
                                     90);
  EXPECT_EQ(outcome.unsaid, 0) << outcome.worst;
}

// Steps look as before, but gradients of samples come to cancel.
TEST(LossyBound, AnAuditThatFindsMoreThanTheBoundEndsTheTier) {
  Sequential model = bent_layers(bent_tanh);
  PgacOptions options = bound_options();
  options.lossy->audit_every = 1;
  const Outcome outcome =
      outcome_of(model,
                 {.sample =
                      [](int) {
                        const at::Tensor half = torch::randn({96, 96});
                        return torch::cat({half, half + torch::randn({96, 96}) * 1e-3});
                      },
                  .loss =
                      [](const at::Tensor& y, int step) {
                        const at::Tensor signs = torch::ones({192, 1});
                        if (step >= 20) signs.slice(0, 0, 96).fill_(-1);
                        return (y.square() * signs).sum();
                      }},
                 30, options);
  EXPECT_EQ(outcome.report.audit_failures, 1);
  EXPECT_GT(outcome.report.audited_error, kBound);
  EXPECT_TRUE(contains(outcome.report.lossy_off, "above lossy.gradient_error, which is 0.010000"));
  EXPECT_EQ(outcome.report.audits, 19) << "none after that";
}

TEST(LossyBound, HoldsWithLossScales) {
  Sequential model = bent_layers(bent_tanh);
  const Outcome outcome =
      outcome_of(model,
                 {.sample = [](int) { return batch(); },
                  .loss = [](const at::Tensor& y,
                             int step) { return y.square().mean() * (step % 3 == 0 ? 1024 : 1); }},
                 40);
  EXPECT_EQ(outcome.above, 0) << outcome.worst;
  EXPECT_GE(outcome.compressed, 20);
}

}  // namespace
}  // namespace reprise
