// Audits of the lossy tier that cannot be completed, and which of a step's runs are audited.
#include <ATen/record_function.h>
#include <reprise/checkpoint.h>
#include <reprise/error.h>
#include <reprise/experimental/pgac.h>

#include <algorithm>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "tests/influence/lossy_layers.h"
#include "tests/refusal.h"

namespace reprise {
namespace {

using namespace reprise::testing;
using torch::nn::Sequential;

// Its input gets no gradient.
struct DetachingImpl : torch::nn::Module {
  DetachingImpl() { inner = register_module("inner", GeluBlock()); }
  at::Tensor forward(const at::Tensor& x) {
    ++calls;
    return inner(x.detach());
  }
  GeluBlock inner = nullptr;
  int calls = 0;
};

TEST(LossyAudits, ThatCannotBeCompletedBecomeRareAndEndTheTier) {
  Sequential model = gelu_layers(2);
  const auto layer = std::make_shared<DetachingImpl>();
  model->push_back(layer);
  const at::Tensor sample = wide_sample();
  for (const std::int64_t every : {64, 1}) {
    PgacOptions options = lossy_options(3e-2);
    options.lossy->audit_every = every;
    Pgac pgac(options);
    int audited = 0;
    for (int step = 0; step < 64; ++step) {
      layer->calls = 0;
      pgac.run(model, sample).square().mean().backward();
      pgac.observe(step);
      if (layer->calls > 1) ++audited;
    }
    if (every > 1) {
      EXPECT_LE(audited, 10) << "in 64 steps";
      EXPECT_EQ(pgac.report().lossy_off, "");
    } else {
      EXPECT_EQ(audited, 16);
      EXPECT_TRUE(contains(pgac.report().lossy_off,
                           "16 audits in a row could not be completed, the last at layer 2"));
    }
  }
}

// Is short of memory in the first audit, which runs it again.
struct ShortImpl : torch::nn::Module {
  explicit ShortImpl(std::function<void()> given) : fails(std::move(given)) {
    inner = register_module("inner", GeluBlock());
  }
  at::Tensor forward(const at::Tensor& x) {
    if (is_recomputing() && !std::exchange(has_failed, true)) fails();
    return inner(x);
  }
  GeluBlock inner = nullptr;
  std::function<void()> fails;
  bool has_failed = false;
};

TEST(LossyAudits, ThatAreShortOfMemoryOnceDoNotEndTheTier) {
  const std::vector<std::function<void()>> errors = {
      [] { throw BudgetError("a passing shortage"); },
      [] { throw std::bad_alloc(); },
      [] { TORCH_CHECK_WITH(OutOfMemoryError, false, "a passing shortage"); },
  };
  for (const auto& error : errors) {
    Sequential model = gelu_layers(2);
    const auto layer = std::make_shared<ShortImpl>(error);
    model->push_back(layer);
    const at::Tensor sample = wide_sample();
    Pgac pgac(lossy_options(3e-2));
    for (int step = 0; step < 24; ++step) {
      step_under(pgac, model, sample);
      pgac.observe(step);
    }
    EXPECT_TRUE(layer->has_failed);
    EXPECT_EQ(pgac.report().lossy_off, "");
    EXPECT_GE(pgac.report().audits, 8);
  }
}

// The state of a tier before a step that it compresses.
std::string state_before_a_compressed_step(Sequential model, const at::Tensor& sample) {
  Pgac pgac(lossy_options(3e-2));
  for (int step = 0; step < 64; ++step) {
    std::string state = pgac.layers().empty() ? "" : pgac.state();
    step_under(pgac, model, sample);
    pgac.observe(step);
    if (pgac.report().compressed_from.count > 0) return state;
  }
  ADD_FAILURE() << "no step was compressed";
  return "";
}

TEST(LossyAudits, ARestoredTierCompressesNothingBeforeItHasLookedAtTheWeights) {
  Sequential model = gelu_layers(3);
  const at::Tensor sample = wide_sample();
  const std::string state = state_before_a_compressed_step(model, sample);
  {
    // The layers' inputs stay as they were.
    const at::NoGradGuard no_grad;
    model[2]->as<GeluBlock>()->out->weight.mul_(3);
  }
  const Tensors plain =
      step_of(model, sample, [&](const at::Tensor& x) { return model->forward(x); });
  Pgac resumed(lossy_options(3e-2)), in_region(lossy_options(3e-2));
  resumed.restore(state);
  in_region.restore(state);
  for (int step = 0; step < 2; ++step) {
    EXPECT_TRUE(same_bits(step_under(resumed, model, sample), plain)) << step;
    resumed.observe(step);
    EXPECT_TRUE(resumed.report().audited) << step;
    Tensors found;
    EXPECT_NO_THROW(found = step_of(model, sample, [&](const at::Tensor& x) {
                      return checkpoint(
                          [&](const at::Tensor& y) { return in_region.run(model, y); }, x);
                    }));
    EXPECT_TRUE(same_bits(found, plain)) << step;
    in_region.observe(step);
  }
}

// Of the parameters, of the two micro-batches together.
Tensors gradients_over(Sequential model, const std::vector<at::Tensor>& samples,
                       const std::function<at::Tensor(const at::Tensor&)>& run) {
  model->zero_grad();
  for (const at::Tensor& sample : samples) run(sample.detach()).square().mean().backward();
  Tensors all{{}, {}};
  for (const at::Tensor& each : model->parameters()) all.push_back(each.grad().clone());
  return all;
}

TEST(LossyAudits, AreOfAllRunsOfAStepOrOfNone) {
  for (const bool is_first : {true, false}) {
    Sequential model = gelu_layers(3);
    const at::Tensor known = wide_sample(), unknown = 3 * known;
    std::vector<at::Tensor> samples = {known, known};
    Pgac pgac(lossy_options(3e-2));
    bool was_audited = false, both_are_lossy = false;
    for (int step = 0; step < 40; ++step) {
      if (step == 16) samples[is_first ? 0 : 1] = unknown;
      const Tensors plain =
          gradients_over(model, samples, [&](const at::Tensor& x) { return model->forward(x); });
      int compressed = 0;
      const Tensors found = gradients_over(model, samples, [&](const at::Tensor& x) {
        const at::Tensor result = pgac.run(model, x);
        const std::vector<PgacRoute> routes = pgac.report().routes;
        if (routes[0] != PgacRoute::kKept && routes[0] != PgacRoute::kRecomputed) ++compressed;
        return result;
      });
      pgac.observe(step);
      const double error = relative_error(found, plain);
      EXPECT_LE(error, 3e-2) << step;
      if (pgac.report().audited) {
        EXPECT_EQ(error, 0) << step;
        EXPECT_EQ(compressed, 0) << step;
      }
      if (step < 16) continue;
      was_audited = was_audited || pgac.report().audited;
      both_are_lossy = both_are_lossy || compressed == 2;
    }
    EXPECT_EQ(pgac.report().lossy_off, "");
    EXPECT_TRUE(was_audited) << is_first;
    EXPECT_TRUE(both_are_lossy) << is_first << ": the new regime was learnt";
  }
}

thread_local int norms = 0;

TEST(LossyAudits, ATierThatIsOffReadsNoGradients) {
  Sequential model = gelu_layers(2);
  const auto layer = std::make_shared<ShortImpl>([] { throw std::runtime_error("no audit"); });
  layer->has_failed = true;  // not before two audits, which say which parameters there are
  model->push_back(layer);
  const at::Tensor sample = wide_sample();
  Pgac pgac(lossy_options(3e-2));
  for (int step = 0; step < 6; ++step) {
    if (step == 4) layer->has_failed = false;
    step_under(pgac, model, sample);
    norms = 0;
    const at::CallbackHandle handle = at::addThreadLocalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& call)
                                       -> std::unique_ptr<at::ObserverContext> {
          if (std::string(call.name()) == "aten::linalg_vector_norm") ++norms;
          return nullptr;
        }).scopes({at::RecordScope::FUNCTION}));
    pgac.observe(step);
    at::removeCallback(handle);
  }
  EXPECT_TRUE(contains(pgac.report().lossy_off, "no audit"));
  EXPECT_EQ(norms, 0);
}

}  // namespace
}  // namespace reprise
