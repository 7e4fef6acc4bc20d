// The simulator: whether it gives the figures of the literature, and how fast it is. REPRISE_TRACES
// names the folder with simrd's logs; without it a made-up step shows the speed alone.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "benches.h"
#include "benchmarks/support/race.h"
#include "plan/simulate/simulator.h"
#include "plan/trace/trace_writer.h"

namespace reprise::bench {
namespace {

constexpr const char* kSimulateBench = "simulate";
constexpr double kRatios[] = {.8, .5, .4, .3, .2};
constexpr double kModerate = .5;  // the ratio at which the speed is taken
constexpr double kOutOfMemory = 0;

struct Reference {
  const char* model;
  double slowdown[5];  // simrd's, of h_eq at the ratios
};

constexpr Reference kReferences[] = {
    {"resnet32", {1.0248, 1.1068, 1.1404, 1.1786, 1.3322}},
    {"transformer", {1.0199, 1.0584, 1.0914, 1.1238, 1.5449}},
    {"lstm", {1.0268, 1.0710, 1.1590, 1.3651, 1.5502}},
    {"unet", {1.0577, 1.1587, kOutOfMemory, kOutOfMemory, kOutOfMemory}},
};

plan::SimulationResult run(const plan::Simulator& simulator, double ratio,
                           plan::Search search = plan::Search::kExact) {
  plan::SimulationOptions options;
  options.search = search;
  options.budget =
      static_cast<std::int64_t>(ratio * static_cast<double>(simulator.need().plain_peak));
  return simulator.run(*plan::make_heuristic(reprise::Heuristic::kHEq), options);
}

// A budget that cannot be met has the figure 0.
void report_slowdowns(Session& session, const Reference& reference,
                      const plan::Simulator& simulator) {
  for (std::size_t i = 0; i < std::size(kRatios); ++i) {
    const plan::SimulationResult result = run(simulator, kRatios[i]);
    const double ours =
        result.outcome == plan::Outcome::kOutOfMemory ? kOutOfMemory : result.slowdown();
    session.report({.bench = kSimulateBench,
                    .name = fmt::format("{} at {:.1f}", reference.model, kRatios[i]),
                    .ours = ours,
                    .peer = reference.slowdown[i],
                    .unit = "×base",
                    .runs = 1,
                    .spread = 0,
                    .bar = {.at_most = reference.slowdown[i] + 1e-3,
                            .at_least = reference.slowdown[i] - 1e-3}});
  }
}

// A chain of blocks and its way back, which reads what each block has left.
void write_made_up_step(const std::filesystem::path& file, int blocks) {
  using Id = plan::TraceWriter::Id;
  plan::TraceWriter writer(file);
  Id next = 0;
  const auto call = [&](const char* name, std::vector<Id> arguments, std::int64_t bytes) {
    const plan::TraceWriter::Result result[] = {{.id = next, .bytes = bytes}};
    writer.call(name, arguments, result, 1000 + static_cast<std::int64_t>(next % 7) * 300);
    return next++;
  };
  writer.start();
  writer.constant(next++, 1000);
  std::vector<std::vector<Id>> left;
  Id x = call("input", {}, 1000);
  for (int i = 0; i < blocks; ++i) {
    const Id product = call("mm", {x, 0}, 4000);
    const Id activation = call("gelu", {product}, 4000);
    const Id out = call("mm", {activation, 0}, 1000);
    left.push_back({x, product, activation});
    x = call("add", {out, x}, 1000);
    writer.release(out);
  }
  for (; !left.empty(); left.pop_back()) {
    const Id inner = call("mm_backward", {x, left.back()[2]}, 4000);
    const Id middle = call("gelu_backward", {inner, left.back()[1]}, 4000);
    const Id outer = call("mm_backward", {middle, left.back()[0]}, 1000);
    for (const Id gone : left.back()) writer.release(gone);
    for (const Id gone : {inner, middle, x}) {
      if (gone != left.back()[0]) writer.release(gone);
    }
    x = outer;
  }
  writer.close();
}

void report_speed(Session& session, const std::string& name, const std::filesystem::path& file,
                  const plan::Trace& trace, const plan::Simulator& simulator) {
  const plan::SimulationResult moderate = run(simulator, kModerate);
  Race race(session, kSimulateBench, nullptr);
  race.add("read", [&] { plan::read_trace(file); });
  race.add("run", [&] { run(simulator, kModerate); });
  race.add("run by index", [&] { run(simulator, kModerate, plan::Search::kIndex); });
  race.run(Seconds(1));
  const Bar bar = {.at_least = 1};
  const auto events = static_cast<double>(moderate.events);
  race.report(fmt::format("read, {}", name), "million lines/s", [&](const Round& round) {
    return 1e-6 * static_cast<double>(trace.lines) / round["read"];
  });
  race.report(
      fmt::format("simulate, {} at {:.1f}", name, kModerate), "million events/s",
      [&](const Round& round) { return 1e-6 * events / round["run"]; }, bar);
  race.report(fmt::format("the same by index, {}", name), "million events/s",
              [&](const Round& round) { return 1e-6 * events / round["run by index"]; });
}

void simulate_made_up_step(Session& session) {
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / fmt::format("reprise-bench-{}.jsonl.gz", ::getpid());
  write_made_up_step(file, 300);
  const plan::Trace trace = plan::read_trace(file);
  report_speed(session, "made-up step", file, trace, plan::Simulator(trace));
  std::filesystem::remove(file);
}

}  // namespace

void simulate(Session& session) {
  const char* folder = std::getenv("REPRISE_TRACES");
  if (folder == nullptr) return simulate_made_up_step(session);
  for (const Reference& reference : kReferences) {
    const auto file = std::filesystem::path(folder) / fmt::format("{}.jsonl.gz", reference.model);
    const plan::Trace trace = plan::read_trace(file);
    const plan::Simulator simulator(trace);
    report_slowdowns(session, reference, simulator);
    report_speed(session, reference.model, file, trace, simulator);
  }
}

}  // namespace reprise::bench
