// `reprise estimate`, `advise` and `calibrate`: their figures, their words, and what they say to
// wrong input. The rules of advise come from texts about checkpointing.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "apps/cli/commands/advice.h"
#include "apps/cli/commands/estimated_model.h"
#include "apps/cli/commands/least_budget.h"
#include "tests/cli/program.h"

namespace reprise::app {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kSmall = "--layers 4 --width 64 --heads 4 --context 32 --batch 4 ";

json result_of(const std::string& line) {
  const Finished result = run_here(words(line + " --json"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return json::parse(result.out, nullptr, false);
}

const json& strategy_of(const json& result, const std::string& name) {
  for (const json& each : result.at("strategies")) {
    if (each.at("strategy") == name) return each;
  }
  static const json kNothing;
  return kNothing;
}

TEST(EstimateCommand, TellsBytesOfAModelThatFitsNowhere) {
  const json result = result_of(
      "estimate --layers 80 --width 8192 --heads 64 --context 8192 --batch 4 --dtype bf16 "
      "--device cuda --vocabulary 32000 --strategy none,every-block");
  const double parameters = result.at("parameters");
  EXPECT_NEAR(parameters, 12.0 * 80 * 8192 * 8192, 0.02 * parameters);
  const json& plain = result.at("plain");
  EXPECT_NEAR(plain.at("parameter_bytes"), 2 * parameters, 1e-3 * parameters);
  EXPECT_NEAR(plain.at("gradient_bytes"), 2 * parameters, 1e-3 * parameters);
  EXPECT_NEAR(plain.at("optimizer_bytes"), 12 * parameters, 1e-3 * parameters);
  // 34 s b h a layer with fused attention; the input of each with every block a region.
  const double unit = 8192.0 * 4 * 8192, head = 3 * 2.0 * 8192 * 4 * 32000;
  EXPECT_NEAR(plain.at("activation_bytes"), 80 * 34 * unit, 0.01 * 80 * 34 * unit + head);
  const json& every = strategy_of(result, "every-block");
  EXPECT_NEAR(every.at("activation_bytes"), 80 * 2 * unit, 0.01 * 80 * 2 * unit + head);
  // One more forward: a third.
  EXPECT_NEAR(double(every.at("flops")) / double(plain.at("flops")), 4.0 / 3, 0.02);
  EXPECT_LT(result.at("least_budget").at("budget_bytes"), plain.at("peak_bytes"));
}

TEST(EstimateCommand, DividesStateAndTakesAMachine) {
  TemporaryFolder folder;
  write_file(folder / "m.json",
             R"({"format":"reprise machine","version":1,"f32_flops_per_second":1e9,)"
             R"("low_precision_flops_per_second":2e9,"bytes_per_second":1e9,)"
             R"("seconds_per_call":0.0})");
  const std::string line = std::string("estimate --strategy none ") + kSmall;
  const json one = result_of(line + "--flops 1e9 --bandwidth 1e9");
  const json two = result_of(line + "--shards 2 --machine " + (folder / "m.json"));
  EXPECT_DOUBLE_EQ(one.at("plain").at("seconds"), two.at("plain").at("seconds"));
  EXPECT_NEAR(double(two.at("plain").at("parameter_bytes")),
              double(one.at("plain").at("parameter_bytes")) / 2, 1000);
  const json none = result_of(line + "--optimizer none");
  EXPECT_EQ(none.at("plain").at("optimizer_bytes"), 0);
}

TEST(EstimateCommand, PrintsTables) {
  const Finished result = run_here(words(std::string("estimate --budget 95% ") + kSmall));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("parameters"), HasSubstr("optimizer"), HasSubstr("block/gelu"),
                    HasSubstr("every-block"), HasSubstr("selective:matmul"), HasSubstr("sqrt"),
                    HasSubstr("the least"), HasSubstr("--budget")));
}

// Beyond what a plan or a trace can count, bytes are still told.
TEST(EstimateCommand, TellsBytesOfStepsThatNoPlanCanCount) {
  const json result = result_of(
      "estimate --layers 40 --width 8192 --heads 64 --context 8192 --batch 16384 --dtype bf16 "
      "--device cuda --strategy none --flops 990e12 --bandwidth 3.35e12");
  EXPECT_GT(result.at("plain").at("peak_bytes"), 1e15);
}

TEST(EstimateCommand, EndsWithCode4WhereABudgetIsTooSmall) {
  const Finished result =
      run_here(words(std::string("estimate --strategy none --budget 10KB ") + kSmall));
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, HasSubstr("reprise estimate: --budget 10.0 KB is too small"));
  EXPECT_EQ(std::ranges::count(result.err, '\n'), 1);
}

