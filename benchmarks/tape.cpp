// The byte budget: what recording costs without pressure, and a step that has to fit. Budgets are
// above what is live before the step, as all figures of the block benchmarks are.
#include <fmt/format.h>

#include "benches.h"
#include "benchmarks/support/fresh_processes.h"
#include "benchmarks/support/pass_through.h"
#include "every_block.h"
#include "tape_steps.h"

namespace reprise::bench {
namespace {

constexpr BlockShape kFine = {.width = 64, .heads = 4, .length = 16, .batch = 1, .dropout = 0.1};
constexpr BlockShape kCoarseModel = {
    .width = 256, .heads = 4, .length = 128, .batch = 8, .dropout = 0.1};
constexpr int kCoarseBlocks = 8;

Bytes megabytes(double count) { return Bytes(static_cast<std::int64_t>(count * 1e6)); }

void report_own_peak(Session& session, const char* bench, const std::string& name, const Step& step,
                     const Bar& bar) {
  session.report({.bench = bench,
                  .name = "peak, " + name,
                  .ours = peak_megabytes(session.device(), step),
                  .peer = {},
                  .unit = "MB",
                  .runs = 1,
                  .spread = 0,
                  .bar = bar});
}

}  // namespace

void tape_overhead(Session& session) {
  const c10::Device on = session.device();
  const auto above_plain = [](const char* step) -> Formula {
    return [step](const Round& round) {
      return (round[step] - round["plain"]) / operators_in_tape_steps() * 1e6;
    };
  };
  over_processes(session, "tape", "tape_overhead", {"plain", "seen", "recorded"},
                 {{"an operator, seen", "µs", above_plain("seen"), {}},
                  {"an operator, recorded", "µs", above_plain("recorded"), {.at_most = 0.8}}});
  Race race(session, "tape_overhead", nullptr);
  const Step blocks = block_step(on, 32, kFine, BlockStrategy::kPlain);
  race.add("blocks", blocks);
  race.add("blocks seen", seen(blocks));
  race.add("blocks recorded", under_budget(on, blocks, GiB(64)));
  race.run(Seconds(20));
  const auto times_plain = [](const char* step) -> Formula {
    return [step](const Round& round) { return round[step] / round["blocks"]; };
  };
  race.report("32 small blocks, seen", "×plain", times_plain("blocks seen"));
  race.report("32 small blocks, recorded", "×plain", times_plain("blocks recorded"),
              {.at_most = 1.2});
  const Step coarse = block_step(on, kCoarseBlocks, kCoarseModel, BlockStrategy::kPlain);
  report_own_peak(session, "tape_overhead", "plain", coarse, {});
  report_own_peak(session, "tape_overhead", "no pressure", under_budget(on, coarse, GiB(64)), {});
}

void tape_budget(Session& session) {
  const c10::Device on = session.device();
  struct Case {
    int megabytes;
    double most;
  };
  constexpr Case kCases[] = {{124, 1.06}, {84, 1.15}, {54, 1.27}, {47, 0}};
  const Step plain = block_step(on, kCoarseBlocks, kCoarseModel, BlockStrategy::kPlain);
  const Step regions = block_step(on, kCoarseBlocks, kCoarseModel, BlockStrategy::kNonReentrant);
  Race race(session, "tape_budget", nullptr);
  race.add("plain", plain);
  race.add("every block", regions);
  for (const Case& each : kCases) {
    const Step step = under_budget(on, plain, megabytes(each.megabytes));
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
