// `reprise experiment`: the whole of it in small, going on after a kill, what it refuses.
#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <reprise/memory.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include "apps/cli/experiment/findings_runs.h"
#include "apps/cli/experiment/method.h"
#include "apps/cli/experiment/pgac_options.h"
#include "apps/cli/experiment/run.h"
#include "apps/cli/experiment/run_lines.h"
#include "apps/cli/experiment/settings.h"
#include "apps/cli/experiment/task.h"
#include "tests/cli/program.h"
#include "tests/refusal.h"

namespace reprise::app {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// A GPT of a few thousand weights on a text of its own.
class ExperimentTest : public testing::Test {
 protected:
  ExperimentTest() {
    std::string text;
    for (int i = 0; i < 900; ++i) text += "line " + std::to_string(i * i % 97) + " of a text\n";
    write_file(folder_ / "text.txt", text);
  }

  Arguments command(const std::string& more, const std::string& out = "out") const {
    Arguments line = words(
        "experiment pgac --models gpt2 --layers 5 --width 32 --heads 2 --context 32 --batch 4 "
        "--steps 4 --seeds 2 " +
        more);
    line.insert(line.end(), {"--text", folder_ / "text.txt", "--out", folder_ / out});
    return line;
  }
  Runs runs(const std::string& out = "out") const { return read_runs(folder_ / out); }
  // The same model for a test that trains it itself.
  ExperimentSettings settings_of(int steps) const {
    ExperimentSettings settings;
    settings.name = "pgac";
    settings.out = folder_ / "by_hand";
    settings.models = {"gpt2"};
    settings.text = {folder_ / "text.txt"};
    settings.steps = steps;
    settings.layers = 5;
    settings.width = 32;
    settings.heads = 2;
    settings.context = 32;
    settings.batch = 4;
    complete(settings);
    return settings;
  }

