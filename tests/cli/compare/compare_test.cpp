// `reprise compare`: its figures follow the strategies, and its verdict on gradients is a verdict.
#include <gmock/gmock.h>
#include <reprise/error.h>
#include <reprise/saved_tensor_hooks.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "apps/cli/compare/comparison.h"
#include "apps/cli/training/gradients.h"
#include "apps/cli/training/memory_need.h"
#include "tests/cli/program.h"

namespace reprise::app {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

TEST(Compare, MeasuresEveryStrategyAgainstThePlainStep) {
  const Finished run = run_here(tiny_run(
      "compare", "--strategies every-block,from-input,every-block --layers 8 --steps 2 --json"));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json result = json::parse(run.out);
  const json& rows = result.at("strategies");
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].at("strategy"), "none");
  EXPECT_EQ(rows[0].at("recompute_share"), 0);
  EXPECT_EQ(rows[0].at("ratio_to_none"), 1);
  for (const json& row : rows) {
    EXPECT_TRUE(row.at("gradients_equal").get<bool>());
    EXPECT_GT(row.at("ms_per_step"), 0);
    EXPECT_GT(row.at("peak_bytes"), row.at("activation_bytes"));
  }
  for (int i : {1, 2}) {
    EXPECT_LT(rows[i].at("activation_bytes"), rows[0].at("activation_bytes"));
    EXPECT_GT(rows[i].at("recompute_share"), 0);
    EXPECT_LT(rows[i].at("recompute_share"), 1);
  }
  // The same weights and gradients live under all of them.
  const auto alive = [&](int i) {
    return rows[i].at("peak_bytes").get<std::int64_t>() -
           rows[i].at("activation_bytes").get<std::int64_t>();
  };
  EXPECT_NEAR(alive(1), alive(0), 2000);
}

TEST(Compare, HoldsInEveryVariant) {
  for (const char* more : {"--reentrant", "--dtype bf16", "--attention unfused", "--dropout 0",
                           "--determinism values", "--determinism none"}) {
    const Finished run = run_here(
        tiny_run("compare", std::string("--steps 1 --strategies sqrt,from-input ") + more));
    EXPECT_EQ(run.exit_code, 0) << more << run.err;
    EXPECT_THAT(run.out, AllOf(HasSubstr("same gradients"), HasSubstr("sqrt"), HasSubstr("1.00×")));
  }
}

TEST(Compare, LeavesOutUsualStrategiesThatDoNotFitTheModel) {
  const auto measured = [](const std::string& more) {
    std::vector<std::string> names;
    const Finished run = run_here(tiny_run("compare", "--steps 1 --json " + more));
    EXPECT_EQ(run.exit_code, 0) << run.err;
    const json result = json::parse(run.out);
    for (const json& row : result.at("strategies")) names.push_back(row.at("strategy"));
    return names;
  };
  EXPECT_EQ(measured("--layers 1"), (std::vector<std::string>{"none", "sqrt", "every-block"}));
  EXPECT_EQ(measured("--layers 4").size(), 4u);
  EXPECT_EQ(measured("--strategies none, sqrt"), (std::vector<std::string>{"none", "sqrt"}));
}

TextData some_text() {
  TextData data;
  data.training = std::string(200, 'x');
  return data;
}

