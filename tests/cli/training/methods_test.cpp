// `reprise train` under a method: every exact method learns the same, the log says where a step's
// time and bytes went, and what cannot work is refused.
#include <gmock/gmock.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/cli/training/methods/method.h"
#include "tests/cli/program.h"
#include "tests/cli/training/tables.h"
#include "tests/refusal.h"

namespace reprise::app {
namespace {

using nlohmann::json;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

std::int64_t above(const json& line, const char* all, const char* live) {
  return line.at(all).get<std::int64_t>() - line.at(live).get<std::int64_t>();
}

class TrainMethod : public testing::Test {
 protected:
  TrainMethod() {
    std::string text;
    for (int i = 0; i < 900; ++i) text += "line " + std::to_string(i * i % 97) + " of a text\n";
    write_file(folder_ / "text.txt", text);
    write_file(folder_ / "pictures.csv", table_of_pictures(40));
  }

  Arguments command(const std::string& model, const std::string& more) const {
    const bool is_vit = model == "vit";
    Arguments line = words("train --model " + model +
                           " --layers 5 --width 32 --heads 2 --attention unfused --device cpu "
                           "--threads 1 --steps 3 " +
                           (is_vit ? "--batch 8 --patch 1 " : "--batch 4 --context 32 ") + more);
    line.insert(line.end(), {"--data", folder_ / (is_vit ? "pictures.csv" : "text.txt")});
    return line;
  }
  json result_of(const std::string& model, const std::string& more) const {
    const Finished done = run_here(command(model, "--json " + more));
    EXPECT_EQ(done.exit_code, 0) << model << ' ' << more << done.err;
    return json::parse(done.out, nullptr, false);
  }
  // The lines of its log.
  std::vector<json> log_of(const std::string& model, const std::string& more) const {
    result_of(model, more + " --log " + folder_ / "log.jsonl");
    return lines_of(folder_ / "log.jsonl");
  }
  static std::vector<json> steps_of(const std::vector<json>& lines) {
    return {lines.begin() + 1, lines.end() - 1};
  }

