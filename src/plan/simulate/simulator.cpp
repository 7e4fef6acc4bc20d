#include "plan/simulate/simulator.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "plan/simulate/simulation.h"

namespace reprise::plan {

double SimulationResult::slowdown() const {
  if (base_nanoseconds == 0) return 1;
  return static_cast<double>(base_nanoseconds + recompute_nanoseconds) /
         static_cast<double>(base_nanoseconds);
}

SimulationResult Simulator::run(const EvictionHeuristic& heuristic,
                                const SimulationOptions& options) const {
  return Simulation(trace_, graph_, heuristic, options).run();
}

TraceNeed Simulator::need() const {
  TraceNeed need;
  const auto heuristic = make_heuristic(Heuristic::kLru);
  SimulationOptions unlimited;
  unlimited.budget = std::numeric_limits<std::int64_t>::max();
  need.plain_peak = run(*heuristic, unlimited).peak;
  for (const Trace::Operator& op : trace_.operators) {
    if (op.is_constant) need.constants += op.bytes;
  }
  need.floor = need.constants;
  std::vector<Trace::Index> read;
  for (const Trace::Operator& op : trace_.operators) {
    if (op.is_constant) continue;
    read.clear();
    for (Trace::Index a = op.arguments.begin; a < op.arguments.end; ++a) {
      const Trace::Index value = trace_.tensors[trace_.arguments[a]].value;
      if (!trace_.operators[trace_.values[value].producer].is_constant) read.push_back(value);
    }
    std::ranges::sort(read);
    std::int64_t bytes = need.constants + op.bytes;
    for (std::size_t i = 0; i < read.size(); ++i) {
      if (i == 0 || read[i] != read[i - 1]) bytes += trace_.values[read[i]].bytes;
    }
    need.floor = std::max(need.floor, bytes);
  }
  return need;
}

}  // namespace reprise::plan
