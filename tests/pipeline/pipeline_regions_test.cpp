// Checkpointed stages are regions: flags, checks and early stop are theirs.
#include <mutex>

#include "tests/pipeline/testing.h"

namespace reprise::pipeline {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

PipelineLayer layer_of(std::string name, const std::function<at::Tensor(at::Tensor)>& function) {
  PipelineLayer layer{.name = std::move(name), .forward = [function](std::vector<at::Tensor> x) {
                        return std::vector<at::Tensor>{function(std::move(x.front()))};
                      }};
  layer.is_training = [] { return true; };
  return layer;
}

// Which run a function is in, in the order of its calls.
class Runs {
 public:
  void note() {
    const std::lock_guard<std::mutex> lock(mutex_);
    seen_.push_back(std::string(is_checkpointing() ? "C" : "-") + (is_recomputing() ? "R" : "-"));
  }
  std::vector<std::string> take() { return std::move(seen_); }

 private:
  std::mutex mutex_;
  std::vector<std::string> seen_;
};

TEST(PipelineRegions, LayersAndTheLossKnowWhichRunTheyAreIn) {
  const at::Tensor weight = torch::ones({1}).requires_grad_();
  Runs first, last, loss;
  Pipeline pipe({layer_of("first", [&](const at::Tensor& x) { return first.note(), x * weight; }),
                 layer_of("last", [&](const at::Tensor& x) { return last.note(), x.sin(); })},
                {.balance = {1, 1}, .chunks = 3, .schedule = "1f1b"});
  const at::Tensor x = torch::randn({3, 2});
  pipe.step(x, x, [&](const at::Tensor& y, const at::Tensor& target) {
    return loss.note(), square_loss(y, target);
  });
  // All but the last micro-batch are checkpointed; the second stage runs backward after each forward.
  EXPECT_THAT(first.take(), ElementsAre("C-", "C-", "-R", "--", "-R"));
  EXPECT_THAT(last.take(), ElementsAre("C-", "-R", "C-", "-R", "--"));
  EXPECT_THAT(loss.take(), ElementsAre("C-", "-R", "C-", "-R", "--"));
}

TEST(PipelineRegions, ADeterminismCheckFindsOtherNumbersAndNamesTheStage) {
  const at::Tensor x = torch::randn({4, 2});
  const at::Tensor weight = torch::ones({2}).requires_grad_();
  bool differs = true;
  const auto steady = layer_of("steady", [&](const at::Tensor& y) { return (y * weight).cos(); });
  const auto drifting = layer_of("drifting", [&](const at::Tensor& y) {
    return (differs && is_recomputing() ? y + 1 : y * 1).sin();
  });
  for (const char* schedule : {"gpipe", "1f1b"}) {
    for (const auto check : {DeterminismCheck::kDefault, DeterminismCheck::kValues}) {
      CheckpointOptions regions;
      regions.determinism_check = check;
      Pipeline pipe({steady, drifting}, {.balance = {1, 1},
                                         .chunks = 2,
                                         .checkpoint = CheckpointMode::kAlways,
                                         .schedule = schedule,
                                         .regions = regions});
      const auto error = [&] {
        return refusal_of<DeterminismError>([&] { pipe.step(x, x, square_loss); });
      };
      differs = true;
      if (check == DeterminismCheck::kDefault) {
        EXPECT_EQ(error(), "");  // shapes and dtypes are the same
      } else {
        EXPECT_THAT(error(), HasSubstr("stage 1"));
      }
      differs = false;
      EXPECT_EQ(error(), "");
    }
  }
}

TEST(PipelineRegions, ADeterminismCheckFindsOtherShapesUnlessItIsOff) {
  const at::Tensor x = torch::randn({4, 2}).requires_grad_();
  const auto layer = layer_of("other shape", [](const at::Tensor& y) {
    return is_recomputing() ? y.sin().unsqueeze(0).tanh() : y.sin().tanh();
  });
  CheckpointOptions regions;
  regions.name = "mine";
  const auto backward = [&] {
    Pipeline pipe({layer},
                  {.balance = {1}, .checkpoint = CheckpointMode::kAlways, .regions = regions});
    pipe.forward(x).sum().backward();
  };
  EXPECT_THAT(refusal_of<DeterminismError>(backward),
              AllOf(HasSubstr("mine"), HasSubstr("[4, 2]")));
  regions.determinism_check = DeterminismCheck::kNone;
  x.mutable_grad().reset();
  backward();
  const at::Tensor y = x.sin().tanh();
  EXPECT_TRUE(at::allclose(x.grad(), (1 - y * y) * x.cos()));
}

TEST(PipelineRegions, EarlyStopDecidesWhetherTheTailOfAStageRunsAgain) {
  Runs tail;
  const auto layers =
      std::vector{layer_of("sine", [](const at::Tensor& x) { return x.sin(); }),
                  layer_of("tail", [&](const at::Tensor& x) { return tail.note(), x + 1; })};
  const at::Tensor x = torch::randn({2, 2}).requires_grad_();
  for (const bool by_scope : {false, true}) {
    for (const auto stop : {EarlyStop::kNever, EarlyStop::kAlways}) {
      CheckpointOptions regions;
      regions.early_stop = by_scope ? EarlyStop::kWhenCheaper : stop;
      Pipeline pipe(
          layers,
          {.balance = {2}, .chunks = 2, .checkpoint = CheckpointMode::kAlways, .regions = regions});
      at::Tensor output;
      {
        std::optional<EarlyStopScope> scope;
        if (by_scope) scope.emplace(stop);
        output = pipe.forward(x);
      }
      output.sum().backward();
      if (stop == EarlyStop::kAlways) {
        EXPECT_THAT(tail.take(), ElementsAre("C-", "C-"));
      } else {
        EXPECT_THAT(tail.take(), ElementsAre("C-", "C-", "-R", "-R"));
      }
    }
  }
}

// torchgpipe #12: `never` seemed slower than `except_last`. It does the same work but for the
// recomputations, in every schedule.
TEST(PipelineRegions, NeverLeavesOutTheRecomputationsOfExceptLastAndNothingElse) {
  const auto model = blocks_of(1, false);
  const at::Tensor x = torch::randn({8, 8});
  const auto works = [&](const std::string& schedule, CheckpointMode mode) {
    const bool is_alone = schedule == "gpipe" || schedule == "1f1b";
    Pipeline pipe(model, {.balance = is_alone ? std::vector<std::int64_t>{2, 3}
                                              : std::vector<std::int64_t>{1, 1, 1, 2},
                          .devices = {c10::kCPU, c10::kCPU},
                          .chunks = 4,
                          .checkpoint = mode,
                          .schedule = schedule});
    pipe.step(x, x, square_loss);
    std::pair<std::vector<std::string>, std::size_t> done;
    for (const auto& worker : pipe.timeline().workers) {
      for (const PipelineEvent& event : worker.events) {
        event.recompute ? void(++done.second) : done.first.push_back(to_string(event.action));
      }
    }
    return done;
  };
  for (const std::string& schedule : schedules::names()) {
    const auto [never, none] = works(schedule, CheckpointMode::kNever);
    const auto [except_last, recomputed] = works(schedule, CheckpointMode::kExceptLast);
    const std::size_t stages = schedule == "gpipe" || schedule == "1f1b" ? 2 : 4;
    EXPECT_EQ(never, except_last) << schedule;
    EXPECT_EQ(none, 0) << schedule;
    EXPECT_EQ(recomputed, 3 * stages) << schedule;
    const auto workers = static_cast<std::int64_t>(2);
    const auto made =
        schedules::by_name(schedule, workers, static_cast<std::int64_t>(stages) / 2, 4);
    const auto costs = PipelineCosts::even(made.stages);
    EXPECT_LE(simulate(made, costs, {.checkpoint_stop = 0}).time,
              simulate(made, costs, {.checkpoint_stop = 3}).time)
        << schedule;
  }
}

}  // namespace
}  // namespace reprise::pipeline
