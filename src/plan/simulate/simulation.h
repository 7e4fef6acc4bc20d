// The state of one simulated step; see simulator.h for the rules.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "plan/simulate/eviction_index.h"
#include "plan/simulate/neighbourhood_costs.h"
#include "plan/simulate/simulator.h"

namespace reprise::plan {

class Simulation {
 public:
  Simulation(const Trace& trace, const ValueGraph& graph, const EvictionHeuristic& heuristic,
             const SimulationOptions& options);

  SimulationResult run();

 private:
  using Index = Trace::Index;

  // An operator that waits for its inputs.
  struct Frame {
    Index op;
    Index wanted;       // the result that is asked for
    std::size_t first;  // of waiting_, which reaches to the end for the frame on top
    std::size_t next;   // the input to be restored and locked next
    bool again;
  };

  struct ValueState {
    std::int64_t last_use = 0;
    std::int64_t order = 0;   // when it became droppable: decides among equal scores, as in simrd
    std::uint32_t epoch = 0;  // how often it was dropped
    std::int32_t holds = 0;   // by the program
    std::int32_t locks = 0;
    Index place = 0;  // in droppable_
    bool is_there = false;
    bool is_kept = false;
  };

  bool carry_out(const Trace::Event& event);
  // Sets the outcome if so.
  bool is_out_of_time();
  bool keep(Index tensor);
  void release(Index tensor);
  bool is_defined(Index tensor) const;
  // Runs an operator after all that it needs; false where the simulation ends, with the outcome
  // set.
  bool run_operator(Index op, Index wanted, bool again);
  void begin(Index op, Index wanted, bool again);
  bool finish(const Frame& frame);
  void define(Index tensor);
  void lock(Index value);
  void unlock(Index value);
  void make_droppable(Index value);
  void make_undroppable(Index value);
  void drop(Index value);
  bool make_room(std::int64_t bytes);
  EvictionCandidate candidate(Index value) const;
  bool goes_before(double score, Index value, double lowest, Index best) const;
  Index lowest_score();
  Index drawn();
  Index victim();

  const Trace& trace_;
  const EvictionHeuristic& heuristic_;
  const SimulationOptions& options_;
  NeighbourhoodCosts costs_;
  std::vector<ValueState> values_;
  std::vector<std::uint32_t> epochs_;  // of tensors: that of its value when it was made last
  std::vector<Index> droppable_;
  std::vector<Frame> stack_;
  std::vector<Index> waiting_;
  Stopwatch watch_;
  std::int64_t clock_ = 1;
  std::int64_t memory_ = 0;
  std::int64_t order_ = 0;
  std::int64_t limit_;  // of recomputation, in nanoseconds
  std::mt19937_64 random_;
  std::vector<EvictionEntry> entries_;  // by value; none without an index
  std::unique_ptr<EvictionIndex> index_;
  SimulationResult result_;
};

}  // namespace reprise::plan