TEST(EstimateCommand, RefusesWhatCannotBe) {
  const auto refused = [](const std::string& more, const std::string& text) {
    SCOPED_TRACE(more);
    expect_refusal(words("estimate " + more), text);
  };
  refused("--layers 0", "--layers is '0'");
  refused("--width 65 --heads 4", "--heads 4 does not divide --width 65");
  refused("--flops 0", "--flops is '0'");
  refused("--flops 0.5", "--flops is '0.5'");
  refused("--bandwidth 0.5", "--bandwidth is '0.5'");
  refused("--budget 1.5", "--budget is '1.5': give a share of the plain peak");
  refused("--strategy none,none", "names 'none' twice");
  refused("--strategy offload", "moves activations to a store");
  refused("--flops -1", "--flops is '-1'");
  refused("--bandwidth 0", "--bandwidth is '0'");
  refused("--shards 0", "--shards is '0'");
  refused("--device tpu", "--device is 'tpu': choose one of cpu, cuda");
  refused("--optimizer lion", "--optimizer is 'lion'");
  refused("--dtype f16", "--dtype is 'f16'");
  refused("--strategy half", "unknown strategy 'half'");
  refused("--strategy segments:99", "more segments than the model has layers");
  refused("--strategy offload:disk=x", "moves activations to a store");
  refused("--budget none", "--budget is 'none'");
  refused("--no-master", "--no-master needs bf16 weights, and --dtype is f32");
  refused("--no-master --dtype bf16 --optimizer none", "--optimizer is none");
  refused("--machine x.json --flops 1e12", "leave --machine out, or those");
  refused("--machine x.json --overhead 0", "leave --machine out, or those");
  refused("--overhead 2", "--overhead is '2'");
  refused("--vocabulary 0", "--vocabulary is '0'");
  refused("--batch 1048576 --context 1048576 --width 1048576", "more than 2^56 numbers");
  refused("--machine /nowhere/x.json", "cannot read the machine /nowhere/x.json");
  expect_refusal({"advise"}, "no device was described");
  expect_refusal({"advise", "--device-bytes", "much"}, "\"much\" is not a number of bytes");
  expect_refusal({"advise", "--device-bytes", "0"}, "--device-bytes is '0'");
  expect_refusal({"calibrate", "--seconds", "0"}, "--seconds is '0'");
  expect_refusal({"calibrate", "--seconds", "0.01", "--out", "/nowhere/m.json"}, "/nowhere/m.json");
  TemporaryFolder folder;
  write_file(folder / "bad.json", "{\"format\": 3}");
  refused("--machine " + (folder / "bad.json"), "bad.json:1");
}

TEST(CalibrateCommand, WritesWhatEstimateReads) {
  TemporaryFolder folder;
  const std::string file = folder / "here.json";
  const Finished result =
      run_here({"calibrate", "--seconds", "0.05", "--threads", "1", "--out", file});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("products, f32"), HasSubstr("GB/s")));
  const json found =
      result_of(std::string("estimate --strategy none ") + kSmall + "--machine " + file);
  EXPECT_EQ(found.at("machine"), json::parse(contents(file)));
}

