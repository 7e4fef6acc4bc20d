// How close hindsight comes to the optimum, on steps that are small enough for an integer program:
// drawn ones of 20, 40 and 60 operators, half of them forward, half back. Where the build has no
// HiGHS, hindsight's plans are shown beside its own bound alone.
#include <fmt/format.h>
#include <reprise/planners.h>

#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "benches.h"
#include "benchmarks/support/session.h"

namespace reprise::bench {
namespace {

constexpr const char* kVsIlpBench = "hindsight_vs_ilp";

// Layers of 1 to 20 MB, every third of which also reads an earlier one; each has a backward, which
// reads its input or its result, and makes its input's gradient and a small one that stays. Seconds
// grow with the bytes, by factors that are drawn as well.
StepTrace drawn_step(int operators, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](int n) {
    return static_cast<int>(random() % static_cast<std::uint64_t>(n));
  };
  const int layers = operators / 2;
  std::vector<int> megabytes(static_cast<std::size_t>(layers) + 1);
  for (int& each : megabytes) each = 1 + below(20);
  std::string text = fmt::format(
      R"({{"format": "reprise step", "version": 1, "constants": [{{"bytes": {}000000}}], "operators": [)",
      megabytes[0]);
  std::vector<double> seconds;
  // Forward, tensor i is the result of layer i; 0 is the step's input.
  for (int i = 1; i <= layers; ++i) {
    const int bytes = megabytes[static_cast<std::size_t>(i)];
    seconds.push_back(1e-4 * bytes * (1 + below(9)));
    const std::string skip = i > 2 && below(3) == 0 ? fmt::format(", {}", 1 + below(i - 2)) : "";
    text +=
        fmt::format(R"({}{{"seconds": {}, "inputs": [{}{}], "outputs": [{{"bytes": {}000000}}]}})",
                    i > 1 ? "," : "", seconds.back(), i - 1, skip, bytes);
  }
  std::string results;
  int gradient = layers, made = layers;
  for (int i = layers; i >= 1; --i) {
    const int reads = i - below(2);
    text += fmt::format(
        R"(,{{"seconds": {}, "inputs": [{}, {}], "outputs": [{{"bytes": {}000000}}, {{"bytes": 100000}}]}})",
        2 * seconds[static_cast<std::size_t>(i) - 1], gradient, reads,
        megabytes[static_cast<std::size_t>(i) - 1]);
    gradient = made + 1;
    made += 2;
    results += fmt::format("{}{}", results.empty() ? "" : ", ", made);
  }
  return StepTrace::parse(text + "], \"results\": [" + results + "]}");
}

void report_case(Session& session, int operators, std::uint64_t seed, double ratio) {
  const StepTrace trace = drawn_step(operators, seed);
  const Bytes budget(std::llround(ratio * static_cast<double>(trace.plain_peak().count)));
  const auto seconds = [&](double quick, double usual) {
    return std::chrono::duration<double>(session.quick() ? quick : usual);
  };
  const StepPlan plan =
      planners::hindsight(trace, {.budget = budget, .time_limit = seconds(0.2, 5)});
  StepPlan best;
  if (planners::has_ilp()) {
    best = planners::ilp(trace, {.budget = budget, .time_limit = seconds(2, 120)});
  }
  const std::string name = fmt::format("{} operators, seed {}, at {:.1f}", operators, seed, ratio);
  const auto figure = [&](const std::string& what, double ours, std::optional<double> peer) {
    session.report({.bench = kVsIlpBench,
                    .name = name + ": " + what,
                    .ours = ours,
                    .peer = peer,
                    .unit = "×base",
                    .runs = 1,
                    .spread = 0,
                    .bar = {}});
  };
  if (plan.fits) {
    figure("plan", plan.slowdown, best.fits ? std::optional(best.slowdown) : std::nullopt);
  }
  figure("no plan is below", plan.bound,
         planners::has_ilp() ? std::optional(best.bound) : std::nullopt);
}

}  // namespace

void hindsight_vs_ilp(Session& session) {
  if (!planners::has_ilp()) {
    std::fputs(
        "hindsight_vs_ilp: this build has no HiGHS, so there is no optimum to compare with\n",
        stderr);
  }
  for (const int operators : {20, 40, 60}) {
    for (const std::uint64_t seed : {1, 2}) {
      for (const double ratio : {.7, .5}) report_case(session, operators, seed, ratio);
    }
  }
}

}  // namespace reprise::bench
