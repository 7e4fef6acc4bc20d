// `reprise frontier`: its points lie between the plain step and the least that works, and its
// picture holds them.
#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/cli/compare/frontier_chart.h"
#include "tests/cli/program.h"

namespace reprise::app {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(Frontier, GoesFromThePlainPeakDownToTheLeastThatWorks) {
  const TemporaryFolder folder;
  const Finished run =
      run_here(tiny_run("frontier", kDeep + ("--steps 1 --json --svg " + folder / "f.svg")));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.err, "");
  const json result = json::parse(run.out);
  const json& points = result.at("points");
  ASSERT_GT(points.size(), 6u);
  EXPECT_EQ(points[0].at("strategy"), "none");
  EXPECT_EQ(points[1].at("strategy"), "every-block");
  int fit = 0, misfit = 0;
  double before = points[0].at("peak_bytes");
  for (std::size_t i = 2; i < points.size(); ++i) {
    const json& point = points[i];
    EXPECT_TRUE(point.at("strategy").get<std::string>().starts_with('+')) << point;
    EXPECT_LT(point.at("budget_bytes").get<double>(), before) << point;
    before = point.at("budget_bytes");
    if (!point.contains("ratio_to_none")) {
      ++misfit;
      continue;
    }
    ++fit;
    EXPECT_LE(point.at("peak_bytes"), point.at("budget_bytes"));
    EXPECT_TRUE(point.at("gradients_equal").get<bool>());
    EXPECT_LE(point.at("lowest_ratio"), point.at("ratio_to_none"));
    EXPECT_GE(point.at("highest_ratio"), point.at("ratio_to_none"));
  }
  EXPECT_GE(fit, 4);
  EXPECT_LE(misfit, 2);
  EXPECT_THAT(contents(folder / "f.svg"),
              AllOf(HasSubstr("<svg xmlns="), HasSubstr("every-block"), HasSubstr("</svg>")));
}

TEST(Frontier, MeasuresTheBudgetsThatAreAskedFor) {
  const Finished run =
      run_here(tiny_run("frontier", kDeep + std::string("--steps 2 --budgets 60%,+2MB,+50kB,1kB")));
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.err, "");
  EXPECT_THAT(run.out, AllOf(HasSubstr("60%"), HasSubstr("+2MB"), HasSubstr("+50kB"),
                             HasSubstr("does not fit"), HasSubstr("spread"),
                             HasSubstr("\n+50kB: memory budget of "),
                             HasSubstr("\n1kB: --budgets is '1kB', which is 1.0 KB, and ")));
}

TEST(Frontier, WhereNoBudgetFitsThereIsNoFrontier) {
  const Finished run =
      run_here(tiny_run("frontier", kDeep + std::string("--steps 1 --budgets +50kB,1kB")));
  EXPECT_EQ(run.exit_code, 4);
  EXPECT_THAT(run.out, HasSubstr("\n+50kB: memory budget of "));
  EXPECT_EQ(run.err,
            "reprise frontier: a step can be run in none of these budgets, for the reasons above; "
            "give larger --budgets, or none, to search for the least\n");
}

TEST(Frontier, RefusesWhatCannotBe) {
  const TemporaryFolder folder;
  const auto refused = [](const std::string& more) {
    const Finished run = run_here(tiny_run("frontier", more));
    EXPECT_EQ(run.exit_code, 2) << more;
    EXPECT_EQ(run.out, "");
    return run.err;
  };
  EXPECT_THAT(refused("--budgets 80%,many"), HasSubstr("--budgets is 'many': give all bytes"));
  EXPECT_THAT(refused("--budgets ,"), HasSubstr("--budgets: 1 required LIST missing"));
  EXPECT_THAT(refused("--heuristic none"), HasSubstr("--heuristic is 'none': choose one of"));
  EXPECT_THAT(refused("--svg " + folder / "none/f.svg"), HasSubstr("another file with --svg"));
  write_file(folder / "text", std::string(5000, 'a'));
  EXPECT_THAT(refused("--data " + folder / "text" + " --svg " + folder / "text"),
              HasSubstr("--svg would write over"));
}

