// estimate_step(): what it counts, what it leaves as it was, and what it refuses.
#include <gmock/gmock.h>
#include <reprise/checkpoint.h>
#include <reprise/estimate.h>
#include <reprise/memory.h>
#include <reprise/planners.h>
#include <reprise/selective.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "estimate/account.h"
#include "tests/refusal.h"

namespace reprise {
namespace {

namespace nn = torch::nn;
using ::testing::HasSubstr;

constexpr std::int64_t kBatch = 32, kWidth = 128;

struct Model : nn::Module {
  nn::Linear first{kWidth, kWidth}, second{kWidth, kWidth};
  at::Tensor seen = register_buffer("seen", at::zeros({1}));
  Model() {
    register_module("first", first);
    register_module("second", second);
  }
  at::Tensor loss(const at::Tensor& x) {
    at::Tensor hidden;
    {
      const NamedScope name("layer7");
      hidden = at::gelu(first->forward(x));
    }
    seen.add_(1);
    return second->forward(hidden).square().mean();
  }
};

std::int64_t counted(std::int64_t numbers) { return estimate::handed_out(numbers * 4, c10::kCPU); }

TEST(EstimateStep, CountsStateGradientsAndWhatForwardKeeps) {
  Model model;
  const auto x = at::randn({kBatch, kWidth});
  const Estimate found =
      estimate_step(model, [&] { return model.loss(x); }, {.optimizer = {OptimizerKind::kAdamW}});
  const std::int64_t weights = 2 * (counted(kWidth * kWidth) + counted(kWidth));
  EXPECT_EQ(found.parameter_count, 2 * (kWidth * kWidth + kWidth));
  EXPECT_EQ(found.parameters.count, weights);
  EXPECT_EQ(found.gradients.count, weights);
  EXPECT_EQ(found.optimizer_state.count, 2 * weights);
  EXPECT_EQ(found.buffers.count, counted(1));
  EXPECT_EQ(found.inputs.count, counted(kBatch * kWidth));
  // gelu keeps its input and gives the next layer's; square keeps its own; and the loss.
  EXPECT_EQ(found.activations.count, 3 * counted(kBatch * kWidth) + counted(1));
  const auto gelu = std::ranges::find(found.kept, "layer/gelu", &Estimate::Item::kind);
  ASSERT_NE(gelu, found.kept.end());
  EXPECT_EQ(gelu->bytes.count, counted(kBatch * kWidth));
  EXPECT_EQ((found.gradients_at_peak + found.activations_at_peak + found.temporaries_at_peak +
             found.state())
                .count,
            found.peak.count);
}

TEST(EstimateStep, LeavesTheModuleAsItWas) {
  Model model;
  const auto x = at::randn({kBatch, kWidth});
  model.loss(x).backward();
  const auto gradient = model.first->weight.grad();
  const auto weight = model.first->weight.clone();
  const auto seen = model.seen.clone();
  const auto generator = at::globalContext().defaultGenerator(c10::kCPU);
  const auto before = generator.get_state();
  const Bytes live = live_bytes();
  const auto* const memory = model.first->weight.const_data_ptr();
  estimate_step(model, [&] { return at::dropout(model.loss(x), 0.5, true); });
  EXPECT_EQ(model.first->weight.const_data_ptr(), memory);
  EXPECT_TRUE(torch::equal(model.first->weight, weight));
  EXPECT_TRUE(torch::equal(model.seen, seen));
  EXPECT_TRUE(model.first->weight.grad().is_same(gradient));
  EXPECT_TRUE(torch::equal(generator.get_state(), before));
  EXPECT_EQ(live_bytes().count, live.count);
  model.loss(x).backward();
}

TEST(EstimateStep, AllocatesNothingForAModelBeyondAnyMachine) {
  const PeakScope scope;
  std::optional<nn::Linear> layer;
  {
    const MetaTensorsScope unallocated;
    layer.emplace(1 << 20, 1 << 20);
  }
  EXPECT_TRUE((*layer)->weight.is_meta());
  const auto x = at::empty({8, 1 << 20}, at::kMeta);
  const Estimate found = estimate_step(**layer, [&] { return (*layer)->forward(x).sum(); });
  EXPECT_GE(found.parameters, Bytes(std::int64_t{1} << 42));
  EXPECT_LT(scope.peak_above_start(), KB(10));
}

// A region stops at the last product, of which backward needs the inputs alone. What the meta
// device takes for the rest of it decides nothing.
TEST(EstimateStep, RegionsStopWhereTheyWouldOnADeviceHoweverQuickOperatorsAreWithoutMemory) {
  nn::Linear layer(nn::LinearOptions(kWidth, kWidth).bias(false));
  const auto x = at::randn({kBatch, kWidth});
  const auto recomputed = [&](EarlyStop early_stop) {
    return estimate_step(*layer,
                         [&] {
                           at::Tensor y = x;
                           for (int i = 0; i < 64; ++i) {
                             y = checkpoint(
                                 {.early_stop = early_stop},
                                 [&](const at::Tensor& t) { return layer->forward(t.sin()); }, y);
                           }
                           return y.sum();
                         })
        .recomputed_flops;
  };
  EXPECT_EQ(recomputed(EarlyStop::kWhenCheaper), recomputed(EarlyStop::kAlways));
  EXPECT_LT(recomputed(EarlyStop::kAlways), recomputed(EarlyStop::kNever) / 10);
}

TEST(EstimateStep, FollowsRegions) {
  Model model;
  const auto x = at::randn({kBatch, kWidth});
  const auto plain = [&] { return model.loss(x); };
  const auto whole = [&] {
    return checkpoint([&](const at::Tensor& y) { return model.loss(y); }, x);
  };
  const Estimate kept = estimate_step(model, plain), again = estimate_step(model, whole);
  EXPECT_EQ(kept.recomputed_flops, 0);
  EXPECT_LT(again.activations, Bytes(1000));
  EXPECT_GT(again.recomputed_flops, 0.9 * 4 * kBatch * kWidth * kWidth);
  EXPECT_EQ(again.gradients, kept.gradients);
}

TEST(EstimateStep, DividesStateByShards) {
  Model model;
  const auto step = [&] { return model.loss(at::randn({kBatch, kWidth})); };
  const OptimizerOptions adamw = {OptimizerKind::kAdamW};
  const Estimate one = estimate_step(model, step, {.optimizer = adamw});
  const Estimate four = estimate_step(model, step, {.optimizer = adamw, .shards = 4});
  EXPECT_NEAR(double(four.parameters.count), double(one.parameters.count) / 4, 64);
  EXPECT_NEAR(double(four.gradients.count), double(one.gradients.count) / 4, 64);
  EXPECT_NEAR(double(four.optimizer_state.count), double(one.optimizer_state.count) / 4, 64);
  EXPECT_EQ(four.activations, one.activations);
  EXPECT_LT(four.peak, one.peak);
}

// As handed out: three numbers have no third of theirs in 8 bytes.
TEST(EstimateStep, DividesEachTensorOfTheOptimizersState) {
  nn::Module module;
  const auto one = module.register_parameter("one", at::rand({3}));
  const auto two = module.register_parameter("two", at::rand({3}));
  const Estimate found =
      estimate_step(module, [&] { return (one * two).sum(); },
                    {.device = c10::kCUDA, .optimizer = {OptimizerKind::kAdamW}, .shards = 3});
  constexpr std::int64_t kBlock = 512, kStates = 2;
  EXPECT_EQ(found.optimizer_state, Bytes(2 * kStates * kBlock));
  EXPECT_EQ(found.parameters, Bytes(2 * kBlock));
}

TEST(EstimateStep, CountsMasterWeightsOf16BitParameters) {
  nn::Linear layer(nn::LinearOptions(kWidth, kWidth).bias(false));
  layer->to(at::kBFloat16);
  const auto state = [&](OptimizerOptions optimizer) {
    const auto step = [&] { return layer->forward(at::ones({2, kWidth}, at::kBFloat16)).sum(); };
    return estimate_step(*layer, step, {.device = c10::kCUDA, .optimizer = optimizer})
        .optimizer_state.count;
  };
  constexpr std::int64_t kCount = kWidth * kWidth;
  EXPECT_EQ(state({OptimizerKind::kNone}), 0);
  EXPECT_EQ(state({OptimizerKind::kSgd, false}), 2 * kCount);
  EXPECT_EQ(state({OptimizerKind::kAdamW, false}), 4 * kCount);
  // With the 2 bytes of the weights and the 2 of their gradients: 16 a parameter.
  EXPECT_EQ(state({OptimizerKind::kAdamW, true}), 12 * kCount);
}

TEST(EstimateStep, GivesATraceThatPlannersRead) {
  Model model;
  const Estimate found =
      estimate_step(model,
                    [&] {
                      return model.loss(at::randn({kBatch, kWidth}));
                    },
                    {.machine = {.flops = 1e9, .low_precision_flops = 1e9, .bandwidth = 1e9}});
  EXPECT_EQ(found.trace.constants(), found.state());
  EXPECT_NEAR(double(found.trace.plain_peak().count), double(found.peak.count),
              0.02 * double(found.peak.count));
  EXPECT_NEAR(found.trace.base().count(), found.seconds.count(), 1e-6);
  const StepPlan plan = planners::hindsight(
      found.trace, {.budget = found.trace.plain_peak() - Bytes(1), .moves = 1000});
  EXPECT_TRUE(plan.fits);
  EXPECT_GE(plan.slowdown, 1);
}

TEST(EstimateStep, RefusesWhatItCannotEstimate) {
  Model model;
  const auto x = at::randn({kBatch, kWidth});
  const auto refusal = [&](const std::function<at::Tensor()>& step, EstimateOptions options = {}) {
    return refusal_of([&] { estimate_step(model, step, options); });
  };
  const auto plain = [&] { return model.loss(x); };
  EXPECT_THAT(refusal(plain, {.device = c10::kXPU}),
              HasSubstr("the device is xpu; it must be cpu"));
  EXPECT_THAT(refusal(plain, {.shards = 0}), HasSubstr("shards is 0; it must be from 1"));
  EXPECT_THAT(refusal(plain, {.shards = std::numeric_limits<std::int64_t>::max()}),
              HasSubstr("the device alone, to 1048576"));
  EXPECT_THAT(refusal(plain, {.device = static_cast<c10::DeviceType>(99)}),
              HasSubstr("the device is of number 99, which is none"));
  EXPECT_THAT(refusal([&] { return model.first->forward(x); }), HasSubstr("it gave 4096 numbers"));
  EXPECT_THAT(refusal([&] { return model.loss(x).detach(); }), HasSubstr("without a gradient"));
  EXPECT_THAT(refusal([] { return at::Tensor(); }), HasSubstr("it gave nothing"));
  EXPECT_THAT(refusal([&] { return model.loss(x) * (x > 0).nonzero().size(0); }),
              HasSubstr("aten::nonzero"));
  EXPECT_THAT(refusal([&] { return model.loss(x) * model.loss(x).item<double>(); }),
              HasSubstr("values"));
  // And the module is there again.
  model.loss(x).backward();
}

TEST(Machine, IsTheLongerOfArithmeticAndBytes) {
  const Machine machine = {.flops = 1e12,
                           .low_precision_flops = 4e12,
                           .bandwidth = 1e9,
                           .overhead = std::chrono::microseconds(5)};
  EXPECT_DOUBLE_EQ(machine.seconds(2e12, 1e6, false).count(), 2 + 5e-6);
  EXPECT_DOUBLE_EQ(machine.seconds(2e12, 1e6, true).count(), 0.5 + 5e-6);
  EXPECT_DOUBLE_EQ(machine.seconds(1e6, 3e9, false).count(), 3 + 5e-6);
}

TEST(Machine, IsReadAsItWasWritten) {
  const Machine machine = calibrate(std::chrono::milliseconds(40));
  EXPECT_GT(machine.flops, 1e6);
  EXPECT_GT(machine.low_precision_flops, 1e5);
  EXPECT_GT(machine.bandwidth, 1e6);
  EXPECT_GT(machine.overhead.count(), 0);
  const Machine again = Machine::parse(machine.json(), "machine.json");
  EXPECT_EQ(again.flops, machine.flops);
  EXPECT_EQ(again.low_precision_flops, machine.low_precision_flops);
  EXPECT_EQ(again.bandwidth, machine.bandwidth);
  EXPECT_EQ(again.overhead.count(), machine.overhead.count());
}

TEST(Machine, IsNotWrittenAsItCouldNotBeRead) {
  EXPECT_THAT(refusal_of([] { return Machine{.flops = std::nan("")}.json(); }),
              HasSubstr("Machine::json(): the machine's flops is nan; it must be from 1"));
}

TEST(Machine, RefusesOtherTexts) {
  const auto refusal = [](const std::string& text) {
    return refusal_of([&] { Machine::parse(text, "m.json"); });
  };
  EXPECT_THAT(refusal("{"), HasSubstr("m.json:1"));
  EXPECT_THAT(refusal("{}"), HasSubstr("format"));
  // Errors end where a text does.
  EXPECT_THAT(refusal("{\"format\": \"a\\u0000\\nb\"}"),
              HasSubstr("is \"a\\u0000\\u000ab\"; it must be \"reprise machine\""));
  const std::string lengthy = refusal("{\"format\": \"" + std::string(100'000, 'x') + "\"}");
  EXPECT_LT(lengthy.size(), 1000U);
  EXPECT_THAT(lengthy, HasSubstr("; it must be \"reprise machine\""));
  std::string wrong = Machine().json();
  wrong.replace(wrong.find("100000000000.0"), 14, "-1");
  EXPECT_THAT(refusal(wrong), HasSubstr("bytes_per_second"));
  EXPECT_THAT(refusal_of([] { Machine::read("/nowhere/m.json"); }),
              HasSubstr("cannot read the machine /nowhere/m.json"));
  for (const double seconds : {0., std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT(refusal_of([&] { calibrate(std::chrono::duration<double>(seconds)); }),
                HasSubstr("it must be above zero, and finite"));
  }
}

}  // namespace
}  // namespace reprise