AdviceFigures figures() {
  return {.device = GB(80),
          .device_option = "80GB",
          .state = GB(30),
          .plain_peak = GB(120),
          .plain_activations = GB(85),
          .ways = {{"every-block", GB(40), 1.33, {}},
                   {"selective:recompute-attention", GB(60), 1.05, {}}},
          .batch = 4,
          .shards = 8,
          .most_shards = 64,
          .largest_batch = {},
          .least_shards = {},
          .both = {},
          .fused_peak = {}};
}

// Not for models that fit: the extra time would buy memory that nobody needs.
TEST(Advice, LeavesOffWhatFits) {
  AdviceFigures fits = figures();
  fits.plain_peak = GB(80);
  const Advice advice = advise_on(fits);
  EXPECT_EQ(advice.remedy, Remedy::kOff);
  EXPECT_THAT(advice.words.front(), HasSubstr("80.0 GB"));
  EXPECT_THAT(advice.words.back(), HasSubstr("5.0 % more time"));
}

// Bound by weights: sharding mends that, checkpointing does not.
TEST(Advice, DividesStateThatDoesNotFit) {
  AdviceFigures heavy = figures();
  heavy.state = GB(81);
  heavy.least_shards = 16;
  const Advice advice = advise_on(heavy);
  EXPECT_EQ(advice.remedy, Remedy::kShards);
  EXPECT_THAT(advice.words, testing::Contains(HasSubstr("--shards 16 a step fits, under "
                                                        "--strategy every-block")));
  EXPECT_EQ(advice.way, "every-block");
  heavy.least_shards.reset();
  EXPECT_EQ(advise_on(heavy).remedy, Remedy::kNone);
  EXPECT_EQ(advise_on(heavy).way, "");
  EXPECT_THAT(advise_on(heavy).words.back(), HasSubstr("Up to 64 shards"));
  heavy.both = {2, 32};
  EXPECT_EQ(advise_on(heavy).remedy, Remedy::kBoth);
  EXPECT_EQ(advise_on(heavy).way, "every-block");
}

// Selective recomputation recovers most of the memory for well under the full bill.
TEST(Advice, TakesTheFastestWayThatFits) {
  AdviceFigures bound = figures();
  EXPECT_EQ(advise_on(bound).way, "selective:recompute-attention");
  bound.device = GB(50);
  const Advice every = advise_on(bound);
  EXPECT_EQ(every.way, "every-block");
  EXPECT_EQ(every.remedy, Remedy::kStrategy);
  EXPECT_THAT(every.words.front(), HasSubstr("33.0 % more time"));
  bound.ways.push_back({"budget", GB(50), 1.1, 1.2});
  EXPECT_EQ(advise_on(bound).remedy, Remedy::kBudget);
  EXPECT_THAT(advise_on(bound).words.front(),
              HasSubstr("(--budget 80GB): 10.0 % more time once it has learned the step, 20.0 % "
                        "before"));
  bound.ways.back().unlearnt.reset();
  EXPECT_THAT(advise_on(bound).words.front(), HasSubstr("it may not fit before"));
}

TEST(Advice, MakesTheBatchSmallerWhereNothingFits) {
  AdviceFigures tight = figures();
  tight.device = GB(35);
  tight.largest_batch = 2;
  tight.least_shards = 32;
  const Advice advice = advise_on(tight);
  EXPECT_EQ(advice.remedy, Remedy::kSmallerBatch);
  EXPECT_EQ(advice.way, "every-block");
  EXPECT_THAT(advice.words,
              testing::ElementsAre(
                  AllOf(HasSubstr("every-block, the way of least memory, peaks at 40.0 GB"),
                        HasSubstr("--batch 2 in place of 4 it fits, under --strategy every-block")),
                  HasSubstr("--shards 32 it fits, under --strategy every-block")));
  tight.largest_batch.reset();
  const Advice divided = advise_on(tight);
  EXPECT_EQ(divided.remedy, Remedy::kShards);
  EXPECT_EQ(divided.way, "every-block");
  EXPECT_THAT(divided.words.front(),
              AllOf(HasSubstr("every-block, the way of least memory, peaks at 40.0 GB of"),
                    HasSubstr("--shards 32 it fits, under --strategy every-block")));
  tight.least_shards.reset();
  tight.both = {2, 16};
  EXPECT_EQ(advise_on(tight).remedy, Remedy::kBoth);
  EXPECT_EQ(advise_on(tight).way, "every-block");
  EXPECT_THAT(advise_on(tight).words.back(),
              HasSubstr("--batch 2 in place of 4 and --shards 16 it fits, under --strategy"));
  tight.both.reset();
  EXPECT_THAT(advise_on(tight).words.front(), HasSubstr("Nothing fits"));
  EXPECT_EQ(advise_on(tight).way, "");
}

