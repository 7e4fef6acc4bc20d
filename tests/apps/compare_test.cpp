// `reprise compare`: its figures follow the strategies, and its verdict on gradients is a verdict.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "apps/reprise/comparison.h"
#include "apps/reprise/gradients.h"
#include "tests/apps/program.h"

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
  for (const char* more : {"--reentrant", "--dtype bf16", "--attention unfused", "--dropout 0"}) {
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

TEST(Compare, ADifferingGradientIsNamedAndExits1) {
  auto all = strategies_to_measure({"none", "sqrt"});
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(report_differences(all), 0);
  all[1].differing = "block0.qkv.weight";
  testing::internal::CaptureStderr();
  EXPECT_EQ(report_differences(all), 1);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "reprise compare: under sqrt the gradient of block0.qkv.weight differs from the plain "
            "step's\n");
}

TEST(Compare, OneBitOfOneGradientIsADifference) {
  torch::nn::Sequential model(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
  allocate_gradients(*model);
  const GradientBits expected = gradient_bits(*model);
  EXPECT_EQ(first_difference(*model, expected), "");
  model->named_parameters()["1.bias"].mutable_grad()[2] = -0.0;
  EXPECT_EQ(first_difference(*model, expected), "1.bias");
  clear_gradients(*model);
  EXPECT_EQ(first_difference(*model, expected), "");
}

TEST(Compare, WithoutDropoutReplayTheGradientsDoDiffer) {
  // What the check is for: a run whose masks are others must not pass it.
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
  EXPECT_NE(first_difference(*network.model(), expected), "");
}

}  // namespace
}  // namespace reprise::app
