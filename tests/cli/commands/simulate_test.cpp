// `reprise simulate`: its table, its JSON, every form of a budget, and what it says to wrong input.
#include <gmock/gmock.h>
#include <reprise/step_trace.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/cli/program.h"

namespace reprise::app {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

// Two values of 10 kB. In 20 kB one must be dropped while a third is made; both are read again.
class Simulate : public testing::Test {
 protected:
  Simulate() {
    std::string text;
    const auto call = [&](const std::string& name, const std::string& arguments, int bytes,
                          int nanoseconds) {
      text += R"({"INSTRUCTION":"CALL","NAME":"op","ARGS":[)" + arguments + R"(],"RESULT":[")" +
              name + R"("],"TIME":")" + std::to_string(nanoseconds) + "\"}\n" +
              R"({"INSTRUCTION":"MEMORY","NAME":")" + name + R"(","MEMORY":")" +
              std::to_string(bytes) + "\"}\n" + R"({"INSTRUCTION":"ALIAS","NAME":")" + name +
              R"(","ALIAS":"-1"})" + "\n";
    };
    const auto release = [&](const std::string& name) {
      text += R"({"INSTRUCTION":"RELEASE","NAME":")" + name + "\"}\n";
    };
    call("dear", "", 10'000, 5'000);
    call("cheap", "", 10'000, 1'000);
    call("pause", "", 0, 100'000);
    call("large", "", 10'000, 0);
    release("large");
    call("end", R"("dear","cheap")", 0, 0);
    release("dear");
    release("cheap");
    write_file(trace, text);
  }

  json simulated(const Arguments& more) const {
    Arguments arguments = {"simulate", trace, "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Finished result = run_here(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out, nullptr, false);
  }

  void expect_refusal(const Arguments& more, const std::string& text) const {
    Arguments arguments = {"simulate"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Finished result = run_here(arguments);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, AllOf(testing::StartsWith("reprise simulate: "), HasSubstr(text)));
    EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
  }

  TemporaryFolder folder;
  std::string trace = folder / "step.jsonl";
};

TEST_F(Simulate, TellsWhatABudgetCosts) {
  const json result = simulated({"--budget", "20kB", "--heuristic", "h_local,lru"});
  EXPECT_EQ(result.at("operators"), 5);
  EXPECT_EQ(result.at("plain_peak_bytes"), 30'000);
  EXPECT_EQ(result.at("floor_bytes"), 20'000);
  EXPECT_EQ(result.at("constant_bytes"), 0);
  EXPECT_DOUBLE_EQ(result.at("base_seconds"), 106e-6);
  ASSERT_EQ(result.at("simulations").size(), 2u);
  const json local = result.at("simulations").at(0), lru = result.at("simulations").at(1);
  EXPECT_EQ(local.at("heuristic"), "h_local");
  EXPECT_EQ(local.at("outcome"), "fits");
  EXPECT_EQ(local.at("budget_bytes"), 20'000);
  EXPECT_DOUBLE_EQ(local.at("slowdown"), 107.0 / 106);
  EXPECT_DOUBLE_EQ(local.at("recompute_seconds"), 1e-6);
  EXPECT_EQ(local.at("peak_bytes"), 20'000);
  EXPECT_EQ(local.at("evictions"), 1);
  EXPECT_DOUBLE_EQ(lru.at("slowdown"), 111.0 / 106);
}

TEST_F(Simulate, ReadsEveryFormOfABudget) {
  const json result = simulated({"--budget", "0.9,1,90%,150%, 27000 ,0.03 MB"});
  std::vector<std::int64_t> bytes;
  for (const json& each : result.at("simulations")) bytes.push_back(each.at("budget_bytes"));
  EXPECT_THAT(bytes, testing::ElementsAre(27'000, 30'000, 27'000, 45'000, 27'000, 30'000));
}

TEST_F(Simulate, SaysWhereAStepDoesNotFitOrTakesTooLong) {
  EXPECT_EQ(simulated({"--budget", "0.5"}).at("simulations").at(0).at("outcome"), "out of memory");
  EXPECT_EQ(simulated({"--budget", "20kB", "--heuristic", "lru", "--slowdown-limit", "1.02"})
                .at("simulations")
                .at(0)
                .at("outcome"),
            "too slow");
}

TEST_F(Simulate, FindsTheSameByTheIndex) {
  EXPECT_EQ(simulated({"--budget", "20kB", "--index"}).at("simulations"),
            simulated({"--budget", "20kB"}).at("simulations"));
}

TEST_F(Simulate, PrintsATable) {
  const Finished result = run_here({"simulate", trace, "--budget", "0.7,0.5"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("plain peak   30.0 KB"), HasSubstr("floor        20.0 KB"),
                    HasSubstr("1.0094×"), HasSubstr("out of memory")));
}

TEST_F(Simulate, RefusesBudgetsThatAreNone) {
  for (const char* wrong : {"many", "0", "-1", "0%", "5 x", "nan", "0.5%%"}) {
    expect_refusal({trace, "--budget", wrong}, std::string("--budget is '") + wrong +
                                                   "': give a share of the plain peak (0.5 or 50%");
  }
  for (const char* above : {"+1MB", "+20kB"}) {
    expect_refusal({trace, "--budget", above}, std::string("--budget is '") + above +
                                                   "': bytes above those live before a step");
  }
  expect_refusal({trace, "--budget", ""},
                 "--budget is '': give a share of the plain peak (0.5 or 50%");
}

TEST_F(Simulate, RefusesOtherHeuristicsAndLimits) {
  expect_refusal({trace, "--heuristic", "h_drt"},
                 "\"h_drt\" is not a heuristic: choose one of h_dtr");
  expect_refusal({trace, "--slowdown-limit", "0.5"}, "--slowdown-limit is '0.5'");
}

TEST_F(Simulate, RefusesTracesItCannotRead) {
  expect_refusal({}, "no trace was given");
  expect_refusal({folder / "none"}, "none: No such file or directory");
  write_file(folder / "wrong", contents(trace) + "{\"INSTRUCTION\":\"FREE\"}\n");
  expect_refusal({folder / "wrong"}, "wrong:19: the INSTRUCTION \"FREE\" is not known");
}

TEST_F(Simulate, HelpsItself) {
  const Finished result = run_here({"simulate", "--help"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, AllOf(HasSubstr("--budget LIST=0.8,0.5"), HasSubstr("h_dtr, h_eq")));
  for (const std::string& name : heuristic_names()) EXPECT_THAT(result.out, HasSubstr(name));
}

}  // namespace
}  // namespace reprise::app