  TemporaryFolder folder_;
};

TEST_F(ExperimentTest, EveryMethodIsRunAndExactOnesLearnTheSame) {
  const Finished result = run_here(command("--json"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json.at("runs"), 2 * (experiment_methods().size() + usual_ablations().size()));
  const Runs all = runs();
  EXPECT_EQ(all.cut, 0);
  std::vector<double> plain;
  for (const StepLine& step : all.of("gpt2", "none").front()->steps) plain.push_back(step.loss);
  ASSERT_EQ(plain.size(), 4u);
  for (const RunFile& run : all.runs) {
    EXPECT_THAT(run.failure, IsEmpty()) << run.method;
    ASSERT_EQ(run.steps.size(), 4u) << run.method;
    if (!run.is_exact || run.seed != 1) continue;
    for (std::size_t i = 0; i < plain.size(); ++i) {
      EXPECT_EQ(run.steps[i].loss, plain[i]) << run.method << ' ' << i;
    }
  }
  const std::string page = contents(folder_ / "out/report.md");
  EXPECT_THAT(page, HasSubstr("`pgac:product`"));
  EXPECT_THAT(page, HasSubstr("pgac:text,q=0.25"));
}

TEST_F(ExperimentTest, PeaksStayWithinTheBudget) {
  ASSERT_EQ(run_here(command("--no-ablations --budget 0.7")).exit_code, 0);
  int counted = 0;
  for (const RunFile& run : runs().runs) {
    if (!run.budget) continue;
    for (const StepLine& step : run.steps) {
      EXPECT_LE(step.peak, *run.budget) << run.method;
      ++counted;
    }
  }
  EXPECT_GT(counted, 40);
}

TEST_F(ExperimentTest, AStepThatFindsLessLiveThanTheOneBeforeTakesNoMore) {
  const ExperimentSettings settings = settings_of(4);
  const Bytes budget(measure_plain_step(settings, "gpt2").peak.count * 7 / 10);
  const auto task = make_task(task_options(settings, "gpt2", 1));
  task->module().train();
  for (const std::string name : {"dtr", "budget"}) {
    const auto method = make_method(name, settings, *task, budget, 1);
    const auto peak_of_step = [&](std::int64_t number) {
      const TaskBatch batch = task->training_batch(number);
      const PeakScope peak;
      method->step(batch);
      const Bytes above = peak.peak_above_start();
      task->module().zero_grad();
      return above;
    };
    {
      const at::Tensor more = at::empty({15'000});
      EXPECT_LE(peak_of_step(0), budget) << name;
    }
    EXPECT_LE(peak_of_step(1), budget) << name;
  }
}

TEST_F(ExperimentTest, MethodsRecomputeAndNoneDoesNot) {
  ASSERT_EQ(run_here(command("--methods none,every-block,uniform,budget --no-ablations")).exit_code,
            0);
  for (const RunFile& run : runs().runs) {
    double milliseconds = 0;
    for (const StepLine& step : run.steps) milliseconds += step.recompute_milliseconds;
    if (run.method == "none") {
      EXPECT_EQ(milliseconds, 0);
    } else {
      EXPECT_GT(milliseconds, 0) << run.method;
    }
  }
}

TEST_F(ExperimentTest, ABudgetThatCannotBeKeptIsARunWithAFailure) {
  const Finished result =
      run_here(command("--methods none,uniform,dtr,pgac:cost --no-ablations --budget 0.01"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const RunFile& run : runs().runs) {
    if (run.method == "none") {
      EXPECT_THAT(run.failure, IsEmpty());
    } else {
      EXPECT_THAT(run.failure, HasSubstr("budget")) << run.method;
      EXPECT_THAT(run.steps, IsEmpty());
    }
  }
}

TEST_F(ExperimentTest, GoesOnWhereAKilledOneWas) {
  const std::string more = "--methods none,budget,pgac:text,pgac:lossy --no-ablations ";
  ASSERT_EQ(run_here(command(more, "whole")).exit_code, 0);
  {
    Process killed(command(more, "cut"));
    // As soon as there is something, in whatever run it is.
    const auto first = folder_ / "cut/runs/gpt2/none/1.jsonl";
    for (int i = 0; i < 3000 && !std::filesystem::exists(first); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    killed.send(SIGKILL);
    killed.wait();
  }
  const Finished result = run_here(command(more, "cut"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Runs whole = runs("whole"), cut = runs("cut");
  ASSERT_EQ(cut.runs.size(), whole.runs.size());
  for (std::size_t i = 0; i < whole.runs.size(); ++i) {
    ASSERT_EQ(cut.runs[i].steps.size(), 4u);
    EXPECT_EQ(cut.runs[i].validation_loss, whole.runs[i].validation_loss) << whole.runs[i].method;
    for (int k = 0; k < 4; ++k) EXPECT_EQ(cut.runs[i].steps[k].loss, whole.runs[i].steps[k].loss);
  }
}

TEST_F(ExperimentTest, ARunGoesOnFromItsLastSave) {
  const ExperimentSettings settings = settings_of(8);
  const Bytes plain = measure_plain_step(settings, "gpt2").peak;
  for (const std::string method : {"none", "pgac:text", "pgac:lossy", "pgac:text,gamma=learned"}) {
    const RunPlace whole{"gpt2", method, 1};
    ASSERT_TRUE(train_run(settings, whole, plain, [](std::int64_t) { return true; }));
    const std::string expected = contents(run_file(settings.out, whole));
    std::filesystem::remove(run_file(settings.out, whole));
    // Left after three steps, as by a signal, and after five once more.
    for (const std::int64_t last : {3, 5}) {
      EXPECT_FALSE(
          train_run(settings, whole, plain, [last](std::int64_t step) { return step < last; }));
      EXPECT_FALSE(is_complete(run_file(settings.out, whole)));
    }
    ASSERT_TRUE(train_run(settings, whole, plain, [](std::int64_t) { return true; }));
    std::istringstream before(expected), after(contents(run_file(settings.out, whole)));
    std::string a, b;
    int steps = 0;
    while (std::getline(before, a) && std::getline(after, b)) {
      const auto x = nlohmann::json::parse(a), y = nlohmann::json::parse(b);
      // Masks under a budget go by measured seconds as well.
      for (const char* field : {"kind", "step", "loss", "averages", "validation_loss"}) {
        if (x.contains(field)) {
          EXPECT_EQ(x.at(field), y.at(field)) << method << ' ' << field;
        }
      }
      steps += x.at("kind") == "step" ? 1 : 0;
    }
    EXPECT_EQ(steps, 8);
    EXPECT_FALSE(std::getline(after, b));
    EXPECT_FALSE(std::filesystem::exists(run_file(settings.out, whole).replace_extension("saved")));
  }
}

TEST_F(ExperimentTest, RefusesAFolderOfAnotherExperiment) {
  ASSERT_EQ(run_here(command("--methods none --no-ablations")).exit_code, 0);
  expect_refusal(command("--methods none --no-ablations --dropout 0.3"),
                 "is of another experiment: its dropout is 0.1, and here 0.3");
  expect_refusal(command("--methods none,uniform --no-ablations"), "its methods is");
  std::filesystem::create_directory(folder_ / "other");
  write_file(folder_ / "other/experiment.json", "{}");
  expect_refusal(command("--methods none --no-ablations", "other"), "is no experiment's");
}

TEST_F(ExperimentTest, RefusesWhatItDoesNotKnow) {
  expect_refusal({"experiment"}, "which experiment? There is pgac");
  expect_refusal({"experiment", "dtr"}, "there is no experiment 'dtr'");
  expect_refusal({"experiment", "pgac"}, "--out FOLDER is missing");
  expect_refusal(command("--methods none,fast"), "there is no method 'fast'");
  expect_refusal(command("--methods none,none"), "names 'none' twice");
  expect_refusal(command("--methods uniform,none --ablation uniform,k=2"),
                 "method 'uniform' takes no parameters");
  expect_refusal(command("--ablation pgac:text,q=2"), "method 'pgac:text,q=2': q");
  expect_refusal(command("--ablation pgac:text,far=0.5"), "'far=0.5' is no parameter of it");
  expect_refusal(command("--ablation pgac:text,gamma=none"), "gamma is 'none'");
  expect_refusal(command("--ablation pgac:lossy,gamma=learned"), "gamma is learned");
  expect_refusal(command("--ablation pgac:text,q=0.5,fill=no,q=0.5"), "is given q twice");
  expect_refusal(command("--no-ablations --ablation pgac:text,q=0.1"), "exclude each other");
  expect_refusal(command("--label-column kind"), "are of the tables of --labelled");
  expect_refusal(command("--models gpt3"), "--models names 'gpt3'");
}

TEST(ExperimentMethods, ParametersReachPgac) {
  ExperimentSettings settings;
  settings.gradient_error = 0.05;
  const PgacOptions text = pgac_options("pgac:text,q=0.25,alpha=0.5,gamma=linear", settings, 7);
  EXPECT_EQ(text.quantile, 0.25);
  EXPECT_EQ(text.alpha, 0.5);
  EXPECT_EQ(text.gamma, GammaSchedule::linear(1.5, 0.5));
  EXPECT_EQ(text.steps, 200);
  EXPECT_FALSE(text.fill_budget);
  EXPECT_FALSE(text.lossy);
  EXPECT_TRUE(pgac_options("pgac:cost", settings, 7).fill_budget);
  EXPECT_FALSE(pgac_options("pgac:cost,fill=no", settings, 7).fill_budget);
  const PgacOptions searching = pgac_options("pgac:cost,search=yes", settings, 7);
  EXPECT_TRUE(searching.exact_search);
  EXPECT_FALSE(searching.fill_budget);
  EXPECT_FALSE(pgac_options("pgac:cost,search=no", settings, 7).exact_search);
  EXPECT_THAT(
      refusal_of([&] { pgac_options("pgac:cost,search=yes,fill=yes", settings, 7); }),
      HasSubstr("pgac:cost,search=yes,fill=yes': Pgac: exact_search and fill_budget are both set"));
  EXPECT_EQ(pgac_options("pgac:product", settings, 7).ranking, PgacRanking::kInfluenceTimesCost);
  EXPECT_EQ(pgac_options("random", settings, 7).ranking, PgacRanking::kRandom);
  EXPECT_EQ(pgac_options("random", settings, 7).seed, 7u);
  const PgacOptions lossy = pgac_options("pgac:lossy,far=0.25", settings, 7);
  EXPECT_EQ(lossy.lossy->gradient_error, 0.05);
  EXPECT_EQ(lossy.lossy->int4_threshold, 0.25);
  EXPECT_EQ(pgac_options("pgac:lossy,error=0.5", settings, 7).lossy->gradient_error, 0.5);
}

}  // namespace
}  // namespace reprise::app
