// Runs a trace under a budget: no tensors, only their sizes and what making them costs. What a
// heuristic would do to a step can be seen in milliseconds, and beside the literature.
//
// The rules are those of simrd's RuntimeV2EagerOptimized (uwsampl/dtr-prototype), whose figures
// come out: constants stay; a value that the program has let go of is dropped at once, and made
// again if an operator that is run again needs it; an operator's inputs are restored first and stay
// while it runs; before it runs, values are dropped by the heuristic until its results fit; results
// that exist already when an operator is run again are there twice for that moment; at the end all
// that the program still holds must be there. Fragmentation and operators' own temporaries are not
// modelled.
//
// Differences: operators without results are run; values of operators that have not run yet are in
// no neighbourhood.
#pragma once

#include <cstdint>

#include "core/clock.h"
#include "plan/simulate/heuristic.h"
#include "plan/simulate/value_graph.h"
#include "plan/trace/trace.h"

namespace reprise::plan {

enum class Outcome {
  kFits,
  kOutOfMemory,  // nothing more could be dropped
  kTooSlow,      // the slowdown limit was passed
  kOutOfTime,    // the simulation itself took as long as it may
};

// How the value with the lowest score is found.
enum class Search {
  kExact,  // every value is looked at, as in simrd
  kIndex,  // as the tape does while a step runs (eviction_index.h): nearly as good, and fast
};

struct SimulationOptions {
  std::int64_t budget = 0;  // bytes, constants included
  Search search = Search::kExact;
  // The simulation ends where base + recomputed time passes this many times the base. Too small a
  // budget may cost exponentially many recomputations.
  double slowdown_limit = 10;
  Seconds time_limit{0};   // of the simulation itself; zero: none
  std::uint64_t seed = 0;  // of choices among equals and of samples
};

struct SimulationResult {
  Outcome outcome = Outcome::kFits;
  std::int64_t base_nanoseconds = 0;       // of the operators that were run, once each
  std::int64_t recompute_nanoseconds = 0;  // of running them again
  std::int64_t peak = 0;                   // bytes
  std::int64_t evictions = 0;              // values dropped for want of bytes
  std::int64_t recomputations = 0;         // operators run again
  std::int64_t events = 0;                 // of the trace that were carried out

  // (base + recompute) / base; 1 for a trace whose operators take no time.
  double slowdown() const;
};

// What a trace needs, whatever the heuristic.
struct TraceNeed {
  std::int64_t plain_peak = 0;  // bytes when nothing is dropped before the program lets go of it
  std::int64_t floor =
      0;  // no budget below can do: constants, and one operator's inputs and results
  std::int64_t constants = 0;
};

// Simulations of one trace. Functions are constant, so several threads may run several budgets.
class Simulator {
 public:
  // The trace must outlive it.
  explicit Simulator(const Trace& trace) : trace_(trace), graph_(trace) {}

  SimulationResult run(const EvictionHeuristic& heuristic, const SimulationOptions& options) const;
  TraceNeed need() const;

 private:
  const Trace& trace_;
  ValueGraph graph_;
};

}  // namespace reprise::plan
