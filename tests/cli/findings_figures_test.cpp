// Figures of made-up runs, and verdicts about them, beside what comes out by hand.
#include <gmock/gmock.h>

#include <cmath>
#include <numbers>

#include "apps/cli/experiment/findings_claims.h"
#include "apps/cli/experiment/findings_figures.h"
#include "tests/cli/findings_files.h"

namespace reprise::app {
namespace {

using testing::HasSubstr;

RunFile run_of(std::int64_t seed, const std::vector<double>& milliseconds) {
  RunFile run;
  run.seed = seed;
  for (const double time : milliseconds) {
    StepLine& step = run.steps.emplace_back();
    step.milliseconds = time;
    step.recompute_milliseconds = time / 4;
    step.peak = Bytes(static_cast<std::int64_t>(100 * time));
    step.units = 6;
    step.loss = time;
  }
  return run;
}

TEST(FindingsFigures, OfOneRunAreWhatComesOutByHand) {
  RunFile run = run_of(1, {12, 10, 50});
  EXPECT_EQ(peak_bytes_of(run), 5000);
  EXPECT_EQ(milliseconds_of(run), 12);
  EXPECT_EQ(recompute_share_of(run), 0.25);
  EXPECT_EQ(recompute_milliseconds_of(run), 7.5);
  // A first step measures as well; a single one is all there is.
  run.steps[0].recompute_milliseconds = 1000;
  EXPECT_EQ(recompute_share_of(run), 0.25);
  EXPECT_EQ(recompute_milliseconds_of(run), 7.5);
  EXPECT_EQ(recompute_share_of(run_of(1, {12})), 0.25);
  EXPECT_EQ(recompute_milliseconds_of(run_of(1, {12})), 3);
  EXPECT_EQ(units_a_second_of(run), 500);
  EXPECT_TRUE(std::isnan(mask_changes_of(run)));
  EXPECT_TRUE(std::isnan(gradient_error_of(run)));
  EXPECT_TRUE(std::isnan(compression_of(run)));
  run.steps[0].mask = "0110";
  run.steps[1].mask = "0101";
  run.steps[2].mask = "1101";
  EXPECT_EQ(mask_changes_of(run), 3);
  run.steps[0].gradient_error = 0.25;
  run.steps[2].gradient_error = 0.75;
  EXPECT_EQ(gradient_error_of(run), 0.5);
  run.steps[0].compressed_from = Bytes(100);
  run.steps[1].compressed_from = Bytes(300);
  run.steps[0].compressed_to = Bytes(100);
  run.steps[1].compressed_to = Bytes(60);
  EXPECT_EQ(compression_of(run), 2.5);
  // What was not timed does not count.
  run.steps[2].milliseconds = kNoFigure;
  EXPECT_EQ(milliseconds_of(run), 11);
  EXPECT_EQ(recompute_share_of(run), 0.25);
  EXPECT_TRUE(std::isnan(milliseconds_of(run_of(1, {}))));
  EXPECT_TRUE(std::isnan(peak_bytes_of(run_of(1, {}))));
}

TEST(FindingsFigures, AreComparedSeedBySeed) {
  const RunFile ours[] = {run_of(1, {12}), run_of(2, {30}), run_of(3, {kNoFigure}), run_of(5, {1})};
  const RunFile theirs[] = {run_of(2, {20}), run_of(1, {10}), run_of(3, {7}), run_of(4, {1})};
  const auto pointers = [](const auto& runs) {
    std::vector<const RunFile*> list;
    for (const RunFile& run : runs) list.push_back(&run);
    return list;
  };
  const PairedFigures pairs = paired(pointers(ours), pointers(theirs), milliseconds_of);
  EXPECT_THAT(pairs.ours, testing::ElementsAre(12, 30));
  EXPECT_THAT(pairs.theirs, testing::ElementsAre(10, 20));
  // The geometric mean of 1.2 and 1.5.
  EXPECT_NEAR(ratio_of(pairs).mean, std::sqrt(1.8), 1e-12);
  // The mean of 0.2 and 0.5, whose standard error is 0.15; the 97.5 % quantile of t with one degree
  // of freedom is 12.706.
  const OverSeeds change = change_of(pairs);
  EXPECT_NEAR(change.mean, 0.35, 1e-12);
  EXPECT_NEAR(change.interval->low, 0.35 - 0.15 * 12.7062047, 1e-6);
  EXPECT_EQ(change.seeds, 2U);
  // Differences of 2 and 10: t is 6 / 4.
  EXPECT_NEAR(p_of_difference(pairs), 1 - 2 * std::atan(1.5) / std::numbers::pi, 1e-12);
  const LossDifferences losses = loss_differences(pointers(ours), pointers(theirs));
  EXPECT_EQ(losses.compared, 3);
  EXPECT_EQ(losses.differing, 3);
  EXPECT_EQ(loss_differences(pointers(ours), pointers(ours)).differing, 0);
}

TEST(FindingsFigures, OfOneSeedHaveNoInterval) {
  const PairedFigures pairs{{3}, {2}};
  EXPECT_EQ(ratio_of(pairs).mean, 1.5);
  EXPECT_FALSE(ratio_of(pairs).interval);
  EXPECT_EQ(change_of(pairs).mean, 0.5);
  EXPECT_TRUE(std::isnan(p_of_ratio(pairs)));
  EXPECT_TRUE(std::isnan(p_of_difference(pairs)));
  EXPECT_TRUE(std::isnan(change_of({{1, 1}, {1, 0}}).mean));
  EXPECT_TRUE(std::isnan(ratio_of({{0, 1}, {1, 1}}).mean));
  EXPECT_TRUE(std::isnan(ratio_of({}).mean));
}

// Three seeds of `uniform`, `dtr` and `none`, and of the method with what each step takes and
// what of it runs again, both as parts of what `uniform` takes.
void write_compared(const TemporaryFolder& folder, const std::vector<double>& times, double again,
                    const nlohmann::json& end = nlohmann::json::object()) {
  write_settings(folder);
  for (int seed = 1; seed <= 3; ++seed) {
    const double base = 10 * seed;
    const nlohmann::json figures = {{"perplexity", 8 + seed}, {"energy_joules", 100 * seed}};
    write_run(folder, "none", seed, {0.7 * base}, 0, figures);
    write_run(folder, "uniform", seed, {base}, 0.3, figures);
    write_run(folder, "dtr", seed, {base}, 0.25, figures);
    nlohmann::json ours = figures;
    ours.update(end);
    const double time = times[static_cast<std::size_t>(seed - 1)];
    write_run(folder, "pgac:influence", seed, {base * time}, again / time, ours);
  }
}

std::vector<Expectation> judged(const TemporaryFolder& folder) {
  return expectations_of(read_runs(folder.path()), "gpt2", "pgac:influence");
}

TEST(FindingsVerdicts, HoldWhereTheWholeIntervalIsAtOrBeyondTheLowerBound) {
  const TemporaryFolder folder;
  // 0.21 of the time of uniform runs again: 30 % less than 0.3, and 16 % less than 0.25.
  write_compared(folder, {0.8, 0.8, 0.8}, 0.21);
  const std::vector<Expectation> all = judged(folder);
  ASSERT_EQ(all.size(), 5U);
  EXPECT_NEAR(all[0].measured.mean, 0.3, 1e-9);
  EXPECT_EQ(all[0].verdict, FindingsVerdict::kHolds);
  EXPECT_EQ(all[0].reason, "the whole interval is at or above 15.0 %");
  EXPECT_NEAR(all[1].measured.mean, 0.16, 1e-9);
  EXPECT_EQ(all[1].verdict, FindingsVerdict::kHolds);
  EXPECT_NEAR(all[2].measured.mean, 0.25, 1e-9);
  EXPECT_EQ(all[2].verdict, FindingsVerdict::kHolds);
  EXPECT_EQ(all[3].measured.mean, 0);
  EXPECT_EQ(all[3].verdict, FindingsVerdict::kHolds);
  EXPECT_EQ(all[3].reason, "perplexity: the whole interval is within 0.5 % of zero");
  EXPECT_EQ(all[4].measured.mean, 0);
  EXPECT_EQ(all[4].verdict, FindingsVerdict::kRefuted);
  EXPECT_EQ(all[4].reason, "the whole interval is below 10.0 %");
}

TEST(FindingsVerdicts, AreNotSettledWhereTheIntervalBeginsBelow) {
  const TemporaryFolder folder;
  // Throughputs 25 %, 11 % and 67 % higher: the mean is above 10 %, chance is wide.
  write_compared(folder, {0.8, 0.9, 0.6}, 0.27, {{"energy_joules", nullptr}});
  const std::vector<Expectation> all = judged(folder);
  EXPECT_NEAR(all[0].measured.mean, 0.1, 1e-9);
  EXPECT_EQ(all[0].verdict, FindingsVerdict::kRefuted) << "10 % less in each run, and no chance";
  EXPECT_NEAR(all[2].measured.mean, (0.25 + 1 / 0.9 - 1 + 1 / 0.6 - 1) / 3, 1e-9);
  EXPECT_EQ(all[2].verdict, FindingsVerdict::kNotSettled);
  EXPECT_EQ(all[2].reason, "the interval begins below 10.0 %");
  EXPECT_EQ(all[4].verdict, FindingsVerdict::kNotMeasurable);
  EXPECT_EQ(all[4].reason, "energy was not measured in both with one seed");
  EXPECT_TRUE(std::isnan(all[4].measured.mean));
}

TEST(FindingsVerdicts, OnQualityAskForBothSides) {
  const TemporaryFolder folder;
  // 9, 10 and 11 without.
  write_compared(folder, {1, 1, 1}, 0.3, {{"perplexity", 9.0}});
  EXPECT_EQ(judged(folder)[3].verdict, FindingsVerdict::kNotSettled);
  EXPECT_EQ(judged(folder)[3].reason, "perplexity: the interval reaches beyond 0.5 % of zero");
  for (int seed = 1; seed <= 3; ++seed) {
    write_run(folder, "pgac:influence", seed, {1}, 0, {{"perplexity", 0.9 * (8 + seed)}});
  }
  EXPECT_EQ(judged(folder)[3].reason, "perplexity: the whole interval is beyond 0.5 % of zero");
  EXPECT_EQ(judged(folder)[3].verdict, FindingsVerdict::kRefuted);
  EXPECT_NEAR(judged(folder)[3].measured.mean, -0.1, 1e-12);
  // Accuracies come first where there are some.
  for (int seed = 1; seed <= 3; ++seed) {
    const nlohmann::json end = {{"accuracy", 0.9}, {"perplexity", 1}};
    write_run(folder, "none", seed, {1}, 0, end);
    write_run(folder, "pgac:influence", seed, {1}, 0, end);
  }
  EXPECT_EQ(judged(folder)[3].reason, "accuracy: the whole interval is within 0.5 % of zero");
}

TEST(FindingsVerdicts, AreNotMeasurableWithoutRunsSeedsOrTheSameMemory) {
  const TemporaryFolder folder;
  write_settings(folder);
  write_run(folder, "pgac:influence", 1, {10}, 0.1);
  write_run(folder, "uniform", 1, {10}, 0.1);
  write_run(folder, "dtr", 2, {10}, 0.1);
  std::vector<Expectation> all = judged(folder);
  for (const Expectation& each : all) EXPECT_EQ(each.verdict, FindingsVerdict::kNotMeasurable);
  EXPECT_EQ(all[0].reason, "one seed in common gives no interval");
  EXPECT_EQ(all[1].reason, "time of recomputation was not measured in both with one seed");
  EXPECT_EQ(all[3].reason, "no run of `none` was completed");
  EXPECT_EQ(expectations_of(read_runs(folder.path()), "gpt2", "pgac:cost")[0].reason,
            "no run of `pgac:cost` was completed");

  write_run(folder, "pgac:influence", 2, {10}, 0.1);
  write_run(folder, "uniform", 2, {10}, 0);
  EXPECT_EQ(judged(folder)[0].reason, "the time of recomputation of `uniform` is zero");
  // The budget is 4000 bytes.
  for (const int seed : {1, 2}) {
    nlohmann::json step = made_step(1, 5, 1);
    step["peak_bytes"] = 4001;
    write_lines(folder, path_of_run("pgac:influence", seed),
                {made_header("pgac:influence", seed, 1), step, made_end()});
  }
  all = judged(folder);
  EXPECT_EQ(all[2].verdict, FindingsVerdict::kNotMeasurable);
  EXPECT_THAT(all[2].reason,
              HasSubstr("not the same memory: `pgac:influence` took more than its budget"));
  EXPECT_EQ(all[2].measured.mean, 1);
}

}  // namespace
}  // namespace reprise::app