TEST(Frontier, AnInterruptionLeavesWhatWasMeasured) {
  Process process(tiny_run("frontier", "--steps 1000000 --budgets 90%"), Terminal::kOfErrors);
  ASSERT_TRUE(await_first_times(process));
  process.send(SIGINT);
  const Finished result = process.wait();
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_THAT(result.err, HasSubstr("reprise frontier: interrupted; the result holds what"));
  EXPECT_THAT(result.out, AllOf(HasSubstr("every-block"), HasSubstr("1.00×")));
}

// Until a pattern is there; false if it never comes.
bool await(const std::function<bool()>& is_there) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!is_there() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return is_there();
}

TEST(Frontier, AnEarlyInterruptionSaysSo) {
  const TemporaryFolder folder;
  write_file(folder / "f.svg", "of an earlier run");
  // Begun before the data is read, and a first step that takes long enough for a signal to come in
  // time.
  Process process(tiny_run("frontier", "--batch 256 --context 128 --svg " + folder / "f.svg"));
  ASSERT_TRUE(await([&] { return is_begun(folder, "f.svg"); }));
  process.send(SIGINT);
  const Finished result = process.wait();
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_EQ(result.err, "reprise frontier: interrupted before anything was measured\n");
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(contents(folder / "f.svg"), "of an earlier run");
  EXPECT_FALSE(is_begun(folder, "f.svg"));
}

TEST(Frontier, AnInterruptedOneCountsTheStepsThatWereRun) {
  const TemporaryFolder folder;
  Process process(
      tiny_run("frontier", "--json --steps 1000000 --budgets 90% --svg " + folder / "f.svg"),
      Terminal::kOfErrors);
  ASSERT_TRUE(await_first_times(process));
  process.send(SIGINT);
  const Finished result = process.wait();
  EXPECT_EQ(result.exit_code, 130);
  const json frontier = json::parse(result.out);
  const auto steps = frontier.at("timed_steps").get<std::int64_t>();
  EXPECT_GT(steps, 0);
  EXPECT_LT(steps, 1'000'000);
  EXPECT_EQ(frontier.at("points").at(0).at("timed_steps"), steps);
  EXPECT_THAT(contents(folder / "f.svg"),
              HasSubstr("median of " + std::to_string(steps) + " steps"));
}

TEST(Chart, NeedsNothingElseAndEscapesWhatItSays) {
  Chart chart;
  chart.title = "a < b & c";
  chart.points = {
      {.kind = ChartPoint::Kind::kPlain, .label = "plain", .megabytes = 200},
      {.kind = ChartPoint::Kind::kRegions,
       .label = "every-block",
       .megabytes = 54,
       .ratio = 1.36,
       .lowest = 1.3,
       .highest = 1.4},
      {.label = "+84MB", .megabytes = 84, .ratio = 1.12, .lowest = 1.1, .highest = 1.2}};
  chart.misfits = {30};
  const std::string svg = svg_of(chart);
  EXPECT_THAT(svg, AllOf(HasSubstr("a &lt; b &amp; c"), HasSubstr("1.12×"), HasSubstr("1.36×"),
                         HasSubstr("does not fit"), Not(HasSubstr("href")), Not(HasSubstr("url(")),
                         Not(HasSubstr("nan")), Not(HasSubstr("inf"))));
  EXPECT_EQ(std::ranges::count(svg, '\0'), 0);
}

TEST(Chart, OfOnePointIsAChart) {
  Chart chart;
  chart.points = {{.kind = ChartPoint::Kind::kPlain, .label = "plain"}};
  EXPECT_THAT(svg_of(chart),
              AllOf(HasSubstr("plain"), Not(HasSubstr("nan")), Not(HasSubstr("inf"))));
}

}  // namespace
}  // namespace reprise::app