TEST(Compare, MeasuresByteBudgetsBesideTheStrategies) {
  const Finished run = run_here(
      tiny_run("compare",
               std::string(kDeep) +
                   "--json --steps 2 --strategies every-block,budget:60%,budget:+4MB,budget:1GB"));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json rows = json::parse(run.out).at("strategies");
  ASSERT_EQ(rows.size(), 5u);
  const json &plain = rows[0], &share = rows[2], &above = rows[3], &wide = rows[4];
  EXPECT_FALSE(plain.contains("budget_bytes"));
  EXPECT_EQ(share.at("strategy"), "budget:60%");
  EXPECT_GT(share.at("per_step").at("dropped"), 0);
  EXPECT_GT(share.at("per_step").at("replayed"), 0);
  EXPECT_GT(share.at("recompute_share"), 0);
  EXPECT_LE(above.at("activation_bytes"), 4'000'000);
  EXPECT_EQ(wide.at("budget_bytes"), 1'000'000'000);
  EXPECT_EQ(wide.at("per_step").at("dropped"), 0);
  for (int i : {2, 3, 4}) {
    EXPECT_LE(rows[i].at("peak_bytes"), rows[i].at("budget_bytes")) << rows[i];
    EXPECT_TRUE(rows[i].at("gradients_equal").get<bool>());
    EXPECT_TRUE(rows[i].at("fits").get<bool>());
    EXPECT_GT(rows[i].at("ratio_to_none"), 0);
  }
}

TEST(Compare, AStrategyThatFailsIsARowAndTheOthersRemain) {
  const std::string which = "--steps 2 --strategies budget:+100kB,budget:20kB,every-block";
  const Finished run = run_here(tiny_run("compare", std::string(kDeep) + "--json " + which));
  EXPECT_EQ(run.exit_code, 1);
  const json rows = json::parse(run.out).at("strategies");
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_FALSE(rows[1].at("fits").get<bool>());
  EXPECT_FALSE(rows[1].contains("peak_bytes"));
  EXPECT_FALSE(rows[2].at("fits").get<bool>());
  EXPECT_THAT(rows[1].at("failure").get<std::string>(), HasSubstr(" asks for "));
  EXPECT_THAT(rows[2].at("failure").get<std::string>(), HasSubstr("live before the step already"));
  EXPECT_TRUE(rows[3].at("gradients_equal").get<bool>());
  EXPECT_GT(rows[3].at("ms_per_step"), 0);
  EXPECT_THAT(run.err, AllOf(HasSubstr("reprise compare: budget:+100kB failed: memory budget of"),
                             HasSubstr("reprise compare: budget:20kB failed: "),
                             HasSubstr("(`reprise frontier` with the same model")));
  const Finished table = run_here(tiny_run("compare", which));
  EXPECT_THAT(table.out, AllOf(HasSubstr("does not fit"), HasSubstr("yes")));
}

TEST(Compare, ABackwardThatFailsLeavesNothingBehind) {
  const Finished run = run_here(
      tiny_run("compare", std::string(kDeep) + "--json --steps 1 --strategies budget:+1.5MB,sqrt"));
  const json rows = json::parse(run.out).at("strategies");
  ASSERT_FALSE(rows[1].at("fits").get<bool>());
  const auto alive = [&](int i) {
    return rows[i].at("peak_bytes").get<std::int64_t>() -
           rows[i].at("activation_bytes").get<std::int64_t>();
  };
  EXPECT_NEAR(alive(2), alive(0), 2000);
}

TEST(Compare, ARoundThatFailsLaterLeavesWhatWasMeasured) {
  CompareOptions options;
  options.gpt = {.layers = 2, .width = 16, .heads = 2, .context = 8};
  options.steps = 3;
  const TextData data = some_text();
  int steps = 0;
  const models::StrategyKind kinds[] = {
      models::strategy_kinds()[0],
      {"full-disk", {}, [&](std::string_view) {
         return models::Method{.around_forward = [&]() -> ContextScope {
           if (++steps == 3) throw Error("no space left on device");
           return nullptr;
         }};
       }}};
  auto all = strategies_to_measure({"full-disk"}, c10::kCPU, kinds);
  EXPECT_EQ(Comparison(options, data, c10::kCPU).run(all), 0);
  EXPECT_EQ(all[0].milliseconds.size(), 3u);
  EXPECT_TRUE(all[1].is_examined);
  EXPECT_EQ(all[1].milliseconds.size(), 1u);
  EXPECT_EQ(all[1].failure, "no space left on device");
  EXPECT_EQ(steps, 3);
}

TEST(Compare, AnInterruptionLeavesWhatWasMeasured) {
  Process process(tiny_run("compare", "--steps 1000000"), Terminal::kOfErrors);
  ASSERT_TRUE(await_first_times(process));
  process.send(SIGINT);
  const Finished result = process.wait();
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_THAT(result.err, HasSubstr("reprise compare: interrupted; the result holds what"));
  EXPECT_THAT(result.out, AllOf(HasSubstr("every-block"), HasSubstr("1.00×")));
}

TEST(Compare, RefusesBudgetsThatAreNone) {
  for (const std::string wrong : {"budget:", "budget:many", "budget:0%"}) {
    const Finished result = run_here({"compare", "--device", "cpu", "--strategies", wrong});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr("the budget of strategy " + wrong + " is '"));
  }
  EXPECT_THAT(run_here(words("compare --heuristic lru --strategies none")).err,
              HasSubstr("--heuristic has no effect without a budget: add one to --strategies"));
}

