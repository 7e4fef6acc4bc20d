// What a budget saves by learning the step: beside budgets that guess, in the same run.
#include <fmt/format.h>
#include <reprise/budget.h>
#include <reprise/memory.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "benches.h"
#include "benchmarks/support/race.h"
#include "every_block.h"

namespace reprise::bench {
namespace {

constexpr BlockShape kLearnt = {
    .width = 256, .heads = 4, .length = 128, .batch = 8, .dropout = 0.1};
constexpr int kLearntBlocks = 8;

// A step under a budget that tells what it recomputed.
class BudgetedStep {
 public:
  BudgetedStep(Step step, Bytes above, const BudgetOptions& options) : step_(std::move(step)) {
    budget_.emplace(live_bytes(options.device) + above, options);
  }

  void run() {
    auto managed = budget_->step();
    step_();
    managed.finish();
    const StepReport report = budget_->report();
    seconds_.push_back((report.replay_time + report.pack_time).count());
    peak_ = std::max(peak_, report.peak);
  }
  // Until there is a plan that will not get better.
  void learn() {
    constexpr int kEnough = 4;
    for (int i = 0; i < kEnough; ++i) run();
    budget_->wait_for_plan(Seconds(60));
    forget();
    run();
  }
  void forget() { seconds_.clear(); }
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

struct GuessAndPlan {
  std::shared_ptr<BudgetedStep> online, learned;
  double recompute() const { return learned->recompute() / online->recompute(); }
};

GuessAndPlan learnt_pair(c10::Device device, const Step& step, Bytes above) {
  const BudgetOptions guesses{.device = device, .plan_repeated_steps = false};
  const GuessAndPlan pair{
      std::make_shared<BudgetedStep>(step, above, guesses),
      std::make_shared<BudgetedStep>(step, above, BudgetOptions{.device = device})};
  pair.online->run();
  pair.learned->learn();
  return pair;
}

void run_pair(const GuessAndPlan& pair) {
  constexpr int kSteps = 12;
  for (int k = 0; k < kSteps; ++k) {
    pair.online->run();
    pair.learned->run();
  }
}

// A budget that learns guesses until its plan is there, and by better seconds: these it measures of
// replays and packing. What of the saving is that, and not the plan. Both budgets run beside the
// search for a plan that never comes, on another core.
double recompute_without_plan(c10::Device device, const Step& step, Bytes above) {
  const BudgetOptions guesses{.device = device, .plan_repeated_steps = false};
  const BudgetOptions measures{.device = device, .planning_time = Seconds(1e8)};
  const GuessAndPlan pair{std::make_shared<BudgetedStep>(step, above, guesses),
                          std::make_shared<BudgetedStep>(step, above, measures)};
  run_pair(pair);
  pair.online->forget();
  pair.learned->forget();
  run_pair(pair);
  return pair.recompute();
}

// Of new budgets each: what a guess drops, and a plan, go by seconds that each budget has measured
// for itself.
struct Ratios {
  std::vector<double> of_plans, without_plans;
};

Ratios recompute_of_more(c10::Device device, const Step& step, Bytes above, int count) {
  Ratios ratios;
  for (int i = 0; i < count; ++i) {
    const GuessAndPlan pair = learnt_pair(device, step, above);
    run_pair(pair);
    ratios.of_plans.push_back(pair.recompute());
    ratios.without_plans.push_back(recompute_without_plan(device, step, above));
  }
  return ratios;
}

}  // namespace

void learned_budget(Session& session) {
  struct Case {
    int megabytes;
    double most_recompute;
    double most_times;
  };
  constexpr Case kCases[] = {{124, 0.85, 1.05}, {84, 0.75, 1.11}, {54, 0.75, 1.20}};
  const c10::Device on = session.device();
  const Step plain = block_step(on, kLearntBlocks, kLearnt, BlockStrategy::kPlain);
  plain();
  Race race(session, "learned_budget", nullptr);
  race.add("plain", plain);
  struct Raced {
    Case of;
    Bytes above, limit;
    GuessAndPlan pair;
  };
  std::vector<Raced> all;
  for (const Case& each : kCases) {
    const Bytes above(static_cast<std::int64_t>(each.megabytes) * 1'000'000);
    const Bytes limit = live_bytes(on) + above;
    const GuessAndPlan pair = learnt_pair(on, plain, above);
    race.add(fmt::format("{} MB, online", each.megabytes), [pair] { pair.online->run(); });
    race.add(fmt::format("{} MB, learned", each.megabytes), [pair] { pair.learned->run(); });
    all.push_back({each, above, limit, pair});
  }
  race.run(Seconds(100));
  for (const auto& [of, above, limit, pair] : all) {
    const std::string size = fmt::format("{} MB", of.megabytes);
    const auto times = [&](const char* how) -> Formula {
      return [step = size + how](const Round& round) { return round[step] / round["plain"]; };
    };
    race.report(size + ", online", "×plain", times(", online"));
    race.report(size + ", learned", "×plain", times(", learned"), {.at_most = of.most_times});
    Ratios ratios = recompute_of_more(on, plain, above, session.quick() ? 0 : 4);
    ratios.of_plans.push_back(pair.recompute());
    session.report(make_figure("learned_budget", size + ", recompute seconds", "×online",
                               ratios.of_plans, {}, {.at_most = of.most_recompute}));
    if (!ratios.without_plans.empty()) {
      session.report(make_figure("learned_budget", size + ", by measured costs, no plan", "×online",
                                 ratios.without_plans, {}, {}));
    }
    session.report({.bench = "learned_budget",
                    .name = size + ", peak over the limit",
                    .ours = pair.learned->peak().megabytes() / limit.megabytes(),
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