  TemporaryFolder folder_;
};

TEST_F(TrainMethod, ExactMethodsLearnTheSameAndTheLossyOneIsSaidNotToBeExact) {
  const json plain = result_of("gpt", "--method none");
  for (const std::string& method : training_methods()) {
    const std::string budget = needs_budget(method) ? " --budget 75%" : "";
    const json found = result_of("gpt", "--method " + method + budget);
    if (is_exact(method)) {
      EXPECT_EQ(found.at("weights_xxh3"), plain.at("weights_xxh3")) << method;
    }
    EXPECT_EQ(is_exact(method), method != "pgac:lossy");
  }
}

TEST_F(TrainMethod, OtherModelsLearnTheSameUnderABudget) {
  for (const std::string model : {"bert", "vit"}) {
    const json plain = result_of(model, "");
    EXPECT_EQ(plain.at("method"), "none");
    for (const std::string method : {"uniform", "dtr", "pgac"}) {
      const json found = result_of(model, "--budget 80% --method " + method);
      EXPECT_EQ(found.at("weights_xxh3"), plain.at("weights_xxh3")) << model << ' ' << method;
    }
    EXPECT_EQ(plain.at("accuracy").is_null(), model == "bert");
  }
}

TEST_F(TrainMethod, TheGptIsTheOneThatTrainTrains) {
  const json usual = result_of("gpt", "--dropout 0"),
             under = result_of("gpt", "--dropout 0 --method none");
  EXPECT_EQ(under.at("weights_xxh3"), usual.at("weights_xxh3"));
  EXPECT_EQ(under.at("validation_loss"), usual.at("validation_loss"));
}

TEST_F(TrainMethod, ABudgetWithoutAMethodIsThatOfTheTape) {
  EXPECT_EQ(result_of("bert", "--budget 80%").at("method"), "budget");
}

TEST_F(TrainMethod, TheLogHasAHeadALineForEachStepAndAnEnd) {
  const auto lines = log_of("gpt", "--method dtr --budget 70% --seed 5");
  ASSERT_EQ(lines.size(), 5u);
  const json& head = lines.front();
  EXPECT_EQ(head.at("kind"), "run");
  EXPECT_EQ(head.at("seed"), 5);
  EXPECT_EQ(head.at("options").at("method"), "dtr");
  EXPECT_EQ(head.at("machine").at("threads"), 1);
  EXPECT_THAT(head.at("layers"), Contains("head"));
  EXPECT_EQ(head.at("layers").size(), 6u);
  EXPECT_NEAR(head.at("budget_bytes").get<double>(),
              0.7 * head.at("plain_peak_bytes").get<double>(), 1);
  for (const char* key : {"version", "libtorch", "fingerprint", "model", "data", "units"}) {
    EXPECT_FALSE(head.at(key).get<std::string>().empty()) << key;
  }
  EXPECT_EQ(lines.back().at("kind"), "end");
  EXPECT_GT(lines.back().at("validation_loss"), 0);
  const std::int64_t may_add = above(head, "budget_bytes", "live_before_step_bytes");
  double tape_seconds = 0;
  for (const json& step : steps_of(lines)) {
    EXPECT_EQ(step.at("kind"), "step");
    EXPECT_LE(above(step, "peak_bytes", "live_bytes"), may_add);
    EXPECT_GT(step.at("peak_bytes"), step.at("live_bytes"));
    EXPECT_GT(step.at("recompute_seconds"), 0);
    tape_seconds += step.at("tape_seconds").get<double>();
    const double both =
        step.at("forward_seconds").get<double>() + step.at("backward_seconds").get<double>();
    EXPECT_LE(both, step.at("seconds"));
    EXPECT_LE(step.at("recompute_seconds").get<double>() +
                  step.at("packing_seconds").get<double>() + step.at("tape_seconds").get<double>(),
              both);
  }
  EXPECT_GT(tape_seconds, 0);
}

TEST_F(TrainMethod, OnlyMethodsThatRecomputeTakeTimeForIt) {
  for (const json& step : steps_of(log_of("gpt", "--method none"))) {
    EXPECT_EQ(step.at("recompute_seconds"), 0);
    EXPECT_EQ(step.at("tape_seconds"), 0);
  }
  for (const json& step : steps_of(log_of("gpt", "--method every-block"))) {
    EXPECT_GT(step.at("recompute_seconds"), 0);
    EXPECT_LT(step.at("recompute_seconds"), step.at("backward_seconds"));
  }
}

TEST_F(TrainMethod, TheLogTellsTheWantedMaskTheOneThatWasRunAndASearch) {
  const auto lines = log_of("gpt", "--method pgac --budget 70%");
  for (const json& step : steps_of(lines)) {
    EXPECT_EQ(step.at("mask").get<std::string>().size(), 6u);
    EXPECT_EQ(step.at("wanted").get<std::string>().size(), 6u);
    EXPECT_LE(above(step, "peak_bytes", "live_bytes"),
              above(lines.front(), "budget_bytes", "live_before_step_bytes"));
    EXPECT_TRUE(step.at("by_search").is_boolean());
    EXPECT_EQ(step.at("scores").size(), 6u);
  }
  // The first step wants everything, before there is a score.
  EXPECT_EQ(lines.at(1).at("wanted"), "111111");
  const auto searched = log_of("gpt", "--method pgac:cost,search=yes --budget 70%");
  EXPECT_EQ(steps_of(searched).back().at("by_search"), true);
}

TEST_F(TrainMethod, ABudgetThatIsTooSmallEndsWithCode4AndALogWithoutSteps) {
  for (const std::string method : {"uniform", "dtr", "pgac"}) {
    const std::string log = folder_ / (method + ".jsonl");
    const Finished done =
        run_here(command("gpt", "--budget +1kB --method " + method + " --log " + log));
    EXPECT_EQ(done.exit_code, 4) << method;
    EXPECT_THAT(done.err, HasSubstr("budget")) << method;
    EXPECT_THAT(done.err, Not(HasSubstr("reprise frontier"))) << method;
    if (std::filesystem::exists(log)) {
      EXPECT_EQ(lines_of(log).back().at("kind"), "run");
    }
  }
}

TEST_F(TrainMethod, CtrlCEndsTheLogWithTheLastWholeStep) {
  Process process(command("gpt", "--method none --steps 1000000 --log " + folder_ / "log.jsonl"));
  const auto log = folder_ / "log.jsonl";
  // Far longer than three steps take anywhere; a program that died would write none.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(5);
  while (!std::filesystem::exists(log) || lines_of(log).size() < 3) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  process.send(SIGINT);
  const Finished done = process.wait();
  EXPECT_EQ(done.exit_code, 130);
  EXPECT_THAT(done.err, HasSubstr("ends with that step"));
  EXPECT_EQ(lines_of(log).back().at("kind"), "step");
}

TEST_F(TrainMethod, RefusesWhatItDoesNotKnowAndWhatItWouldIgnore) {
  const auto refused = [&](const std::string& model, const std::string& more,
                           const std::string& text) { expect_refusal(command(model, more), text); };
  refused("llama", "", "--model is 'llama': choose one of gpt, bert, vit");
  refused("gpt", "--method fast", "--method is 'fast': choose one of none, every-block");
  refused("gpt", "--method uniform,k=2 --budget 60%", "method 'uniform' takes no parameters");
  refused("gpt", "--method pgac,q=2 --budget 60%", "method 'pgac,q=2': q");
  refused("gpt", "--method pgac,far=0.5 --budget 60%", "'far=0.5' is no parameter of it");
  refused("gpt", "--method pgac,gamma=none --budget 60%", "gamma is 'none'");
  refused("gpt", "--method pgac,q=0.5,q=0.5 --budget 60%", "is given q twice");
  refused("gpt", "--method dtr", "add --budget, such as --budget 60%");
  refused("bert", "--method none --budget 60%", "--budget has no effect on --method none");
  refused("gpt", "--method dtr --budget least", "--budget is 'least'");
  refused("bert", "--sample", "--sample has no effect on a run with --method");
  refused("vit", "--strategy sqrt", "--strategy has no effect");
  refused("gpt", "--method none --dtype bf16", "--dtype has no effect");
  refused("vit", "--context 8", "--context has no effect on model vit");
  refused("bert", "--patch 2", "--patch has no effect on model bert");
  refused("vit", "--patch 3", "--patch 3 does not divide the 4 pixels");
  refused("gpt", "--method none --heads 3", "--heads 3 does not divide --width 32");
  refused("gpt", "--method none --log " + folder_ / "text.txt", "--log would write over");
  refused("gpt", "--method none --log " + folder_ / "no/such/log.jsonl", "--log");
}

TEST_F(TrainMethod, RefusesDataThatIsMissing) {
  for (const std::string model : {"bert", "vit"}) {
    expect_refusal(words("train --model " + model + " --device cpu --data " + folder_ / "missing"),
                   folder_ / "missing");
  }
  expect_refusal(words("train --model vit --device cpu"), "vit needs a table of pictures");
}

TEST(TrainMethods, ParametersReachPgac) {
  const auto options_of = [](const std::string& name) {
    return pgac_options({.name = name, .steps = 200, .seed = 7});
  };
  const PgacOptions text = options_of("pgac,q=0.25,alpha=0.5,gamma=linear");
  EXPECT_EQ(text.quantile, 0.25);
  EXPECT_EQ(text.alpha, 0.5);
  EXPECT_EQ(text.gamma, GammaSchedule::linear(1.5, 0.5));
  EXPECT_EQ(text.steps, 200);
  EXPECT_FALSE(text.fill_budget);
  EXPECT_FALSE(text.lossy);
  EXPECT_TRUE(options_of("pgac:cost").fill_budget);
  EXPECT_FALSE(options_of("pgac:cost,fill=no").fill_budget);
  EXPECT_TRUE(options_of("pgac:cost,search=yes").exact_search);
  EXPECT_FALSE(options_of("pgac:cost,search=yes").fill_budget);
  EXPECT_EQ(options_of("pgac:product").ranking, PgacRanking::kInfluenceTimesCost);
  EXPECT_EQ(options_of("random").ranking, PgacRanking::kRandom);
  EXPECT_EQ(options_of("random").seed, 7u);
  EXPECT_EQ(options_of("pgac:lossy,far=0.25").lossy->int4_threshold, 0.25);
  EXPECT_EQ(options_of("pgac:lossy,error=0.5").lossy->gradient_error, 0.5);
  EXPECT_THAT(refusal_of([&] { options_of("pgac:cost,search=yes,fill=yes"); }),
              HasSubstr("exact_search and fill_budget are both set"));
}

}  // namespace
}  // namespace reprise::app
