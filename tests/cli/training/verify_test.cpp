// `reprise train --verify`: passes under every strategy, changes nothing else, and finds a step
// that comes to other gradients before it can do harm.
#include <gmock/gmock.h>
#include <reprise/checkpoint.h>
#include <reprise/error.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/cli/commands/commands.h"
#include "apps/cli/training/training_report.h"
#include "apps/cli/training/verification.h"
#include "tests/cli/program.h"

namespace reprise::app {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

json json_of_training(const std::string& more) {
  const Finished result = run_here(tiny_run("train", "--json " + more));
  EXPECT_EQ(result.exit_code, 0) << more << result.err;
  return json::parse(result.out, nullptr, false);
}

class Verify : public testing::TestWithParam<const char*> {};

TEST_P(Verify, PassesAndLeavesTheTrainingAsItIs) {
  const TemporaryFolder folder;
  const std::string common = std::string("--steps 5 ") + GetParam() + " --metrics ";
  const json verified = json_of_training(common + folder / "verified --verify 2");
  const json unverified = json_of_training(common + folder / "unverified");
  EXPECT_EQ(verified.at("verification").at("steps"), 3);
  EXPECT_EQ(verified.at("verification").at("every"), 2);
  EXPECT_TRUE(verified.at("verification").at("gradients_equal").get<bool>());
  EXPECT_GT(verified.at("verification").at("peak_bytes"), 0);
  EXPECT_FALSE(unverified.contains("verification"));
  EXPECT_EQ(verified.at("weights_xxh3"), unverified.at("weights_xxh3"));
  EXPECT_EQ(verified.at("validation_loss"), unverified.at("validation_loss"));
  const auto with = lines_of(folder / "verified"), without = lines_of(folder / "unverified");
  ASSERT_EQ(with.size(), 5u);
  for (std::size_t i = 0; i < with.size(); ++i) {
    EXPECT_EQ(with[i].at("loss"), without[i].at("loss")) << i;
    EXPECT_EQ(with[i].at("gradient_norm"), without[i].at("gradient_norm")) << i;
    EXPECT_EQ(with[i].contains("gradients_equal"), i % 2 == 0) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Train, Verify,
    testing::Values("", "--strategy every-block", "--strategy segments:2", "--strategy sqrt",
                    "--strategy from-input", "--strategy sqrt --reentrant",
                    "--strategy from-input --reentrant", "--strategy sqrt --accumulate 3",
                    "--strategy every-block --dtype bf16",
                    "--strategy every-block --attention unfused",
                    "--strategy sqrt --determinism values --clip 0",
                    "--strategy selective:matmul --determinism values",
                    "--strategy selective:all-but-cheap --dtype bf16",
                    "--strategy selective:recompute-attention "
                    "--attention unfused --determinism values",
                    "--strategy offload:disk=.", "--pipeline stages=2,chunks=2",
                    "--pipeline stages=2,chunks=2,schedule=gpipe --accumulate 3",
                    "--pipeline stages=4,chunks=4,schedule=zbv --batch 4",
                    "--pipeline stages=3,chunks=2,checkpoint=always "
                    "--dtype bf16 --determinism values"));

TEST(VerifyTrain, ARunGoesOnWithTheSameStepsVerified) {
  const TemporaryFolder folder;
  const std::string common = "--steps 7 --strategy sqrt --verify 3 --checkpoint-dir " +
                             folder / "c" + " --metrics " + folder / "m";
  EXPECT_EQ(json_of_training(common + " --stop-after 2").at("verification").at("steps"), 1);
  EXPECT_EQ(json_of_training(common + " --stop-after 1 --resume").at("verification").at("steps"),
            0);
  EXPECT_EQ(json_of_training(common + " --resume").at("verification").at("steps"), 2);
  for (const json& line : lines_of(folder / "m")) {
    EXPECT_EQ(line.contains("gradients_equal"), line.at("step").get<int>() % 3 == 1) << line;
  }
  const std::string weights = json_of_training("--steps 7 --strategy sqrt").at("weights_xxh3");
  const Finished shown = run_here(tiny_run("train", "--steps 7 --strategy sqrt --verify 3"));
  EXPECT_THAT(shown.out,
              AllOf(HasSubstr("3 steps: all gradients are those of the plain step, bit for bit"),
                    HasSubstr(weights)));
}

// A run in this process whose layers can be broken: from then on they are run again with another
// random state than before, as in a recomputation that draws its masks anew.
class BreakableRun {
 public:
  explicit BreakableRun(TrainOptions options)
      : options_(std::move(options)),
        trainer_(options_, models::Strategy::parse(options_.strategy), load_text(options_.data),
                 c10::kCPU) {
    trainer_.network().wrap_layers([broken = broken_](models::Layer layer) -> models::Layer {
      return [broken, layer = std::move(layer)](const at::Tensor& x) {
        if (*broken && is_recomputing()) at::rand({1});
        return layer(x);
      };
    });
  }

  void take_steps(int count) {
    for (int i = 0; i < count; ++i) trainer_.step();
  }
  void break_layers() { *broken_ = true; }
  Trainer& trainer() { return trainer_; }

  // The rest of the run, as the command does it.
  Finished finish() {
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const int exit_code = run_and_report("reprise train", [this] {
      MetricsFile metrics(options_.metrics, trainer_.steps_done() + 1);
      return report(options_, run_steps(options_, trainer_, metrics), trainer_);
    });
    std::fflush(stdout);
    return {exit_code, testing::internal::GetCapturedStdout(),
            testing::internal::GetCapturedStderr()};
  }

 private:
  TrainOptions options_;
  std::shared_ptr<bool> broken_ = std::make_shared<bool>(false);
  Trainer trainer_;
};

// The options of tiny_run().
TrainOptions tiny_options(std::int64_t verify) {
  TrainOptions options;
  options.gpt = {.layers = 3, .width = 16, .heads = 2, .context = 16};
  options.batch = 2;
  options.data = {REPRISE_SOURCE_DIR "/tests/cli"};
  options.strategy = "every-block";
  options.steps = 5;
  options.warmup = 0;
  options.json = true;
  options.verify = verify;
  return options;
}

TEST(VerifyTrain, AStepWithOtherGradientsEndsTheRunWithExitCode3) {
  const TemporaryFolder folder;
  TrainOptions options = tiny_options(1);
  options.metrics = folder / "m";
  BreakableRun run(options);
  run.take_steps(2);
  run.break_layers();
  const Finished result = run.finish();
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(
      result.err,
      AllOf(HasSubstr("reprise train: at step 3 under every-block the gradient of "),
            HasSubstr("differs from the plain step's: element "), HasSubstr(" elements differ"),
            HasSubstr("The step was not done; nothing was saved, for there is no "
                      "--checkpoint-dir; --determinism values names the tensor")));
  const json all = json::parse(result.out), verification = all.at("verification");
  EXPECT_EQ(all.at("step"), 2);
  EXPECT_EQ(verification.at("steps"), 1);
  EXPECT_FALSE(verification.at("gradients_equal").get<bool>());
  EXPECT_EQ(verification.at("differing_step"), 3);
  const json difference = verification.at("first_difference");
  EXPECT_NE(difference.at("expected"), difference.at("found"));
  EXPECT_GT(difference.at("differing_elements"), 0);
  EXPECT_LT(difference.at("index"), difference.at("elements"));
  EXPECT_EQ(difference.at("parameters"), 3 * 12 + 4);
  const auto lines = lines_of(folder / "m");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_FALSE(lines[0].at("gradients_equal").get<bool>());
  EXPECT_EQ(lines[0].at("first_difference"), difference);
}

TEST(VerifyTrain, TheTableSaysWhichStepDiffers) {
  TrainOptions options = tiny_options(1);
  options.json = false;
  BreakableRun run(options);
  run.break_layers();
  const Finished result = run.finish();
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.out,
              HasSubstr("1 step: the gradients of step 1 differ from the plain step's"));
}

TEST(VerifyTrain, OnlyTheVerifiedStepsAreCompared) {
  BreakableRun run(tiny_options(3));
  run.take_steps(1);
  run.break_layers();
  EXPECT_FALSE(run.trainer().step().verification);
  EXPECT_FALSE(run.trainer().step().verification);
  EXPECT_TRUE(run.trainer().step().differs());
  EXPECT_EQ(run.trainer().steps_done(), 3);
}

TEST(VerifyTrain, TheDifferingStepChangesNothingAndTheRunCanGoOn) {
  const TemporaryFolder folder;
  const json whole = json_of_training("--steps 5 --warmup 0 --strategy every-block");
  TrainOptions options = tiny_options(2);
  options.checkpoint_dir = folder.path();
  BreakableRun run(options);
  run.take_steps(2);
  run.break_layers();
  const Finished result = run.finish();
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("step 2 is saved to " + folder / "training.reprise" +
                                    "; the last step was not verified; "));
  const json resumed = json_of_training("--steps 5 --warmup 0 --strategy every-block --resume " +
                                        ("--checkpoint-dir " + folder.path().string()));
  EXPECT_EQ(resumed.at("weights_xxh3"), whole.at("weights_xxh3"));
}