TEST(Compare, MeasuresAStrategyThatParksWhatForwardSaves) {
  CompareOptions options;
  options.gpt = {.layers = 2, .width = 16, .heads = 2, .context = 8};
  options.steps = 1;
  const TextData data = some_text();
  int parked = 0;
  const models::StrategyKind kinds[] = {
      models::strategy_kinds()[0],
      {"park", {}, [&](std::string_view) {
         return models::Method{.prepare = [&](models::Method& method, c10::Device) {
           method.around_forward = [&]() -> ContextScope {
             const auto pack = [&](const at::Tensor& t) { return ++parked, t.clone(); };
             return std::make_shared<SavedTensorHooksScope>(pack,
                                                            [](const at::Tensor& t) { return t; });
           };
         }};
       }}};
  auto all = strategies_to_measure({"park"}, c10::kCPU, kinds);
  Comparison(options, data, c10::kCPU).run(all);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_FALSE(all[1].difference);
  EXPECT_GT(parked, 0);
  EXPECT_GT(all[1].activations, all[0].activations);
}

TEST(Compare, ThePlainStepNeedsAsMuchAsIsReckonedForIt) {
  const TextData data = some_text();
  for (const char* dtype : {"f32", "bf16"}) {
    for (const bool fused : {true, false}) {
      CompareOptions options;
      options.gpt = {.layers = 4, .width = 32, .heads = 2, .context = 32, .fused_attention = fused};
      options.gpt.dropout = 0;
      options.dtype = dtype;
      options.steps = 1;
      auto all = strategies_to_measure({}, c10::kCPU);
      Comparison(options, data, c10::kCPU).run(all);
      const auto found = static_cast<double>(all[0].activations.count);
      EXPECT_LT(plain_step_bytes_needed(options), found) << dtype << fused;
      EXPECT_GT(plain_step_bytes_needed(options), found / 3) << dtype << fused;
    }
  }
}

TEST(Compare, ADifferingGradientIsNamedAndExits1) {
  auto all = strategies_to_measure({"none", "sqrt"}, c10::kCPU);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(report_differences(all), 0);
  all[1].difference = GradientDifference{.parameter = "block0.qkv.weight",
                                         .index = 5,
                                         .expected = "0.25",
                                         .found = "-0.5",
                                         .differing = 2,
                                         .elements = 768,
                                         .differing_parameters = 3,
                                         .parameters = 40};
  testing::internal::CaptureStderr();
  EXPECT_EQ(report_differences(all), 1);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "reprise compare: under sqrt the gradient of block0.qkv.weight differs from the plain "
            "step's: element 5 is -0.5 instead of 0.25; 2 of 768 elements differ, and gradients of "
            "3 of 40 parameters\n");
}

TEST(Compare, OneBitOfOneGradientIsADifference) {
  torch::nn::Sequential model(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
  allocate_gradients(*model);
  const GradientBits expected = gradient_bits(*model);
  EXPECT_FALSE(first_difference(*model, expected));
  model->named_parameters()["1.bias"].mutable_grad()[2] = -0.0;
  const auto difference = first_difference(*model, expected);
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->parameter, "1.bias");
  EXPECT_EQ(difference->index, 2);
  EXPECT_EQ(difference->expected, "0");
  EXPECT_EQ(difference->found, "-0");
  clear_gradients(*model);
  EXPECT_FALSE(first_difference(*model, expected));
}

TEST(Compare, WithoutDropoutReplayTheGradientsDoDiffer) {
  // A run with other masks must not pass the check.
  RunOptions options;
  options.gpt = {.layers = 2, .width = 16, .heads = 2, .context = 8, .dropout = 0.5};
  Network network(options, c10::kCPU);
  allocate_gradients(*network.model());
  const std::string text(200, 'x');
  const Batch batch = cut(text, {1, 2}, 8, c10::kCPU);
  const auto plainly = models::Strategy::parse("none");
  network.run_backward(batch, plainly);
  const GradientBits expected = gradient_bits(*network.model());
  clear_gradients(*network.model());
  network.run_backward(batch, plainly);
  EXPECT_TRUE(first_difference(*network.model(), expected));
}

}  // namespace
}  // namespace reprise::app
