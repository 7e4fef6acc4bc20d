// `reprise compare --strategies pipeline:...`: gradients beside those of the same micro-batches.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "apps/cli/compare/comparison.h"
#include "tests/cli/program.h"

namespace reprise::app {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kPipeline = "pipeline:stages=2:chunks=2:checkpoint=always:balance=2+2";

TEST(ComparePipeline, StandsInTheTableWithTheOtherStrategies) {
  const std::string strategies = std::string("--steps 2 --strategies none,every-block,") +
                                 kPipeline + ",pipeline:stages=2:chunks=2:checkpoint=never";
  const Finished run = run_here(tiny_run("compare", strategies + " --json"));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json rows = json::parse(run.out).at("strategies");
  ASSERT_EQ(rows.size(), 4u);
  for (const json& row : rows) {
    EXPECT_TRUE(row.at("gradients_equal").get<bool>()) << row;
    EXPECT_GT(row.at("ms_per_step"), 0);
    EXPECT_GT(row.at("peak_bytes"), row.at("activation_bytes"));
  }
  EXPECT_FALSE(rows[1].contains("pipeline"));
  EXPECT_EQ(rows[2].at("strategy"), kPipeline);
  EXPECT_EQ(rows[2].at("pipeline").at("balance"), (json::array({2, 2})));
  EXPECT_EQ(rows[2].at("gradients_compared_with"), "the same micro-batches without a pipeline");
  EXPECT_GT(rows[2].at("recompute_share"), 0);
  EXPECT_EQ(rows[3].at("recompute_share"), 0);
  const Finished table = run_here(tiny_run("compare", strategies + " --dropout 0.3"));
  EXPECT_THAT(table.out,
              AllOf(HasSubstr(kPipeline), HasSubstr("a head of its own"),
                    HasSubstr("same gradients of a pipeline: as the same micro-batches one after "
                              "another without a pipeline")));
}

TEST(ComparePipeline, AGradientThatDiffersIsFound) {
  CompareOptions options;
  options.gpt = {.layers = 3, .width = 16, .heads = 2, .context = 16, .tied_head = false};
  options.batch = 2;
  options.steps = 1;
  options.strategies = {kPipeline};
  TextData data;
  data.training = std::string(200, 'x');
  Comparison comparison(options, data, c10::kCPU);
  std::vector<Measured> all = strategies_to_measure(options.strategies, c10::kCPU);
  // Workers compute something else than the thread that runs micro-batches without a pipeline.
  comparison.network().wrap_layers([here = std::this_thread::get_id()](models::Layer layer) {
    return [here, layer = std::move(layer)](const at::Tensor& x) {
      return std::this_thread::get_id() == here ? layer(x) : layer(x) * 1.5;
    };
  });
  EXPECT_EQ(comparison.run(all), 0);
  EXPECT_FALSE(all[0].difference);
  ASSERT_TRUE(all[1].difference);
  testing::internal::CaptureStderr();
  EXPECT_EQ(report_differences(all), 1);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr(kPipeline));
}

TEST(ComparePipeline, RefusesWhatCannotRun) {
  const auto refused = [](const std::string& more, const std::string& text) {
    expect_refusal(tiny_run("compare", "--strategies " + more), text);
  };
  refused("pipeline", "give pipeline:stages=N:chunks=N");
  refused("pipeline:stages=2", "lacks chunks: give pipeline:stages=N:chunks=N");
  refused("pipeline:stages=9:chunks=2", "has 9 stages, and the model has 4 layers");
  refused("pipeline:stages=2:chunks=4", "has 4 micro-batches (chunks), and --batch 2 makes 2");
  refused("sqrt,pipeline:stages=2:chunks=2 --reentrant", "cannot be combined with --reentrant");
  refused("pipeline:stages=2:chunks=2 --fill-budget --budget 2GB",
          "cannot be combined with --fill-budget");
  refused("pipelines:stages=2", "pipeline:stages=N:chunks=N");
}

}  // namespace
}  // namespace reprise::app
