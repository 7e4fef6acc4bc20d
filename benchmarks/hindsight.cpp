// Plans for steps whose future is known: how far they come in a given time, on simrd's logs in the
// folder REPRISE_TRACES, beside h_eq's online decisions and the bound that no plan can be below.
// Without that folder, on a step of transformer blocks that is recorded here.
#include <fmt/format.h>
#include <reprise/budget.h>
#include <reprise/budget_extensions.h>
#include <reprise/planners.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "benches.h"
#include "benchmarks/support/session.h"
#include "blocks.h"

namespace reprise::bench {
namespace {

constexpr const char* kHindsightBench = "hindsight_quality";

struct HindsightCase {
  const char* model;
  double ratio;  // of the plain peak
  double bar;    // slowdown
};

// What annealing with cuts had reached in ten seconds in an earlier study of these logs, and 0.003.
constexpr HindsightCase kCases[] = {
    {"resnet32", .5, 1.0928},    {"resnet32", .3, 1.1698},    {"resnet32", .2, 1.2128},
    {"transformer", .5, 1.0507}, {"transformer", .3, 1.0791}, {"transformer", .2, 1.1298},
    {"lstm", .5, 1.0304},        {"lstm", .3, 1.1218},        {"lstm", .2, 1.2491},
    {"unet", .8, 1.0280},        {"unet", .5, 1.0988},        {"unet", .3, 1.3300},
};

void report_plan(Session& session, const StepTrace& trace, const std::string& name, double ratio,
                 Bar bar) {
  const Bytes budget(
      static_cast<std::int64_t>(ratio * static_cast<double>(trace.plain_peak().count)));
  const StepPlan plan = planners::hindsight(
      trace, {.budget = budget, .time_limit = std::chrono::seconds(session.quick() ? 1 : 10)});
  const SimulatedStep online = trace.simulate({.budget = budget});
  const auto figure = [&](const std::string& what, double ours, Bar limits) {
    session.report({.bench = kHindsightBench,
                    .name = fmt::format("{} at {:.1f}: {}", name, ratio, what),
                    .ours = ours,
                    .peer = {},
                    .unit = "×base",
                    .runs = 1,
                    .spread = 0,
                    .bar = limits});
  };
  figure("plan", plan.fits ? plan.slowdown : std::numeric_limits<double>::infinity(), bar);
  figure("no plan is below", plan.bound, {});
  if (online.outcome == SimulatedStep::Outcome::kFits) figure("h_eq online", online.slowdown, {});
}

// A step of eight blocks, as the tape sees it.
void record_block_step(const std::filesystem::path& file) {
  Model model = make_model(8, {.width = 64, .heads = 4, .length = 64, .batch = 4, .dropout = 0.1});
  const auto recorder = std::make_shared<TraceRecorder>(file);
  MemoryBudget budget(GiB(64), {.observer = recorder});
  {
    MemoryBudget::Step step = budget.step();
    at::Tensor x = model.input;
    for (Block& block : model.blocks) x = block->forward(x);
    x.square().sum().backward();
    step.finish();
  }
  recorder->close();
}

void plan_recorded_step(Session& session) {
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / fmt::format("reprise-bench-{}.jsonl.gz", ::getpid());
  record_block_step(file);
  const StepTrace trace = StepTrace::read(file);
  std::filesystem::remove(file);
  for (const double ratio : {.8, .5, .3}) report_plan(session, trace, "blocks", ratio, {});
}

}  // namespace

void hindsight_quality(Session& session) {
  const char* const folder = std::getenv("REPRISE_TRACES");
  if (folder == nullptr) return plan_recorded_step(session);
  std::string read;
  std::optional<StepTrace> trace;
  for (const HindsightCase& each : kCases) {
    if (read != each.model) {
      read = each.model;
      trace = StepTrace::read(std::filesystem::path(folder) / fmt::format("{}.jsonl.gz", read));
    }
    report_plan(session, *trace, each.model, each.ratio, {.at_most = each.bar});
  }
}

}  // namespace reprise::bench
