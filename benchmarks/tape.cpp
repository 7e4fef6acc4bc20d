// The byte budget: what recording costs without pressure, and a step that has to fit. Budgets are
// above what is live before the step, as all figures of the block benchmarks are.
#include <fmt/format.h>
#include <reprise/memory.h>
#include <reprise/memory_budget.h>

#include <memory>
#include <optional>

#include "benches.h"
#include "chain.h"
#include "every_block.h"

namespace reprise::bench {
namespace {

constexpr BlockShape kFine = {.width = 64, .heads = 4, .length = 16, .batch = 1, .dropout = 0.1};
constexpr BlockShape kCoarse = {
    .width = 256, .heads = 4, .length = 128, .batch = 8, .dropout = 0.1};
constexpr int kCoarseBlocks = 8;

Bytes megabytes(double count) { return Bytes(static_cast<std::int64_t>(count * 1e6)); }

// `step` under a budget of so much above what is live when it first begins.
Step under_budget(Step step, Bytes above) {
  const auto budget = std::make_shared<std::optional<MemoryBudget>>();
  return [step = std::move(step), above, budget] {
    if (!*budget) budget->emplace(live_bytes() + above);
    auto managed = (*budget)->step();
    step();
    managed.finish();
  };
}

void report_own_peak(Session& session, const char* bench, const std::string& name, const Step& step,
                     const Bar& bar) {
  step();
  const PeakScope scope;
  step();
  session.report({.bench = bench,
                  .name = "peak, " + name,
                  .ours = scope.peak_above_start().megabytes(),
                  .peer = {},
                  .unit = "MB",
                  .runs = 1,
                  .spread = 0,
                  .bar = bar});
}

}  // namespace

void tape_overhead(Session& session) {
  Race race(session, "tape_overhead", nullptr);
  const Step chain = backward_of(sin_chain);
  race.add("plain", chain);
  race.add("recorded", under_budget(chain, GiB(64)));
  const Step blocks = block_step(32, kFine, BlockStrategy::kPlain);
  race.add("blocks", blocks);
  race.add("blocks recorded", under_budget(blocks, GiB(64)));
  race.run(Seconds(20));
  // Forward: sin; backward: cos and mul.
  constexpr double kOperators = 3 * kChain;
  const Formula each = [](const Round& round) {
    return (round["recorded"] - round["plain"]) / kOperators * 1e6;
  };
  race.report("an operator", "µs", each, {.at_most = 0.8});
  const Formula times = [](const Round& round) {
    return round["blocks recorded"] / round["blocks"];
  };
  race.report("32 small blocks", "×plain", times, {.at_most = 1.2});
  const Step coarse = block_step(kCoarseBlocks, kCoarse, BlockStrategy::kPlain);
  report_own_peak(session, "tape_overhead", "plain", coarse, {});
  report_own_peak(session, "tape_overhead", "no pressure", under_budget(coarse, GiB(64)), {});
}

void tape_budget(Session& session) {
  struct Case {
    int megabytes;
    double most;
  };
  constexpr Case kCases[] = {{124, 1.06}, {84, 1.15}, {54, 1.27}, {47, 0}};
  const Step plain = block_step(kCoarseBlocks, kCoarse, BlockStrategy::kPlain);
  const Step regions = block_step(kCoarseBlocks, kCoarse, BlockStrategy::kNonReentrant);
  Race race(session, "tape_budget", nullptr);
  race.add("plain", plain);
  race.add("every block", regions);
  for (const Case& each : kCases) {
    const Step step = under_budget(plain, megabytes(each.megabytes));
    report_own_peak(session, "tape_budget", fmt::format("{} MB", each.megabytes), step,
                    {.at_most = static_cast<double>(each.megabytes)});
    race.add(fmt::format("{} MB", each.megabytes), step);
  }
  race.run(Seconds(100));
  race.report("every block", "×plain",
              [](const Round& round) { return round["every block"] / round["plain"]; });
  for (const Case& each : kCases) {
    const std::string name = fmt::format("{} MB", each.megabytes);
    const Formula times = [name](const Round& round) { return round[name] / round["plain"]; };
    race.report(name, "×plain", times, each.most > 0 ? Bar{.at_most = each.most} : Bar{});
  }
}

}  // namespace reprise::bench