// Fused attention is the limit of selective recomputation.
TEST(Advice, TakesFusedAttentionWhereThatIsEnough) {
  AdviceFigures unfused = figures();
  unfused.fused_peak = GB(70);
  EXPECT_EQ(advise_on(unfused).remedy, Remedy::kFusedAttention);
  EXPECT_THAT(advise_on(unfused).words,
              testing::ElementsAre(HasSubstr("Use --attention fused"), HasSubstr("selective:")));
  unfused.fused_peak = GB(90);
  EXPECT_EQ(advise_on(unfused).remedy, Remedy::kStrategy);
  EXPECT_THAT(advise_on(unfused).words.back(), HasSubstr("--attention fused"));
}

std::string advice_for(const std::string& line) {
  return result_of(
             "advise --device cuda --dtype bf16 --flops 990e12 --bandwidth 3.35e12 "
             "--device-bytes 80GB " +
             line)
      .at("advice");
}

// The texts' own cases, on devices of 80 GB: short sequences and small models need nothing; a state
// that does not fit is divided; what long sequences keep is recomputed.
TEST(AdviseCommand, FollowsTheRulesOfTheTexts) {
  using testing::AnyOf;
  EXPECT_EQ(advice_for("--layers 12 --width 768 --heads 12 --context 1024 --batch 8"), "off");
  const std::string large = "--layers 80 --width 8192 --heads 64 --context 8192 --batch 4 ";
  EXPECT_EQ(advice_for(large), "shards");
  EXPECT_THAT(advice_for(large + "--shards 128"), AnyOf("strategy", "budget"));
  const std::string lengthy = "--layers 32 --width 4096 --heads 32 --context 131072 --batch 1 ";
  EXPECT_EQ(advice_for(lengthy), "shards");
  EXPECT_THAT(advice_for(lengthy + "--shards 8"), AnyOf("strategy", "budget"));
}