TEST(VerifyTrain, DeterminismValuesNamesTheTensorOfTheSameFault) {
  TrainOptions options = tiny_options(0);
  options.determinism = "values";
  BreakableRun run(options);
  run.take_steps(1);
  run.break_layers();
  try {
    run.trainer().step();
    FAIL() << "no error";
  } catch (const DeterminismError& error) {
    EXPECT_THAT(error.what(), HasSubstr("whose values differ between forward and recomputation"));
  }
}

// Draws, and counts its steps in a buffer.
class Counting : public torch::nn::Module {
 public:
  Counting() {
    register_parameter("weight", weight);
    register_buffer("count", count);
    register_module("norm", norm);
  }
  void step() {
    count.add_(1);
    const auto x = norm->forward(torch::rand({8, 4}));
    (at::dropout(x, 0.5, /*train=*/true) * weight).sum().backward();
  }

  at::Tensor weight = torch::ones({4}), count = torch::zeros({}, at::kLong);
  torch::nn::BatchNorm1d norm{4};
};

TEST(Verification, PutsBuffersAndRandomStateBack) {
  torch::manual_seed(7);
  Counting model;
  const auto mean = model.norm->running_mean.clone();
  Verification verification(model, c10::kCPU, [&] { model.step(); });
  EXPECT_EQ(model.count.item<int>(), 0);
  EXPECT_TRUE(torch::equal(model.norm->running_mean, mean));
  EXPECT_FALSE(model.weight.grad().defined());
  EXPECT_GT(verification.report().peak.count, 0);
  model.step();
  EXPECT_GE(verification.compare(model), 0);
  EXPECT_FALSE(verification.report().difference);
  EXPECT_EQ(model.count.item<int>(), 1);
  verification.put_back();
  EXPECT_EQ(model.count.item<int>(), 0);
  EXPECT_TRUE(torch::equal(model.norm->running_mean, mean));
  const auto draw = torch::rand({4});
  torch::manual_seed(7);
  EXPECT_TRUE(torch::equal(draw, torch::rand({4})));
}

TEST(Verification, PutsThemBackWhenThePlainStepFails) {
  torch::manual_seed(7);
  Counting model;
  const auto fails = [&] {
    model.step();
    throw std::runtime_error("no memory");
  };
  EXPECT_THROW(Verification(model, c10::kCPU, fails), std::runtime_error);
  EXPECT_EQ(model.count.item<int>(), 0);
  EXPECT_FALSE(model.weight.grad().defined());
  const auto draw = torch::rand({4});
  torch::manual_seed(7);
  EXPECT_TRUE(torch::equal(draw, torch::rand({4})));
}

}  // namespace
}  // namespace reprise::app
