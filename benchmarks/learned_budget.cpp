// What a budget saves by learning the step: beside budgets that guess, in the same run.
#include <fmt/format.h>
#include <reprise/memory.h>
#include <reprise/memory_budget.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "benches.h"
#include "every_block.h"
#include "race.h"

namespace reprise::bench {
namespace {

constexpr BlockShape kLearnt = {
    .width = 256, .heads = 4, .length = 128, .batch = 8, .dropout = 0.1};
constexpr int kLearntBlocks = 8;

// A step under a budget that tells what it recomputed.
class BudgetedStep {
 public:
  BudgetedStep(Step step, Bytes above, bool learns) : step_(std::move(step)) {
    budget_.emplace(live_bytes() + above, BudgetOptions{.learn = learns});
  }

  void run() {
    auto managed = budget_->step();
    step_();
    managed.finish();
    const StepReport report = budget_->report();
    seconds_.push_back(report.replay_seconds + report.pack_seconds);
    peak_ = std::max(peak_, report.peak);
  }
  // Until there is a plan that will not get better.
  void learn() {
    constexpr int kEnough = 4;
    for (int i = 0; i < kEnough; ++i) run();
    budget_->wait_for_plan(Seconds(60));
    seconds_.clear();
    run();
  }
  double recompute() const {
    std::vector<double> sorted = seconds_;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
  Bytes peak() const { return peak_; }
  const MemoryBudget& budget() const { return *budget_; }

 private:
  Step step_;
  std::optional<MemoryBudget> budget_;
  std::vector<double> seconds_;
  Bytes peak_;
};

}  // namespace

void learned_budget(Session& session) {
  struct Case {
    int megabytes;
    double most_recompute;
    double most_times;
  };
  constexpr Case kCases[] = {{124, 0.85, 1.05}, {84, 0.75, 1.11}, {54, 0.75, 1.20}};
  const Step plain = block_step(kLearntBlocks, kLearnt, BlockStrategy::kPlain);
  plain();
  Race race(session, "learned_budget", nullptr);
  race.add("plain", plain);
  struct Pair {
    Case of;
    Bytes limit;
    std::shared_ptr<BudgetedStep> online, learned;
  };
  std::vector<Pair> pairs;
  for (const Case& each : kCases) {
    const Bytes above(static_cast<std::int64_t>(each.megabytes) * 1'000'000);
    const Pair pair{each, live_bytes() + above, std::make_shared<BudgetedStep>(plain, above, false),
                    std::make_shared<BudgetedStep>(plain, above, true)};
    pair.online->run();
    pair.learned->learn();
    race.add(fmt::format("{} MB, online", each.megabytes), [pair] { pair.online->run(); });
    race.add(fmt::format("{} MB, learned", each.megabytes), [pair] { pair.learned->run(); });
    pairs.push_back(pair);
  }
  race.run(Seconds(100));
  for (const Pair& pair : pairs) {
    const std::string size = fmt::format("{} MB", pair.of.megabytes);
    const auto times = [&](const char* how) -> Formula {
      return [step = size + how](const Round& round) { return round[step] / round["plain"]; };
    };
    race.report(size + ", online", "×plain", times(", online"));
    race.report(size + ", learned", "×plain", times(", learned"), {.at_most = pair.of.most_times});
    session.report({.bench = "learned_budget",
                    .name = size + ", recompute seconds",
                    .ours = pair.learned->recompute() / pair.online->recompute(),
                    .peer = {},
                    .unit = "×online",
                    .runs = 1,
                    .spread = 0,
                    .bar = {.at_most = pair.of.most_recompute}});
    session.report({.bench = "learned_budget",
                    .name = size + ", peak over the limit",
                    .ours = pair.learned->peak().megabytes() / pair.limit.megabytes(),
                    .peer = {},
                    .unit = "",
                    .runs = 1,
                    .spread = 0,
                    .bar = {.at_most = 1}});
    if (const auto plan = pair.learned->budget().plan()) {
      session.report({.bench = "learned_budget",
                      .name = size + ", the plan's slowdown",
                      .ours = plan->figures().slowdown,
                      .peer = {},
                      .unit = "×plain",
                      .runs = 1,
                      .spread = 0,
                      .bar = {}});
      session.report({.bench = "learned_budget",
                      .name = size + ", below which no plan is",
                      .ours = plan->figures().bound,
                      .peer = {},
                      .unit = "×plain",
                      .runs = 1,
                      .spread = 0,
                      .bar = {}});
    }
  }
}

}  // namespace reprise::bench