TEST(AdviseCommand, NamesTheLargestBatchAndTheLeastShardsThatFit) {
  const std::string model = "--layers 4 --width 64 --heads 4 --context 64 ";
  const auto advised = [&](const std::string& more, std::int64_t device) {
    return result_of("advise " + model + more + " --device-bytes " + std::to_string(device));
  };
  const json roomy = advised("--batch 2", 1'000'000'000);
  std::int64_t least = roomy.at("plain_peak_bytes");
  for (const json& way : roomy.at("ways"))
    least = std::min<std::int64_t>(least, way.at("peak_bytes"));
  const json many = advised("--batch 64", least);
  ASSERT_EQ(many.at("advice"), "smaller batch") << many.dump(2);
  EXPECT_EQ(many.at("largest_batch"), 2);
  EXPECT_NE(advised("--batch 2", least).at("advice"), "smaller batch");
  const std::int64_t half = roomy.at("state_bytes").get<std::int64_t>() / 2;
  const json heavy = advised("--batch 1", half);
  ASSERT_EQ(heavy.at("advice"), "shards") << heavy.dump(2);
  const auto shards = heavy.at("least_shards").get<int>();
  EXPECT_NE(advised("--batch 1 --shards " + std::to_string(shards), half).at("advice"), "shards");
}

// Neither alone is enough.
TEST(AdviseCommand, LooksForASmallerBatchAndMoreShardsTogether) {
  const std::string model = "--layers 4 --width 64 --heads 4 --context 256 ";
  const auto advised = [&](const std::string& more, std::int64_t device) {
    return result_of("advise " + model + more + " --device-bytes " + std::to_string(device));
  };
  const auto least_of = [](const json& result) {
    std::int64_t least = result.at("plain_peak_bytes");
    for (const json& way : result.at("ways"))
      least = std::min<std::int64_t>(least, way.at("peak_bytes"));
    return least;
  };
  // The device has the bytes of one sequence with a divided state: too few for an undivided state,
  // and too few for many sequences.
  const std::int64_t device = least_of(advised("--batch 1 --shards 8", 1'000'000'000));
  const json found = advised("--batch 64", device);
  ASSERT_EQ(found.at("advice"), "smaller batch and shards") << found.dump(2);
  const json& together = found.at("together");
  const auto line = [&](const char* batch_of, int factor) {
    return "--batch " + std::to_string(together.at("batch").get<int>() * factor) + " --shards " +
           std::to_string(together.at("shards").get<int>()) + batch_of;
  };
  EXPECT_LE(least_of(advised(line("", 1), device)), device);
  EXPECT_GT(least_of(advised(line("", 3), device)), device);
  EXPECT_NE(found.at("way"), "");
}

// A deep model would take hours. The limit is of this test's own, so that no machine's speed
// decides.
TEST(LeastBudget, SearchesNoLongerThanItMayAndSaysSo) {
  EstimateModelOptions options;
  options.gpt.layers = 12;
  options.gpt.width = 64;
  options.gpt.heads = 4;
  options.gpt.context = 32;
  options.batch = 2;
  check_estimated(options);
  const StepTrace trace = EstimatedModel(options).estimate("none").trace;
  const BudgetSearch::Time little(1e-9), much(3600);
  const BudgetCost cut = least_budget(trace, {.trials = little, .plan = little});
  EXPECT_TRUE(cut.is_cut);
  EXPECT_TRUE(cut.online_is_unknown);
  EXPECT_EQ(cut.online, std::nullopt);
  EXPECT_EQ(cut.budget, trace.plain_peak());
  EXPECT_EQ(json_of(cut).value("search_was_cut", false), true);
  EXPECT_EQ(json_of(cut).value("online_is_unknown", false), true);
  const BudgetCost whole = least_budget(trace, {.trials = much, .plan = little});
  EXPECT_FALSE(whole.is_cut);
  EXPECT_TRUE(whole.online);
  EXPECT_LT(whole.budget, trace.plain_peak());
  EXPECT_FALSE(json_of(whole).contains("search_was_cut"));
  // The commands allow little, because a user waits.
  EXPECT_LE(BudgetSearch{}.trials, BudgetSearch::Time(1));
  EXPECT_LE(BudgetSearch{}.plan, BudgetSearch::Time(1));
}

TEST(AdviseCommand, GivesWordsAndFigures) {
  const std::string model = std::string(kSmall) + "--attention unfused ";
  const json all = result_of("advise --device-bytes 1GB " + model);
  EXPECT_EQ(all.at("advice"), "off");
  const auto peak = all.at("plain_peak_bytes").get<std::int64_t>();
  const json tight = result_of("advise --device-bytes " + std::to_string(peak - 1) + " " + model);
  EXPECT_EQ(tight.at("advice"), "fused attention");
  const auto state = all.at("state_bytes").get<std::int64_t>();
  const json heavy = result_of("advise --device-bytes " + std::to_string(state / 2) + " " + model);
  EXPECT_EQ(heavy.at("advice"), "shards");
  const Finished text = run_here(words("advise --device-bytes 1GB " + model));
  EXPECT_THAT(text.out, HasSubstr("Leave checkpointing off: the plain step peaks at"));
}

}  // namespace
}  // namespace reprise::app
